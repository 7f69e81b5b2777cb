"""Worker processes that fail, die or hang."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import odd_methods
import pytest
import tiny
import torch
from torch import nn
from torch.multiprocessing import get_context

from fedtail import FedAvg, FedtailError, Method, RunStopped, run
from fedtail.engines import Dropped, Embedded
from fedtail.engines.pipes import PIPE_BYTES, receive, send, share, shared
from fedtail.engines.pool import RESTARTS, work_orders
from fedtail.errors import ClientFailed
from fedtail.protocol import Payload, Task, grouped
from fedtail.setting import prepare

QUICK = {"local": tiny.quick()}
LIGHT = {"creff": {"features": 5, "match_steps": 5, "head_epochs": 5}, "ccvr": {"samples": 9}}


def chosen(method: Any, **fields: Any) -> Any:
    return tiny.experiment(method, **{"workers": 1, "per_round": 6, "rounds": 1, **fields})


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_traceback_of_a_worker_arrives() -> None:
    line = tiny.line_of(odd_methods, "return mispelled")
    with pytest.raises(ClientFailed) as caught:
        run(chosen(odd_methods.Mistyped(**QUICK)))
    assert str(caught.value) == (
        f"NameError: name 'mispelled' is not defined (odd_methods.py, line {line}): "
        "client 2, action 'train', round 1"
    )
    (note,) = caught.value.__notes__
    assert f'odd_methods.py", line {line}, in prepare' in note
    assert note.startswith("In a worker process:\nTraceback (most recent call last):")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_wrong_use_is_one_sentence_and_a_drop_is_as_in_one_process() -> None:
    runtime = prepare(chosen(odd_methods.Refusing(**QUICK))).runtime()
    tasks = [Task(client, "ask", Payload()) for client in range(3)]
    pool = Embedded(runtime, 1)
    try:
        train = [Task(0, "train", Payload(grouped("model", runtime.model.tensors())))]
        with pytest.raises(FedtailError, match=r"^this method needs a linear classifier\n"):
            pool.perform(train, 1, 1)
    finally:
        pool.close()
    for method, reason in (
        (odd_methods.Unsendable(), "sent what no message can carry (TypeError: cannot pickle "),
        (odd_methods.Raising(), "ValueError: out of luck (odd_methods.py, line "),
    ):
        pool = Embedded(prepare(chosen(method)).runtime(), 1, drop=True)
        try:
            (dropped,) = pool.perform(tasks, 2, 2).dropped
        finally:
            pool.close()
        assert isinstance(dropped, Dropped)
        assert (dropped.client, dropped.raised) == (1, isinstance(method, odd_methods.Raising))
        assert dropped.reason.startswith(reason)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["scaffold", "gbme", "creff", "ccvr", "climb", "ifca"])
def test_sums_of_blocks_give_the_records_of_one_process(name: str) -> None:
    # Six clients and one worker: blocks of two. States, parts, rows and single updates all pass.
    method: Method[Any] = Method.model_validate(
        {"name": name, "local": tiny.quick(), **LIGHT.get(name, {})}
    )
    alone, pooled = (run(chosen(method, workers=n, rounds=2)) for n in (0, 1))
    assert pooled.digest == alone.digest
    assert [{**r, "seconds": 0} for r in pooled.history] == [
        {**r, "seconds": 0} for r in alone.history
    ]


def test_sharing_leaves_what_is_shared_where_it_is() -> None:
    x, model = torch.arange(4), nn.Linear(2, 1)
    tied = nn.Parameter(torch.arange(3.0), requires_grad=False)
    view, before = x.numpy(), x.data_ptr()
    told = share({"x": x, "tied": [tied, tied], "model": model, "n": 1})
    assert x.data_ptr() == before and view.tolist() == [0, 1, 2, 3]
    found: Any = shared(told)
    assert found["x"].is_shared() and torch.equal(found["x"], x)
    first, second = found["tied"]
    assert first is second and isinstance(first, nn.Parameter) and not first.requires_grad
    assert torch.equal(found["model"].weight, model.weight)
    assert found["model"].weight.requires_grad and found["n"] == 1


def test_data_stays_where_it_is_when_workers_share_it() -> None:
    runtime = prepare(chosen(FedAvg(**QUICK))).runtime()
    before = runtime.federation.train.y.data_ptr()
    pool = Embedded(runtime, 1)
    pool.close()
    assert runtime.federation.train.y.data_ptr() == before


def test_objects_with_tensors_through_a_pipe() -> None:
    ours, theirs = get_context("spawn").Pipe()
    large = torch.arange(PIPE_BYTES // 4 + 5, dtype=torch.float32)
    sent: dict[str, Any] = {
        "large": large,
        "half": torch.ones(3, dtype=torch.bfloat16),
        "none": torch.zeros(0, 2),
        "number": torch.tensor(7),
        "list": [Payload({"a": large[::2]}, {"n": 1}), True],
    }
    thread = threading.Thread(target=send, args=(ours, sent))
    thread.start()
    found = receive(theirs)
    thread.join()
    assert torch.equal(found["large"], large) and torch.equal(found["half"], sent["half"])
    assert found["none"].shape == (0, 2) and int(found["number"]) == 7
    assert torch.equal(found["list"][0].tensors["a"], large[::2])
    assert found["list"][1:] == [True] and found["list"][0].scalars == {"n": 1}
    with pytest.raises(TypeError, match="sparse"):
        send(ours, large.to_sparse())


@pytest.mark.timeout(120)
def test_a_worker_that_dies_is_started_again_and_the_bits_are_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert RESTARTS == 1
    method = odd_methods.Dying(marks=str(tmp_path), **QUICK)
    result = run(chosen(method, rounds=2))
    assert len(list(tmp_path.iterdir())) == 1
    assert result.digest == run(chosen(FedAvg(**QUICK), workers=0, rounds=2)).digest
    assert [m for m in caplog.messages if not m.startswith("no client holds")] == [
        "a worker process ended with exit code -9 (-9 often means that memory ran out: use fewer "
        "--workers): clients 2, 3, action 'train', round 1; it is started again, and does this "
        "once more"
    ]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_script_without_a_guard_is_told_what_it_lacks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from torch import nn\n"
        "from fedtail import Experiment, FedAvg, run\n"
        "class Net(nn.Sequential): pass\n"
        "net = Net(nn.Flatten(), nn.Linear(64, 10))\n"
        "run(Experiment(method=FedAvg(), model=net, rounds=1, clients=2, workers=2))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "fedtail.errors.RunStopped: a worker process ended with exit code 1 (a script whose "
        "processes import it does its work under `if __name__ == '__main__':`)"
    )


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_second_death_stops_the_run(tmp_path: Path) -> None:
    method = odd_methods.Dying(marks=str(tmp_path), times=2, **QUICK)
    said = (
        "a worker process ended with exit code -9 .* clients 2, 3, .*one was started again before"
    )
    with pytest.raises(RunStopped, match=said):
        run(chosen(method))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_worker_that_hangs_counts_as_dead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    method = odd_methods.Dying(marks=str(tmp_path), hangs=True, **QUICK)
    result = run(chosen(method, task_seconds=10))
    assert result.digest == run(chosen(FedAvg(**QUICK), workers=0)).digest
    assert "a worker process took longer than task_seconds = 10: clients 2, 3, action 'train'" in (
        caplog.text
    )
    with pytest.raises(RunStopped, match="took longer than task_seconds = 10: clients 2, 3"):
        (tmp_path / "twice").mkdir()
        run(chosen(method.but(marks=str(tmp_path / "twice"), times=2), task_seconds=10))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_network_that_fails_in_the_test_is_told_with_its_place() -> None:
    with pytest.raises(ClientFailed, match=r"ArithmeticError: too many \(odd_methods.py, line"):
        run(chosen(FedAvg(**QUICK), model=odd_methods.brittle_model))


def test_a_worker_ends_without_a_word_when_its_run_is_killed() -> None:
    # A kill closes the run's end of the pipe; as an answer was not read, that is a reset.
    runtime = prepare(chosen(FedAvg(**QUICK))).runtime()
    ours, theirs = get_context("spawn").Pipe()

    def give_orders() -> None:
        ours.send(share(runtime))
        assert ours.recv() == ""
        send(ours, ("test", runtime.model.tensors(), runtime.test_ranges()[0]))
        ours.poll(30)
        ours.close()

    run = threading.Thread(target=give_orders)
    run.start()
    work_orders(theirs, [], 1, drop=False)
    run.join()
