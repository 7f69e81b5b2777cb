"""The process that stays beside a node: found, started, started again, and never left over."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest
import torch
from flwr.app import ConfigRecord, Context, RecordDict
from local_grid import LocalGrid

from fedtail import FedtailError
from fedtail.engines.flower import client_app, relay, resident
from fedtail.engines.flower.bridge import to_records
from fedtail.engines.flower.link import receive_arrays, send_arrays
from fedtail.engines.flower.processes import alive, residents, residents_folder, stop
from fedtail.engines.flower.relay import NoResident, Resident, relayed
from fedtail.engines.flower.rpc import ask
from fedtail.engines.flower.scrubbing import PublicError
from fedtail.engines.wire import unpack

TARGET = "answering:answer"


def until(ready: Callable[[], object], seconds: float = 30) -> None:
    limit = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.fixture
def node() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a node."""
    made = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield made
    made.kill()
    made.wait()


@pytest.fixture
def beside(node: subprocess.Popen[bytes], tmp_path: Path) -> Iterator[Resident]:
    """The resident of that node; none is left after the test."""
    residents_folder(tmp_path).mkdir(mode=0o700)
    yield Resident(residents_folder(tmp_path) / "1", node.pid)
    node.kill()
    node.wait()
    left = residents(tmp_path)
    stop((), left)
    assert not any(alive(one.pid) for one in left)


def context(run: int = 1) -> Context:
    return Context(run, 7, {"partition-id": 3}, RecordDict(), {"lr": 0.1})


def asked(beside: Resident, text: str = "", told: Context | None = None) -> int:
    """Return the number of the process that answers."""
    _, said = beside.ask(({}, text), told or context(), TARGET, {"order": "o"})
    pid, *rest = said.split()
    assert rest == ["o", "3"]
    return int(pid)


def test_one_process_answers_all_messages_of_a_run(beside: Resident) -> None:
    pid = asked(beside)
    assert pid != os.getpid()
    assert asked(beside) == pid
    arrays = {
        "0/model": {"b": np.arange(6.0).reshape(2, 3).T, "a": np.zeros((0, 2)), "": np.array(3)},
        "1/": {"odd\nname": np.array([True, False])},
    }
    back, _ = beside.ask((arrays, ""), context(), TARGET, {})
    assert [list(group) for group in back.values()] == [["b", "a", ""], ["odd\nname"]]
    for group, held in arrays.items():
        for name, array in held.items():
            assert back[group][name].dtype == array.dtype
            np.testing.assert_array_equal(back[group][name], array)


def test_only_the_owner_reaches_it(beside: Resident) -> None:
    asked(beside)
    assert beside.folder.stat().st_mode & 0o777 == 0o700
    assert beside.place.stat().st_mode & 0o777 == 0o600


def test_another_run_gets_another_process(beside: Resident) -> None:
    first = asked(beside)
    second = asked(beside, told=context(run=2))
    assert second != first
    until(lambda: not alive(first))
    assert asked(beside, told=context(run=2)) == second


def test_one_that_died_is_started_again(beside: Resident, tmp_path: Path) -> None:
    pid = asked(beside)
    psutil.Process(pid).kill()
    until(lambda: not alive(pid))
    assert asked(beside) != pid
    asked(beside, f"once {tmp_path / 'died'}")  # in the middle of its work
    assert (tmp_path / "died").exists()


def test_one_that_always_dies_is_said(beside: Resident) -> None:
    with pytest.raises(PublicError, match="ended 3 times before it had answered"):
        asked(beside, "die")


def test_an_error_is_answered_without_its_text(beside: Resident) -> None:
    _, said = beside.ask(({}, "raise"), context(), TARGET, {})
    notes = json.loads(said)
    assert notes["kind"] == "failed"
    assert notes["reason"].startswith("ValueError (answering.py, line ")
    assert "0815" not in said
    asked(beside)


def test_it_ends_with_its_node_and_leaves_nothing(
    beside: Resident, node: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    pid = asked(beside)
    failures: list[PublicError] = []

    def work() -> None:
        try:
            asked(beside, f"sleep {tmp_path / 'busy'}")
        except PublicError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until((tmp_path / "busy").exists)  # it ends in the middle of its work, too
    node.kill()
    node.wait()
    until(lambda: not alive(pid), 5)
    thread.join(60)
    assert len(failures) == 1
    until(lambda: not beside.folder.exists(), 5)


def test_it_ends_when_whoever_asked_is_gone(beside: Resident, tmp_path: Path) -> None:
    pid = asked(beside)
    with beside.reach() as link:
        job = {"run": 1, "target": TARGET, "given": {"order": "o"}}
        words = {"job": job, "text": f"sleep {tmp_path / 'busy'}", "context": plain()}
        send_arrays(link, words, {relay.STATE_GROUP: {}})
        until((tmp_path / "busy").exists)
        assert alive(pid)
    until(lambda: not alive(pid), 5)
    assert asked(beside) != pid


def plain() -> dict[str, Any]:
    return relay.plain(context())


def test_it_ends_when_nobody_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resident, "IDLE_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        resident.serve_node(listener, cast(Any, SimpleNamespace(asking=None)))


def test_states_in_flowers_context_come_and_go(beside: Resident) -> None:
    told = context()
    told.state["1@1"] = ConfigRecord({"state": b"old"})
    told.state["theirs"] = ConfigRecord({"state": b"another app's"})
    asked(beside, "keep new", told)
    assert {n: r["state"] for n, r in told.state.config_records.items()} == {
        "theirs": b"another app's",
        "1@2": b"new",
    }


@pytest.mark.parametrize("spoil", ["open", "link", "long"])
def test_a_place_that_others_may_look_into_is_not_used(spoil: str, tmp_path: Path) -> None:
    folder = tmp_path / "1"
    if spoil == "open":
        folder.mkdir(mode=0o755)
    elif spoil == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder = tmp_path / ("x" * 120)
    tmp_path.chmod(0o700)
    with pytest.raises(NoResident, match=r"only its owner|AF_UNIX path too long"):
        asked(Resident(folder, os.getpid()))


def test_what_is_sent_is_a_payload_of_the_wire() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        send_arrays(ours, {"text": "t"}, {"0/model": {"w": np.arange(3.0)}})
        data = theirs.recv(10_000)
        send_arrays(ours, {"text": "t"}, {})
        assert receive_arrays(theirs) == ({"text": "t"}, {})
    payload = unpack(data[8:])
    assert int.from_bytes(data[:8], "little") == len(data) - 8
    assert payload.scalars == {"text": "t", "names": [["0/model", ["w"]]]}
    assert torch.equal(payload.tensors["0"], torch.arange(3.0, dtype=torch.float64))


def test_a_message_goes_through_the_resident(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, beside: Resident
) -> None:
    monkeypatch.setattr(relay, "is_short_lived", lambda: True)
    monkeypatch.setattr(relay, "folder_of", lambda context: beside.folder)
    monkeypatch.setattr(os, "getppid", lambda: beside.node)
    grid = LocalGrid(client_app("no.such:model", "no.such:data"), 1)
    (answer,) = ask(grid, "train", {100: to_records([], {"kind": "hello"})}, 60).values()
    # The data are looked for there, to be counted, and not here.
    assert answer.reason.startswith("ModuleNotFoundError")
    (there,) = residents(tmp_path)
    assert there.pid != os.getpid()


def test_elsewhere_the_work_is_done_in_this_process() -> None:
    assert not relay.is_short_lived()
    grid = LocalGrid(relayed(TARGET, order="o"), 1)
    reply = grid.app(message_of(grid), grid.contexts[100])
    assert str(reply.content.config_records["fedtail"]["json"]) == f"{os.getpid()} o 0"


def message_of(grid: LocalGrid) -> Any:
    grid.silent = {100}
    ask(grid, "train", {100: to_records([], {"kind": "hello"})}, 0.0)
    return grid.sent[0]


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (("a:b", "c"), "'c' is not of the form 'module:name'"),
        (("a:b", print), "name all of model, data and augment, or none"),
    ],
)
def test_parts_that_are_named_badly_are_refused(parts: Any, sentence: str) -> None:
    with pytest.raises(FedtailError, match=sentence):
        client_app(*parts)
