"""Nothing is lost: a run that was interrupted, or killed at any moment, ends as if it never was."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import killing
import numpy as np
import pytest
import tiny

from fedtail import (
    Arrays,
    Callback,
    Experiment,
    FedAvg,
    FedtailError,
    Method,
    ModelState,
    Result,
    run,
)
from fedtail.callbacks import Record
from fedtail.described import load_experiment, make_experiment
from fedtail.plugins import load_plugins

ROUNDS = 8

PLUGIN = '''
from dataclasses import dataclass, field, replace

import torch

from fedtail import FedAvg, Method, ModelState, Payload


@dataclass(frozen=True)
class Drift(ModelState):
    """A model that remembers: its velocity, and how often it was aggregated."""

    velocity: dict = field(default_factory=dict)
    count: int = 0


@Method.register("remembering")
class Remembering(FedAvg[Drift]):
    """Server momentum, and clients that drag their last model along."""

    def new_state(self, tensors):
        return Drift(tensors, velocity={n: torch.zeros_like(t) for n, t in tensors.items()})

    def aggregate(self, s, found, server):
        new = super().aggregate(s, found, server)
        velocity = {n: 0.5 * s.velocity[n] + (new.model[n] - s.model[n]) for n in s.model}
        model = {n: s.model[n] + velocity[n] for n in s.model}
        return replace(new, model=model, velocity=velocity, count=s.count + 1)

    def reply(self, run):
        sent = super().reply(run)
        own = run.client.state
        mixed = {n: ((t + own.get(n, t)) / 2).to(t.dtype) for n, t in sent.tensors.items()}
        own.update({n: t.clone() for n, t in mixed.items()})
        return Payload(mixed, sent.scalars)
'''


class Stop(Exception):
    """An interruption."""


class StopIn(Callback):
    """Interrupts the run in a round, after it was recorded and before it was saved."""

    def __init__(self, round: int) -> None:
        self.round = round

    def on_snapshot(self, snapshot: Any) -> None:
        if snapshot.round == self.round:
            raise Stop


def scores(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# Interrupted in this process


def stateful(**fields: Any) -> Experiment:
    method: FedAvg[ModelState] = FedAvg(local=tiny.quick(momentum=0.9), buffers="local")
    return tiny.experiment(method, tiny.dropout_model, rounds=6, **fields)


def interrupted(folder: Path, at: int, **fields: Any) -> None:
    with pytest.raises(Stop):
        run(stateful(**fields), out=folder, callbacks=[StopIn(at)])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """Return six rounds without interruption."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return run(stateful(), out=folder), folder


@pytest.mark.parametrize("at", [1, 4, 6])
def test_an_interrupted_run_ends_as_if_it_never_was(
    at: int, whole: tuple[Result, Path], tmp_path: Path
) -> None:
    # Prepare: round `at` is in metrics.jsonl and not in the checkpoint.
    interrupted(tmp_path / "run", at)
    assert killing.rounds_done(tmp_path / "run") == at - 1
    assert len(lines(tmp_path / "run")) == at

    # Execute
    result = run(stateful(), out=tmp_path / "run", resume=True)

    # Assert
    assert result.digest == whole[0].digest
    assert scores(lines(tmp_path / "run")) == scores(lines(whole[1]))
    assert scores(result.history) == scores(whole[0].history)
    for name in ("model.safetensors", "experiment.toml", "split.json"):
        assert (tmp_path / "run" / name).read_bytes() == (whole[1] / name).read_bytes()


def test_a_run_may_be_interrupted_again_and_again(
    whole: tuple[Result, Path], tmp_path: Path
) -> None:
    interrupted(tmp_path / "run", 2)
    for at in (3, 3, 5):
        with pytest.raises(Stop):
            run(stateful(), out=tmp_path / "run", resume=True, callbacks=[StopIn(at)])
    result = run(stateful(), out=tmp_path / "run", resume=True)
    assert result.digest == whole[0].digest
    assert scores(lines(tmp_path / "run")) == scores(lines(whole[1]))


def test_checkpoints_every_so_many_rounds(whole: tuple[Result, Path], tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 5, checkpoint_every=3)
    assert killing.rounds_done(tmp_path / "run") == 3
    result = run(stateful(checkpoint_every=2), out=tmp_path / "run", resume=True)
    assert result.digest == whole[0].digest
    assert [record["round"] for record in lines(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]


def test_a_finished_run_may_be_resumed(whole: tuple[Result, Path], tmp_path: Path) -> None:
    shutil.copytree(whole[1], tmp_path / "run")
    result = run(stateful(), out=tmp_path / "run", resume=True)
    assert result.digest == whole[0].digest
    assert lines(tmp_path / "run") == lines(whole[1])


@pytest.mark.parametrize("torn", ['{"round": 4, "accur', '{"round": 4}', "\xff"])
def test_a_torn_last_line(torn: str, whole: tuple[Result, Path], tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 4)
    path = tmp_path / "run" / "metrics.jsonl"
    kept = path.read_bytes().splitlines(keepends=True)[:3]
    path.write_bytes(b"".join(kept) + torn.encode("latin-1"))
    result = run(stateful(), out=tmp_path / "run", resume=True)
    assert result.digest == whole[0].digest
    assert scores(lines(tmp_path / "run")) == scores(lines(whole[1]))


def test_left_over_files(whole: tuple[Result, Path], tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 4)
    for name in ("checkpoint/.manifest-000004.json.1.tmp", ".metrics.jsonl.1.tmp"):
        (tmp_path / "run" / name).write_text("{")
    (tmp_path / "run" / "checkpoint" / "server-000004.safetensors").write_bytes(b"half")
    assert run(stateful(), out=tmp_path / "run", resume=True).digest == whole[0].digest


def refused(folder: Path) -> str:
    with pytest.raises(FedtailError) as error:
        run(stateful(), out=folder, resume=True)
    return str(error.value)


class Listening(Callback):
    """Keeps what went wrong."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


def resumed(folder: Path) -> tuple[Result, list[str]]:
    heard = Listening()
    return run(stateful(), out=folder, resume=True, callbacks=[heard]), heard.warnings


def test_a_damaged_checkpoint_is_said_and_the_one_before_used(
    whole: tuple[Result, Path], tmp_path: Path
) -> None:
    interrupted(tmp_path / "run", 4)
    path = tmp_path / "run" / "checkpoint" / "server-000003.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    result, warnings = resumed(tmp_path / "run")
    assert warnings == [
        f"the checkpoint file '{path}' is missing, truncated or changed; "
        "the run goes on from the checkpoint of round 2"
    ]
    assert result.digest == whole[0].digest
    assert scores(lines(tmp_path / "run")) == scores(lines(whole[1]))


def test_two_damaged_checkpoints_are_one_sentence(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 4)
    for path in (tmp_path / "run" / "checkpoint").glob("server-*"):
        path.write_bytes(path.read_bytes()[:100])
    assert "no checkpoint is whole" in refused(tmp_path / "run")


def test_a_manifest_of_another_format_is_one_sentence(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 3)
    path = tmp_path / "run" / "checkpoint" / "manifest-000002.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 7}))
    assert "in format 7" in refused(tmp_path / "run")


def test_lost_manifests_are_said_and_the_run_starts_again(
    whole: tuple[Result, Path], tmp_path: Path
) -> None:
    interrupted(tmp_path / "run", 3)
    for path in (tmp_path / "run" / "checkpoint").glob("manifest-*"):
        path.unlink()
    result, warnings = resumed(tmp_path / "run")
    assert warnings == [f"'{tmp_path / 'run'}' has no checkpoint: the run starts again"]
    assert result.digest == whole[0].digest
    assert scores(lines(tmp_path / "run")) == scores(lines(whole[1]))


@pytest.mark.parametrize(("damage", "left"), [("line 2", [1, 3, 4, 5, 6]), ("file", [3, 4, 5, 6])])
def test_damaged_metrics_are_rebuilt_as_far_as_they_can_be(
    damage: str, left: list[int], whole: tuple[Result, Path], tmp_path: Path
) -> None:
    # The checkpoint of round 3 has the record of round 3 itself.
    interrupted(tmp_path / "run", 4)
    path = tmp_path / "run" / "metrics.jsonl"
    if damage == "file":
        path.unlink()
    else:
        text = path.read_text().splitlines(keepends=True)
        path.write_text("".join([text[0], "x" + text[1], *text[2:]]))
    result, warnings = resumed(tmp_path / "run")
    lost = ", ".join(str(n) for n in (1, 2, 3) if n not in left)
    assert warnings == [f"'{path}' is damaged: what it held of round {lost} is lost"]
    assert result.digest == whole[0].digest
    assert [record["round"] for record in lines(tmp_path / "run")] == left
    assert scores(lines(tmp_path / "run")) == [
        record for record in scores(lines(whole[1])) if record["round"] in left
    ]
    assert scores(result.history) == scores(lines(tmp_path / "run"))


def test_a_finished_run_that_lost_its_metrics_has_its_last_round(
    whole: tuple[Result, Path], tmp_path: Path
) -> None:
    shutil.copytree(whole[1], tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    result, _ = resumed(tmp_path / "run")
    assert result.digest == whole[0].digest
    assert result.metrics["round"] == 6


@pytest.mark.parametrize(
    ("change", "what"), [("x_train", "training set"), ("x_test", "test set"), ("owner", "split")]
)
def test_other_data_are_refused(change: str, what: str, tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 3)
    arrays = tiny.arrays()
    if change == "owner":
        arrays["client_train"] = arrays["client_train"][::-1].copy()
    else:
        arrays[change].flat[5] ^= 1
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    with pytest.raises(FedtailError, match=f"holds a run with another {what}: resume it with"):
        run(stateful(data=Arrays(**arrays)), out=tmp_path / "run", resume=True)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before


def test_lost_digests_are_said(whole: tuple[Result, Path], tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 3)
    (tmp_path / "run" / "digests.json").write_text("{")
    result, (warning,) = resumed(tmp_path / "run")
    assert "digests.json' cannot be read: whether data and split are the same" in warning
    assert result.digest == whole[0].digest


def test_a_run_holds_its_folder(tmp_path: Path) -> None:
    class Second(Callback):
        """Resumes the run while it runs."""

        def on_round(self, record: Record) -> None:
            said.append(refused(tmp_path / "run"))

    said: list[str] = []
    run(stateful(), out=tmp_path / "run", callbacks=[Second()])
    assert len(said) == 6
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    assert said[0] == f"'{tmp_path / 'run'}' is in use by {holder}: wait for it, or end it"
    assert not (tmp_path / "run" / "lock").exists()


def test_what_is_not_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match=r"not a run folder: it has no experiment\.toml"):
        run(stateful(), out=tmp_path, resume=True)


# With a plug-in that has to remember

TRUST = "--trust-plugins"


def description(folder: Path, method: str) -> Path:
    """Write an experiment of some rounds with everything that has to be remembered."""
    arrays: dict[str, Any] = dict(tiny.arrays())
    np.savez(folder / "tiny.npz", **arrays)
    (folder / "plugin.py").write_text(PLUGIN)
    (folder / "experiment.toml").write_text(
        f"""
        rounds = {ROUNDS}
        per_round = 4
        device = "cpu"
        plugins = ["{folder / "plugin.py"}"]
        [method]
        name = "{method}"
        buffers = "local"
        local = {{batch_size = 4, momentum = 0.9}}
        [data]
        name = "npz"
        path = "{folder / "tiny.npz"}"
        [model]
        name = "small_cnn"
        width = 4
        norm = "batch"
        [partition]
        name = "natural"
        [augment]
        flip = true
        """
    )
    return folder / "experiment.toml"


@pytest.fixture(scope="module", params=["fedavg", "remembering"])
def described(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, Path]]:
    """Return an experiment file, and the folder of its run without a kill."""
    place = tmp_path_factory.mktemp(request.param)
    file = description(place, request.param)
    plain = load_experiment(file)
    with pytest.MonkeyPatch.context() as patch:
        # What the plug-in registers here is forgotten again: other tests list the registry.
        patch.setattr(Method.registry, "_classes", dict(Method.registry._classes))
        load_plugins(plain["plugins"])
        run(make_experiment(plain), out=place / "whole")
        yield file, place / "whole"


@pytest.mark.parametrize("at", [1, 5])
def test_an_interrupted_description_resumes_to_the_same_bits(
    at: int, described: tuple[Path, Path], tmp_path: Path
) -> None:
    file, whole = described
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        run(make_experiment(load_experiment(file)), out=folder, callbacks=[StopIn(at)])
    run(make_experiment(load_experiment(folder / "experiment.toml")), out=folder, resume=True)
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert scores(lines(folder)) == scores(lines(whole))


# Killed, in a process of its own


# After how many saved rounds the process is killed, and the longest delay after that; -1: at once.
MOMENTS = {
    "at the start": (-1, 0.2),
    "in the first round": (0, 0.05),
    "between": (3, 0.02),
    "late": (ROUNDS - 1, 0.02),
    "at the end": (ROUNDS, 0.01),
}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("moment", list(MOMENTS))
def test_a_run_that_is_killed_resumes_to_the_same_bits(
    moment: str, described: tuple[Path, Path], tmp_path: Path
) -> None:
    # Prepare: a real process, and a real kill at a random moment.
    file, whole = described
    folder, log = tmp_path / "run", tmp_path / "log"
    after, longest = MOMENTS[moment]
    delay = random.Random(moment).uniform(0, longest)
    process = killing.start(["run", str(file), TRUST, "--out", str(folder)], log)
    if after == 0:
        killing.kill_when(process, (folder / "metrics.jsonl").exists, delay)
    else:
        killing.kill_when(process, lambda: killing.rounds_done(folder) >= after, delay)
    # Only the last round may be faster than the one who watches it.
    assert process.exitcode == -9 or after >= ROUNDS - 1, log.read_text()

    # Execute
    begun = (folder / "experiment.toml").exists()
    arguments = ["--resume", str(folder)] if begun else [str(file), "--out", str(folder)]
    again = killing.start(["run", TRUST, *arguments], log)
    again.join(60)

    # Assert
    assert again.exitcode == 0, log.read_text()
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert scores(lines(folder)) == scores(lines(whole))


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("described", ["remembering"], indirect=True)
def test_the_console_command_resumes(described: tuple[Path, Path], tmp_path: Path) -> None:
    # The same through the installed command, once: what a user types.
    file, whole = described
    folder = tmp_path / "run"
    process = killing.start(["run", str(file), TRUST, "--out", str(folder)], tmp_path / "log")
    killing.kill_when(process, lambda: killing.rounds_done(folder) >= 3, 0.0)
    command = [str(Path(sys.executable).parent / "fedtail"), "run", TRUST, "--resume", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


class Recording(Callback):
    """Keeps how far the run was when it started."""

    rounds: list[int]

    def __init__(self) -> None:
        self.rounds = []

    def on_round(self, record: Record) -> None:
        self.rounds.append(record["round"])


def test_a_resumed_run_does_not_do_again_what_is_done(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 5)
    seen = Recording()
    run(stateful(), out=tmp_path / "run", resume=True, callbacks=[seen])
    assert seen.rounds == [5, 6]
