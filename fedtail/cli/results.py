"""What a comparison found: one line a method, over seeds, as numbers, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedtail.files import write_atomic

SCORES = ("accuracy", "many", "medium", "few", "worst_class")
"""The scores of the table."""
MORE_SCORES = ("balanced_accuracy", "tail", "loss", "ece")
"""Those that only the files hold."""

History = Sequence[Mapping[str, Any]]


@dataclass
class Line:
    """One method of a comparison.

    Attributes
    ----------
    spec
        The method as the user wrote it.
    histories
        The rounds of each seed that came to its end.
    failures
        Why the other seeds did not.
    server_data
        What the method needed on the server, in words; nothing for most methods.
    """

    spec: str
    histories: dict[int, History] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    server_data: str = ""

    @property
    def label(self) -> str:
        """The spec with spaces where it may be broken."""
        return self.spec.replace(",", ", ")

    @property
    def traffic(self) -> float:
        """Bytes of a whole run, both ways, on average over seeds."""
        return fmean(sum(r["bytes_up"] + r["bytes_down"] for r in h) for h in self._all)

    @property
    def seconds(self) -> float:
        """How long a run took, on average over seeds."""
        return fmean(sum(r["seconds"] for r in history) for history in self._all)

    @property
    def _all(self) -> list[History]:
        return list(self.histories.values())

    def score(self, key: str) -> dict[str, float | None]:
        """Return the mean over seeds of a score of the shipped models, and its deviation."""
        from fedtail.metrics.curves import shipped_record  # it brings torch

        values = [shipped_record(history).get(key) for history in self._all]
        known = [value for value in values if value is not None]
        return {
            "mean": fmean(known) if known else None,
            "std": stdev(known) if len(known) > 1 else None,
        }

    def describe(self) -> dict[str, Any]:
        """Return the line as plain data."""
        return {
            "method": self.spec,
            "server_data": self.server_data,
            "seeds": list(self.histories),
            "failed": {str(seed): reason for seed, reason in self.failures.items()},
            "scores": {key: self.score(key) for key in (*SCORES, *MORE_SCORES)},
            "bytes": round(self.traffic) if self.histories else None,
            "seconds": self.seconds if self.histories else None,
        }


def write_results(folder: Path, lines: Sequence[Line]) -> None:
    """Write ``comparison.json`` and ``comparison.csv``."""
    rows = [line.describe() for line in lines]
    write_atomic(folder / "comparison.json", json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    write_atomic(folder / "comparison.csv", as_csv(rows))


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a header and a row a method; seeds are separated by spaces."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = (*SCORES, *MORE_SCORES)
    scores = [f"{key}_{part}" for key in keys for part in ("mean", "std")]
    writer.writerow(["method", "seeds", *scores, "bytes", "seconds", "failed", "server_data"])
    for row in rows:
        numbers = [row["scores"][key][part] for key in keys for part in ("mean", "std")]
        seeds = " ".join(map(str, row["seeds"]))
        failed = "; ".join(f"seed {seed}: {reason}" for seed, reason in row["failed"].items())
        rest = [row["bytes"], row["seconds"], failed, row["server_data"]]
        writer.writerow([row["method"], seeds, *numbers, *rest])
    return text.getvalue()
