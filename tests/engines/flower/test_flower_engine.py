"""The Flower engine, without processes: same bits, and no node can stop a round."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import local_federation
import pytest
import tiny
import torch
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedtail import (
    GBME,
    BalanceFL,
    Client,
    CReFF,
    FedAvg,
    Method,
    Payload,
    RedGrape,
    RunStopped,
    Task,
    action,
    run,
)
from fedtail.callbacks import Callback
from fedtail.engines import Dropped
from fedtail.engines.flower.bridge import from_records, to_records
from fedtail.engines.flower.executor import VERSION
from fedtail.forms import Form, Like
from fedtail.methods import ModelState
from fedtail.models import SplitModel

METHODS: list[Method[Any]] = [
    FedAvg(local=tiny.quick(), buffers="local"),
    BalanceFL(local=tiny.quick()),
    CReFF(local=tiny.quick(), match_steps=2),
    RedGrape(local=tiny.quick()),
    GBME(local=tiny.quick()),
]


class Counting(FedAvg[ModelState]):
    """Remembers how often it was asked; clients fail in many ways if told to."""

    @action
    def ask(self, payload: Payload, client: Client) -> Payload:
        count = client.state.get("count", torch.zeros(1)) + 1
        client.state["count"] = count
        order = payload.scalars.get(f"client {client.id}")
        if order == "raise":
            raise ValueError("patient 0815 is ill")
        x = torch.full((2,), float("nan") if order == "nan" else 1.0)
        return Payload({"count": count, "x": x[:1] if order == "short" else x})

    def ask_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        looks = {"count": Like((1,)), "x": Like((2,))}
        return Form(looks).singly("the test looks at each")

    @action
    def forget(self, payload: Payload, client: Client) -> Payload:
        client.state.clear()
        return Payload()

    def forget_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        return Form()


class Ill(FedAvg[ModelState]):
    """Some clients cannot train."""

    ill: tuple[int, ...] = ()

    def prepare(self, run: Any) -> Any:
        if run.client.id in self.ill:
            raise ValueError("patient 0815 is ill")


def made(**fields: Any) -> local_federation.Federation:
    return local_federation.federation(tiny.experiment(Counting()), **fields)


def ask(*clients: int, action: str = "ask", **orders: str) -> list[Task]:
    payload = Payload({"x": torch.zeros(2)}, {k.replace("_", " "): v for k, v in orders.items()})
    return [Task(client, action, payload) for client in clients]


def counts(replies: Any) -> dict[int, float]:
    return {u.client: float(u.payload.tensors["count"]) for u in replies.found.each}


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_the_bits_are_those_of_the_embedded_engine(method: Method[Any], tmp_path: Path) -> None:
    experiment = tiny.experiment(method, tiny.norm_model, rounds=2)
    there = local_federation.federation(experiment, node_config={"state-dir": str(tmp_path)}).run()
    here = run(experiment)
    assert there.digest == here.digest
    for ours, theirs in zip(here.history, there.history, strict=True):
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}


@pytest.mark.parametrize("nodes", [1, 2, 6])
def test_the_number_of_nodes_changes_nothing(nodes: int) -> None:
    experiment = tiny.experiment(rounds=2)
    assert local_federation.federation(experiment, nodes).run().digest == run(experiment).digest


def test_a_node_is_sent_one_message_with_what_its_clients_share_in_it_once() -> None:
    on = made(nodes=2)
    on.engine().perform(ask(0, 1, 2, 3, 4), 1, 3)
    work = [m for m in on.grid.sent if m.metadata.message_type == "train"]
    assert [list(m.content.array_records) for m in work] == [["0/"], ["0/"]]
    hellos = [m for m in on.grid.sent if m.metadata.message_type == "query.hello"]
    assert len(hellos) == 2


@pytest.mark.parametrize("folder", [True, False], ids=["files", "context"])
def test_states_stay_with_the_clients(folder: bool, tmp_path: Path) -> None:
    on = made(node_config={"state-dir": str(tmp_path)} if folder else {})
    engine = on.engine()
    engine.perform(ask(0, 4), 1, 3)
    assert counts(engine.perform(ask(0, 1, 4), 2, 3)) == {0: 2, 1: 1, 4: 2}
    assert {k: list(s) for k, s in engine.states.items()} == {k: [VERSION] for k in (0, 1, 4)}
    kept = sorted(p.parent.name for p in tmp_path.rglob("*.safetensors"))
    # One checkpointed version and the newest of clients 0 and 4, the first one of client 1.
    assert kept == (["client-0"] * 2 + ["client-1"] + ["client-4"] * 2 if folder else [])


def test_a_large_state_goes_to_a_file_without_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr("fedtail.engines.flower.store.SMALL", 10)
    on = made()
    engine = on.engine()
    engine.perform(ask(0), 1, 3)
    assert counts(engine.perform(ask(0), 2, 3)) == {0: 2}
    assert list(tmp_path.rglob("client-0/*.safetensors"))
    assert not on.grid.contexts[100].state


def test_a_client_that_forgets_begins_again(tmp_path: Path) -> None:
    engine = made(node_config={"state-dir": str(tmp_path)}).engine()
    engine.perform(ask(0), 1, 3)
    engine.perform(ask(0, action="forget"), 2, 3)
    assert counts(engine.perform(ask(0), 3, 3)) == {0: 1}


def test_several_tasks_of_one_client_see_each_other_s_state(tmp_path: Path) -> None:
    engine = made(node_config={"state-dir": str(tmp_path)}).engine()
    replies = engine.perform(ask(0, 0, 1), 1, 3)
    assert [float(u.payload.tensors["count"]) for u in replies.found.each] == [1, 2, 1]


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ("nan", "sent NaN or infinity in x"),
        ("short", "sent x of shape (1,), not (2,)"),
    ],
)
def test_a_refused_update_leaves_the_state_as_it_was(
    order: str, reason: str, tmp_path: Path
) -> None:
    engine = made(node_config={"state-dir": str(tmp_path)}).engine()
    engine.perform(ask(0, 1, 2), 1, 3)
    replies = engine.perform(ask(0, 1, 2, client_1=order), 2, 3)
    assert counts(replies) == {0: 2, 2: 2}
    assert replies.dropped == [Dropped(1, reason)]
    assert counts(engine.perform(ask(1), 3, 3)) == {1: 2}


@pytest.mark.parametrize("outcomes", [None, 7, [], [3], ["version"], {"version": 1}])
def test_whatever_a_node_says_of_its_tasks_spoils_only_its_own(outcomes: Any) -> None:
    on = made()
    engine = on.engine()
    engine.perform(ask(0, 1), 1, 3)

    def spoil(node: int, reply: Message) -> Message:
        if node == 101:
            payloads, notes = from_records(reply.content)
            reply.content = to_records(payloads, {**notes, "outcomes": outcomes})
        return reply

    on.grid.spoil = spoil
    replies = engine.perform(ask(0, 1), 2, 3)
    assert counts(replies) == {0: 2}
    reason = "its node sent another number of answers than it was given tasks"
    assert replies.dropped == [Dropped(1, reason)]


@pytest.mark.parametrize("bad", ["x", math.inf, -1, None])
def test_a_size_that_is_none_costs_a_node_its_answers(bad: Any) -> None:
    # Two clients of one node, which adds up their answers.
    on = made(nodes=2)
    engine = on.engine()

    def spoil(node: int, reply: Message) -> Message:
        payloads, notes = from_records(reply.content)
        for outcome in notes.get("outcomes", []) if node == 101 else []:
            outcome["bytes"] = bad
        reply.content = to_records(payloads, notes)
        return reply

    on.grid.spoil = spoil
    replies = engine.perform(ask(0, 1, 2, 3), 1, 3)
    assert list(replies.found.clients) == [0, 2]
    assert {d.reason for d in replies.dropped} == {f"says that it sent {bad!r} bytes"}


def test_a_failure_without_a_reason_is_one() -> None:
    on = made()
    engine = on.engine()
    engine.perform(ask(0, 1), 1, 3)

    def spoil(node: int, reply: Message) -> Message:
        if node == 101:
            reply.content = to_records([], {"kind": "failed"})
        return reply

    on.grid.spoil = spoil
    replies = engine.perform(ask(0, 1), 2, 3)
    assert replies.dropped == [Dropped(1, "it gave no reason", raised=True)]


@pytest.mark.parametrize("told", [{"partition": "x"}, {"partition": None}, {"versions": None}])
def test_a_node_that_does_not_say_who_it_is_is_not_used(told: dict[str, Any]) -> None:
    warnings: list[str] = []
    on = made(nodes=2, warnings=warnings)

    def spoil(node: int, reply: Message) -> Message:
        payloads, notes = from_records(reply.content)
        if node == 101:
            reply.content = to_records(payloads, {**notes, **told})
        return reply

    on.grid.spoil = spoil
    assert on.engine().executor.roster.refresh() == {0: 100}
    said = "node 101 is not used: it does not say its partition-id and versions"
    assert warnings == [said]


def test_the_text_of_an_exception_stays_with_the_client(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    engine = made(journal=tmp_path / "journal.jsonl").engine()
    replies = engine.perform(ask(0, 1, client_1="raise"), 1, 3)
    (dropped,) = replies.dropped
    assert dropped.client == 1
    assert dropped.reason.startswith("ValueError (test_flower_engine.py, line ")
    assert "0815" not in dropped.reason + (tmp_path / "journal.jsonl").read_text()
    assert "patient 0815" in caplog.text  # in this process: the client's own log
    assert counts(replies) == {0: 1}


def test_a_client_that_raises_is_left_out_and_if_all_do_the_run_stops() -> None:
    one = local_federation.federation(tiny.experiment(Ill(local=tiny.quick(), ill=(4,)), rounds=2))
    dropped = [d for record in one.run().history for d in record["dropped"]]
    assert {d["client"] for d in dropped} == {4}
    everyone = local_federation.federation(tiny.experiment(Ill(local=tiny.quick(), ill=range(6))))
    said = r"round 1: every client failed, the first, client \d: ValueError \(test_flower_engine.py"
    with pytest.raises(RunStopped, match=said):
        everyone.run()


def test_three_rounds_without_any_node_stop_the_run() -> None:
    on = local_federation.federation(tiny.experiment(rounds=9))
    on.grid.offline = {100, 101, 102}
    with pytest.raises(RunStopped, match=r"up to round 3 .*: its node is offline"):
        on.run()


def test_an_exception_outside_of_fedtail_is_not_repeated_either() -> None:
    on = made()

    def broken(message: Message, context: Context) -> Message:
        raise ValueError("patient 0815")

    engine = on.engine()
    engine.perform(ask(0), 1, 3)
    on.grid.app = ClientApp()
    on.grid.app.train()(broken)
    (dropped,) = engine.perform(ask(1), 2, 3).dropped
    assert dropped == Dropped(
        1, "its client app failed outside of fedtail (see its SuperNode's log)", raised=True
    )


def test_a_node_that_does_not_answer_is_left_out_at_the_deadline() -> None:
    on = made(deadline=0.3)
    engine = on.engine()
    engine.perform(ask(0, 1), 1, 3)
    on.grid.silent = {101}
    replies = engine.perform(ask(0, 1), 2, 3)
    assert counts(replies) == {0: 2}
    assert replies.dropped == [Dropped(1, "no answer within 0 s")]


def test_a_node_that_goes_is_left_out_and_one_that_comes_back_is_met_again(
    tmp_path: Path,
) -> None:
    on = made(node_config={"state-dir": str(tmp_path)})
    engine = on.engine()
    engine.perform(ask(0, 1), 1, 4)
    on.grid.offline = {101}
    assert engine.perform(ask(0, 1), 2, 4).dropped == [Dropped(1, "its node is offline")]
    # It comes back under another number, as it does without a key of its own.
    on.grid.contexts[777] = on.grid.contexts.pop(101)
    assert counts(engine.perform(ask(0, 1), 3, 4)) == {0: 3, 1: 2}


def test_a_client_that_lost_its_state_says_so_and_begins_afresh() -> None:
    on = made()
    engine = on.engine()
    engine.perform(ask(0, 1), 1, 4)
    on.grid.contexts[101].state.clear()  # a restarted SuperNode has an empty context
    (dropped,) = engine.perform(ask(0, 1), 2, 4).dropped
    assert dropped.client == 1
    assert "has lost its state (version 2)" in dropped.reason
    assert counts(engine.perform(ask(0, 1), 3, 4)) == {0: 3, 1: 1}


def test_a_client_that_kept_another_version_is_left_out() -> None:
    on = made()
    engine = on.engine()

    def liar(node: int, reply: Message) -> Message:
        record = reply.content.config_records["fedtail"]
        record["json"] = str(record["json"]).replace('"version": 2', '"version": 9')
        return reply

    on.grid.spoil = liar
    replies = engine.perform(ask(0, 1), 1, 4)
    assert replies.dropped == [Dropped(1, "kept version 9, not 2")]


def test_the_journal_says_who_answered_who_failed_and_what_it_cost(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    engine = made(journal=journal, nodes=2).engine()
    engine.perform(ask(0, 1, 2, client_2="raise"), 1, 3)
    (line,) = [json.loads(text) for text in journal.read_text().splitlines()]
    assert (line["round"], line["actions"], line["replied"]) == (1, ["ask"], [0, 1])
    assert [f["client"] for f in line["failed"]] == [2]
    # x is 8 bytes down and the order 5, to each of three clients; 4 + 8 bytes up from two.
    assert (line["bytes_down"], line["bytes_up"]) == (39, 24)
    assert line["wire_down"] > line["bytes_down"]
    assert line["wire_up"] > line["bytes_up"]


def test_a_run_whose_nodes_do_not_come_stops() -> None:
    on = made(nodes=3)
    on.grid.offline = {102}
    with pytest.raises(RunStopped, match=r"2 of 3 nodes came online .* partition-id 2"):
        on.engine().executor.roster.assemble(0.5)


def test_a_node_whose_first_process_is_killed_is_asked_again() -> None:
    warnings: list[str] = []
    on = made(nodes=2, warnings=warnings)
    killed: list[int] = []

    def kill_first(node: int, reply: Message) -> Message:
        if node != 101 or 101 in killed:
            return reply
        killed.append(node)
        return Message(Error(8, "killed"), reply_to=on.grid.sent[-1])

    on.grid.spoil = kill_first
    on.engine().executor.roster.assemble(30)
    assert warnings == ["node 101 is not used: its client app was killed"]


def test_a_node_that_never_answers_is_not_asked_for_ever() -> None:
    on = made(nodes=2, deadline=0.05, warnings=[])
    on.grid.silent = {101}
    roster = on.engine().executor.roster
    for _ in range(9):
        assert roster.refresh() == {0: 100}
    assert [m.metadata.dst_node_id for m in on.grid.sent] == [100, 101, 101, 101]


def test_nodes_with_a_wrong_or_no_partition_are_named() -> None:
    warnings: list[str] = []
    on = made(nodes=2, warnings=warnings)
    on.grid.contexts[100].node_config["partition-id"] = 7
    del on.grid.contexts[101].node_config["partition-id"]
    assert on.engine().executor.roster.refresh() == {}
    assert warnings == [
        "node 100 is not used: partition-id 7 is none of 0 to 1",
        "node 101 is not used: has no partition-id: start its SuperNode with --node-config "
        "'partition-id=0', 1, ...",
    ]


class Killed(BaseException):
    """Nothing in the library catches this."""


class Stop(Callback):
    """Ends the run in the midst of round 3, when its clients are ahead of the checkpoint."""

    def on_round(self, record: Any) -> None:
        if record["round"] == 3:
            raise Killed


@pytest.mark.parametrize(("every", "damaged"), [(1, False), (2, False), (1, True)])
def test_clients_go_back_with_the_server(every: int, damaged: bool, tmp_path: Path) -> None:
    method: FedAvg[ModelState] = FedAvg(local=tiny.quick(), buffers="local")
    experiment = tiny.experiment(method, tiny.norm_model, rounds=4, checkpoint_every=every)
    config = {"state-dir": str(tmp_path / "states")}
    first = local_federation.federation(experiment, node_config=config)
    with pytest.raises(Killed):
        first.run(tmp_path / "run", callbacks=[Stop()])
    if damaged:  # and with it to the checkpoint before the last
        (tmp_path / "run" / "checkpoint" / "server-000002.safetensors").write_bytes(b"")
    second = local_federation.federation(experiment, node_config=config)
    assert second.run(tmp_path / "run", resume=True).digest == run(experiment).digest
