"""After a power cut at any instant the run goes on to the same model, and from no earlier round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from power_cut import Disk, Model, Recorder, lay_out, read_in

from fedtail import Callback, Experiment, Scaffold, run
from fedtail.callbacks import RunInfo
from fedtail.folder import RunFolder

MANIFEST = "run/checkpoint/manifest-"
JOURNAL = "run/checkpoint/clients.jsonl"


class Listening(Callback):
    """Keeps how far the run was when it started, and what went wrong."""

    def __init__(self) -> None:
        self.done = 0
        self.warnings: list[str] = []

    def on_start(self, info: RunInfo) -> None:
        self.done = info.done

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


def described() -> Experiment:
    """Return three rounds in which the state of a server and of two clients changes."""
    return tiny.experiment(Scaffold(local=tiny.quick(steps=1)), per_round=2)


def scores(folder: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: r[key] for key in r if key != "seconds"} for r in records]


def power_cuts(events: list[Any], start: Disk | None = None) -> list[tuple[Disk, int]]:
    """Return every different disk that a power cut may leave, and the round it must go on from.

    Parameters
    ----------
    events
        What was done to files.
    start
        The disk before that, if it was not empty, with one round saved.
    """
    model, saved = Model.of(start or {}), 1 if start else 0
    found: dict[tuple[Any, ...], tuple[Disk, int]] = {}
    for event in [("sync", "."), *events]:
        model.apply(event)
        if event == ("sync", "run/checkpoint"):
            saved = max([saved, *(int(n[-11:-5]) for n in model.names if n.startswith(MANIFEST))])
        for disk in model.disks():
            # What was written beside its place is never read: one such disk stands for its like.
            key = tuple(sorted((n, c) for n, c in disk.items() if not n.endswith((".tmp", "lock"))))
            found[key] = (disk, max(saved, found.get(key, ({}, 0))[1]))
    return list(found.values())


def recorded(folder: Path, patch: pytest.MonkeyPatch, resume: bool = False) -> tuple[Any, Any]:
    """Run in a folder, and return the result with everything that was done to files."""
    with patch.context() as patched:
        recorder = Recorder(folder, patched)
        return run(described(), out=folder / "run", resume=resume), recorder.events


def must_go_on(cuts: list[tuple[Disk, int]], whole: Path, digest: str) -> None:
    for number, (disk, saved) in enumerate(cuts):
        # Execute
        root, heard = whole.parent / str(number), Listening()
        root.mkdir()
        lay_out(disk, root)
        begun = RunFolder(root / "run").experiment.exists()
        result = run(described(), out=root / "run", resume=begun, callbacks=[heard])

        # Assert
        assert result.digest == digest
        assert scores(root / "run") == scores(whole / "run")
        assert heard.done >= saved
        assert [w for w in heard.warnings if "starts again" not in w] == []
        assert not heard.warnings or not heard.done


def test_a_power_cut_at_any_instant_loses_no_saved_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prepare: one run, and every disk that a power cut in it may leave.
    (tmp_path / "whole").mkdir()
    whole, events = recorded(tmp_path / "whole", monkeypatch)
    model = Model()
    for event in events:
        model.apply(event)
    assert model.now() == read_in(tmp_path / "whole"), "something was written past the recorder"
    cuts = power_cuts(events)
    assert {saved for _, saved in cuts} == {0, 1, 2, 3}
    must_go_on(cuts, tmp_path / "whole", whole.digest)


def test_a_second_power_cut_in_the_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prepare: a first cut between the line of the clients' states of round 2 and the manifest, so
    # that the resumed run cuts the line off and writes it again.
    (tmp_path / "whole").mkdir()
    whole, events = recorded(tmp_path / "whole", monkeypatch)
    first = next(
        disk
        for disk, _ in power_cuts(events)
        if (disk.get(JOURNAL) or b"").count(b"\n") == 2 and f"{MANIFEST}000002.json" not in disk
    )
    assert f"{MANIFEST}000001.json" in first
    lay_out(first, tmp_path / "cut")
    _, events = recorded(tmp_path / "cut", monkeypatch, resume=True)
    ((_, _, length), *_) = [event for event in events if event[:2] == ("cut", JOURNAL)]
    assert length == (first[JOURNAL] or b"").index(b"\n") + 1

    # Execute, assert
    cuts = power_cuts(events, first)
    assert {saved for _, saved in cuts} == {1, 2, 3}
    must_go_on(cuts, tmp_path / "whole", whole.digest)
