"""Runs in which the server sees sums only: same models, other messages."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import killing
import pytest
import tiny
import torch
from summing import far, summed

from fedtail import (
    CCVR,
    GBME,
    SLAC,
    CReFF,
    FedAvg,
    FedNova,
    FedtailError,
    GBMEp,
    Method,
    RedGrape,
    RunStopped,
    Scaffold,
    run,
)
from fedtail.callbacks import Callback, Record
from fedtail.engines.executor import Done, Executor, Job, Serial
from fedtail.engines.runtime import Runtime
from fedtail.forms import Form
from fedtail.models import SplitModel
from fedtail.privacy.ckks import Adder, Keyholder, make_keys
from fedtail.privacy.client_side import OPEN_SUM, ClientProtection
from fedtail.privacy.unnamed import UnnamedKey, unnamed_keys
from fedtail.protocol import Payload
from fedtail.totals import Sums
from fedtail.training import GlobalPrior, ProxyPrior

METHODS: dict[str, Method[Any]] = {
    "fedavg": FedAvg(local=tiny.quick()),
    "global counts": FedAvg(local=tiny.quick(), prior=GlobalPrior(), loss="balanced_softmax"),
    "proxy": FedAvg(local=tiny.quick(), prior=ProxyPrior(), loss="balanced_softmax"),
    "creff": CReFF(local=tiny.quick(), features=5, match_steps=5, head_epochs=5),
    "redgrape": RedGrape(local=tiny.quick(), per_class=2),
    "gbme-p": GBMEp(local=tiny.quick()),
    "ccvr": CCVR(local=tiny.quick(), samples=20),
    "scaffold": Scaffold(local=tiny.quick()),
    "fednova": FedNova(local=tiny.quick()),
    "slac": SLAC(local=tiny.quick()),
    "gbme": GBME(local=tiny.quick(), prior=GlobalPrior(), grouping="random", experts=2),
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder)
    return folder


@pytest.mark.parametrize("name", METHODS)
def test_encrypted_equals_plain(name: str, keys: Path) -> None:
    experiment = tiny.experiment(METHODS[name], tiny.norm_model, rounds=2)
    plain = run(experiment)
    found = run(experiment.but(encrypt=True, keys=str(keys)))
    assert not any(record["dropped"] for record in found.history)
    assert far(found, plain) < 1e-4
    for mine, theirs in zip(found.history, plain.history, strict=True):
        assert mine["clients"] == theirs["clients"]
        for key, value in theirs["method"].items():
            assert mine["method"][key] == pytest.approx(value, rel=1e-3, abs=1e-5)


class Watched(Serial):
    """Keeps what passes, as a curious server could."""

    seen: list[tuple[str, Payload, Payload | None]]

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        object.__setattr__(self, "seen", [])

    def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
        done = list(super().perform(jobs))
        for job, one in zip(jobs, done, strict=True):
            self.seen.append((job.task.action, job.task.payload, one.payload))
        return done


def test_the_server_sees_no_number_of_one_client(keys: Path) -> None:
    executors: list[Watched] = []

    def executor(runtime: Runtime) -> Executor:
        executors.append(Watched(runtime))
        return executors[0]

    summed(tiny.experiment(METHODS["redgrape"], rounds=1), keys, executor)
    answers = [answer for action, _, answer in executors[0].seen if action == "train"]
    assert len(answers) == 4
    for answer in answers:
        assert answer is not None
        assert set(answer.tensors) == {"sealed/whole"}
        assert answer.tensors["sealed/whole"].dtype == torch.uint8
        # How many samples, steps and classes a client has is not there.
        assert answer.scalars == {}
    opened = [answer for action, _, answer in executors[0].seen if action == OPEN_SUM]
    assert len(opened) == 1


def test_bytes_are_those_of_the_ciphertexts_and_of_the_decryption(keys: Path) -> None:
    executors: list[Watched] = []

    def executor(runtime: Runtime) -> Executor:
        executors.append(Watched(runtime))
        return executors[0]

    (record,) = summed(tiny.experiment(rounds=1), keys, executor).history
    seen = executors[0].seen
    assert record["bytes_down"] == sum(sent.nbytes for _, sent, _ in seen)
    assert record["bytes_up"] == sum(got.nbytes for *_, got in seen if got is not None)
    # The first client of the cohort decrypts: one more ciphertext goes down to it.
    (extra,) = [sent.nbytes for action, sent, _ in seen if action == OPEN_SUM]
    down = {int(client): pair[0] for client, pair in record["traffic"].items()}
    first, *others = sorted(down)
    assert down[first] == extra + down[others[0]]
    assert len({down[client] for client in others}) == 1


def test_the_clients_side_is_sent_without_the_key(keys: Path) -> None:
    side = ClientProtection(keys)
    held = side.holder
    arrived = pickle.loads(pickle.dumps(side))
    assert arrived._holder is None and side._holder is held
    assert arrived.holder.name == held.name


@pytest.mark.slow
def test_a_pool_has_the_key_and_its_parent_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("the server's process opened the secret key")

    for taboo in ("ckks.Keyholder.of", "unnamed.UnnamedKey.read", "unnamed.new_keys"):
        monkeypatch.setattr(f"fedtail.privacy.{taboo}", forbidden)
    experiment = tiny.experiment(rounds=2)
    found = run(experiment.but(encrypt=True, workers=2))
    assert far(found, run(experiment)) < 1e-4


def test_the_keys_of_a_run_are_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Prepare: all that a run could leave behind is here, and the secret key is known.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    read, seen = UnnamedKey.read, []

    def reading(self: UnnamedKey) -> bytes:
        seen.append(read(self))
        return seen[-1]

    monkeypatch.setattr(UnnamedKey, "read", reading)

    class Searching(Callback):
        def on_round(self, record: Record) -> None:
            (secret,) = seen
            found = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
            assert found and not any(secret[-1000:] in content for content in found)

    # Execute
    run(tiny.experiment(encrypt=True), out=tmp_path / "run", callbacks=[Searching()])

    # Assert
    assert len(seen) == 1 and len(seen[0]) > 1000
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux only")
def test_elsewhere_keys_are_in_an_unlinked_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delattr(os, "memfd_create")
    with unnamed_keys(apart=False) as (secret, public):
        assert list(tmp_path.iterdir()) == []
        assert Keyholder.of(secret.read()).name == Adder.of(public).name


@pytest.mark.slow
def test_a_kill_leaves_no_key(tmp_path: Path) -> None:
    # In the temporary folder of a run with workers; a killed parent ends them, too.
    (tmp_path / "own").mkdir()
    words = ["run", "--encrypt", "--rounds", "50", "--workers", "2", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedtail", *words],
        env={**os.environ, "TMPDIR": str(tmp_path / "own")},
        stdout=subprocess.DEVNULL,
    )
    until = time.monotonic() + 120
    while killing.rounds_done(tmp_path / "run") < 2 and time.monotonic() < until:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert killing.rounds_done(tmp_path / "run") >= 2
    secrets = [path for path in tmp_path.rglob("*") if path.is_file() and "key" in path.name]
    assert secrets == []
    assert [p.name for p in (tmp_path / "own").iterdir() if "key" in p.name] == []


def test_random_numbers_do_not_depend_on_encryption(keys: Path) -> None:
    # Two exchanges a round: the client that decrypts after the first draws the same in the second.
    method = TwiceTrained(local=tiny.quick())
    assert far(summed(tiny.experiment(method), keys), run(tiny.experiment(method))) < 1e-4


class TwiceTrained(FedAvg[Any]):
    """Trains each cohort twice in a round."""

    def round(self, s: Any, server: Any) -> Any:
        s = yield from super().round(s, server)
        return (yield from super().round(s, server))


def spoiled(change: Callable[[Payload], Payload], action: str = "train") -> Callable[..., Executor]:
    """Return an executor in which client 0 answers one action in another way."""

    class Spoiled(Serial):
        def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
            return [
                Done(change(done.payload), done.state)
                if done.payload is not None and job.task.client == 0 and job.task.action == action
                else done
                for job, done in zip(jobs, super().perform(jobs), strict=True)
            ]

    return Spoiled


def cut(payload: Payload) -> Payload:
    tensors = {name: t[:-100] for name, t in payload.tensors.items()}
    return Payload(tensors, payload.scalars)


def another_tensor(payload: Payload) -> Payload:
    return Payload({"sealed/half": payload.tensors["sealed/whole"]}, payload.scalars)


@pytest.mark.parametrize(
    ("change", "reason"),
    [(cut, "damaged or cut short"), (another_tensor, "'sealed/half', which is not")],
)
def test_a_client_with_a_bad_ciphertext_is_left_out(
    keys: Path, change: Callable[[Payload], Payload], reason: str
) -> None:
    found = summed(tiny.experiment(per_round=6, rounds=1), keys, spoiled(change))
    (record,) = found.history
    assert [d["client"] for d in record["dropped"]] == [0]
    assert reason in record["dropped"][0]["reason"]
    assert record["clients"] == [1, 2, 3, 4, 5]


def test_a_client_with_another_key_is_left_out(keys: Path, tmp_path: Path) -> None:
    make_keys(tmp_path)
    own, other = ClientProtection(keys), ClientProtection(tmp_path)

    class Mixed(Serial):
        def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
            done: list[Done] = []
            for job in jobs:
                self.runtime.client_side = other if job.task.client == 0 else own
                done += super().perform([job])
            return done

    (record,) = summed(tiny.experiment(per_round=6, rounds=1), keys, Mixed).history
    assert [d["client"] for d in record["dropped"]] == [0]
    assert "made with another key" in record["dropped"][0]["reason"]


def test_if_the_first_client_cannot_decrypt_the_next_does(keys: Path) -> None:
    class Forgetful(Serial):
        def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
            (job, *_) = jobs
            if job.task.action == OPEN_SUM and job.task.client < 2:
                return [Done(None, job.state, "has lost the key")]
            return list(super().perform(jobs))

    experiment = tiny.experiment(per_round=6, rounds=1)
    found = summed(experiment, keys, Forgetful)
    assert found.metrics["clients"] == [0, 1, 2, 3, 4, 5]
    assert far(found, run(experiment)) < 1e-4


@pytest.mark.parametrize("wrong", [lambda t: t[:-1], lambda t: t * torch.nan], ids=["short", "nan"])
def test_a_client_that_decrypts_nonsense_is_not_believed(keys: Path, wrong: Any) -> None:
    class Lying(Serial):
        def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
            done = list(super().perform(jobs))
            (job, *_), (one, *_) = jobs, done
            if job.task.action == OPEN_SUM and job.task.client == 0 and one.payload is not None:
                tensors = {name: wrong(t) for name, t in one.payload.tensors.items()}
                return [Done(Payload(tensors), one.state)]
            return done

    experiment = tiny.experiment(per_round=6, rounds=1)
    found = summed(experiment, keys, Lying)
    assert far(found, run(experiment)) < 1e-4


def test_if_nobody_can_decrypt_the_reason_is_said(keys: Path) -> None:
    class Keyless(Serial):
        def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
            if jobs[0].task.action == OPEN_SUM:
                return [Done(None, job.state, "has lost the key") for job in jobs]
            return list(super().perform(jobs))

    said = r"no valid update .*no client could decrypt the sum \(has lost the key\)"
    with pytest.raises(RunStopped, match=said):
        summed(tiny.experiment(rounds=1), keys, Keyless)


def test_a_sum_over_one_client_is_not_opened(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Deserted(Serial):
        def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
            assert all(job.task.action != OPEN_SUM for job in jobs)
            done = list(super().perform(jobs))
            return [done[0], *(Done(None, job.state, "gone") for job in jobs[1:])]

    with pytest.raises(RunStopped, match="no valid update in 1 round"):
        summed(tiny.experiment(rounds=1), keys, Deserted)
    assert "a sum over fewer than two clients would show one client's update" in caplog.text


def test_a_client_that_sends_nan_is_left_out(keys: Path) -> None:
    method: FedAvg[Any] = FedAvg(local=tiny.quick(lr=1e30, epochs=5))
    with pytest.raises(RunStopped, match="sent NaN or infinity in model/"):
        summed(tiny.experiment(method, rounds=1), keys)


class Chatty(FedAvg[Any]):
    """Sends more than it declares."""

    def reply(self, run: Any) -> Payload:
        sent = super().reply(run)
        return Payload({**sent.tensors, "extra/w": torch.ones(1)}, sent.scalars)


def test_what_a_method_does_not_declare_does_not_leave(keys: Path) -> None:
    with pytest.raises(RunStopped, match="sent 'extra/w', which is not declared"):
        summed(tiny.experiment(Chatty(local=tiny.quick()), rounds=1), keys)


class Discreet(FedAvg[Any]):
    """Reads single updates, and says so in its form alone."""

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        return super().train_form(task, model, classes).singly("it looks at each")


def test_a_form_of_single_updates_is_refused_before_anything_is_sent(keys: Path) -> None:
    with pytest.raises(FedtailError, match="cannot be protected: it looks at each"):
        summed(tiny.experiment(Discreet(local=tiny.quick())), keys)


def test_a_round_of_one_client_is_refused() -> None:
    with pytest.raises(FedtailError, match="a round of one client cannot be encrypted"):
        tiny.experiment(per_round=1, encrypt=True)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (FedAvg(buffers="first"), "takes the statistics of one client"),
        (GBME(), "each client's own index; gbme-p sends it with noise"),
        (GBME(grouping="label", prior=GlobalPrior()), "each client's own class counts"),
        (Method.model_validate("climb"), "weighs clients by their own losses"),
    ],
)
def test_a_refusal_says_why(method: Method[Any], reason: str) -> None:
    with pytest.raises(FedtailError, match=reason):
        tiny.experiment(method, encrypt=True)


def test_an_encrypted_run_resumes(tmp_path: Path, keys: Path) -> None:
    experiment = tiny.experiment(encrypt=True, keys=str(keys))
    whole = run(experiment, out=tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    again = run(experiment.but(keys=""), out=tmp_path / "run", resume=True)
    assert far(again, whole) < 1e-4


def test_what_is_held_out_is_counted_under_encryption(keys: Path) -> None:
    # The server adds ciphertexts of the counts; rounded, they are the counts. The models differ by
    # less than 1e-4, so the loss does by little more; no sample lies that close to a border.
    experiment = tiny.experiment(rounds=2, validation=0.5, keep="best")
    plain = run(experiment)
    found = run(experiment.but(encrypt=True, keys=str(keys)))
    for mine, theirs in zip(found.history, plain.history, strict=True):
        ours, other = mine["validation"], theirs["validation"]
        assert (ours["per_class"], ours["samples"]) == (other["per_class"], other["samples"])
        assert ours["loss"] == pytest.approx(other["loss"], abs=1e-3)
        assert ours["bytes_up"] > other["bytes_up"]
