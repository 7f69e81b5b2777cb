"""The command line, called in this process, as a user at 80 columns without a terminal sees it."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from fedtail.cli import main

PLUGIN = '''
from pathlib import Path

from fedtail import FedAvg, Method


@Method.register("mine")
class Mine(FedAvg):
    """My own."""

    family = "own"
    paper = "none"


@Method.register("fragile")
class Fragile(FedAvg):
    """Fails in round 2 for as long as there is a file called broken."""

    family = "own"
    paper = "none"

    def aggregate(self, s, found, server):
        if server.round == 2 and Path("broken").exists():
            raise ZeroDivisionError("nothing to divide by")
        return super().aggregate(s, found, server)
'''


@dataclass(frozen=True)
class Outcome:
    """What one command left."""

    code: int
    out: str
    err: str


def fedtail(*words: str, columns: int = 80) -> Outcome:
    """Run one command."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["fedtail", *words]),
        patch.object(logging.lastResort, "formatter", None),  # it is the command's own
        patch.dict(os.environ, COLUMNS=str(columns)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int)
    return Outcome(code, out.getvalue(), err.getvalue())


def write_npz(path: Path, **changes: np.ndarray) -> str:
    """Write forty samples of four classes, as three natural clients, with some arrays changed."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x_train": rng.normal(size=(40, 5)).astype(np.float32),
        "y_train": np.arange(40) % 4,
        "x_test": rng.normal(size=(8, 5)).astype(np.float32),
        "y_test": np.arange(8) % 4,
        "client_train": np.arange(40) % 3,
        **changes,
    }
    np.savez(path, **arrays)
    return str(path)


def files(folder: Path) -> dict[str, bytes]:
    """Return everything below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def one_sentence(outcome: Outcome) -> str:
    """Return the sentence of a refusal, after checking that it is one."""
    assert outcome.code == 2, outcome
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.err.startswith("error: "), outcome.err
    assert "Traceback" not in outcome.err
    return outcome.err.removeprefix("error: ").strip()
