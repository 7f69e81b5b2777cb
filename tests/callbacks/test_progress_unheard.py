"""A display that nobody sees any more does not end the run that it shows."""

from __future__ import annotations

import os
import sys

import pytest
from rich.console import Console
from tracked import info, play

from fedtail.callbacks import Progress


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_from_python_does_not_end_the_run(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        progress = Progress()
        progress.console = Console(file=progress.console.file, force_terminal=terminal)
        play(progress, info(), range(1, 5), ended=True)
        monkeypatch.undo()


def test_progress_without_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    progress = Progress()
    monkeypatch.undo()
    play(progress, info(), range(1, 5), ended=True)
    progress.console.file.close()
