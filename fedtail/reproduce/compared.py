"""The paper's value beside ours: mean, deviation, difference, and whether an interval covers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from fedtail.errors import FedtailError
from fedtail.reproduce.measures import Finished, measure
from fedtail.reproduce.recipe import DEVIATION, Cell, Table
from fedtail.study.paired import half_width


@dataclass(frozen=True)
class Compared:
    """One printed number and ours.

    Attributes
    ----------
    ours
        One value a seed.
    failures
        Why other seeds have none, or why the cell is not run.
    """

    cell: Cell
    metric: str
    paper: float
    ours: tuple[float, ...] = ()
    failures: tuple[str, ...] = field(default=())

    @property
    def mean(self) -> float | None:
        """Our mean over seeds; of a deviation, the deviation over seeds."""
        if self.metric.endswith(DEVIATION):
            return stdev(self.ours) if len(self.ours) > 1 else None
        return fmean(self.ours) if self.ours else None

    @property
    def deviation(self) -> float | None:
        """Our deviation over seeds."""
        if len(self.ours) < 2 or self.metric.endswith(DEVIATION):
            return None
        return stdev(self.ours)

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.mean is None else self.mean - self.paper

    @property
    def covered(self) -> bool | None:
        """Whether the 95 % interval of our mean (Student's t) holds the paper's value."""
        if self.deviation is None or self.difference is None:
            return None
        return abs(self.difference) <= (half_width(self.ours) or 0.0)


def compare_cell(
    table: Table,
    cell: Cell,
    runs: Sequence[Finished],
    others: Sequence[Finished] = (),
    failures: Sequence[str] = (),
) -> list[Compared]:
    """Return a line for each printed number of a cell.

    `others` are the runs of the method that it is compared with, seed by seed, if there is one.
    """
    lines = []
    for metric, paper in cell.values.items():
        how = table.score(metric) if runs else None
        if how is None or how.not_run:
            why = (how.not_run,) if how else tuple(failures)
            lines.append(Compared(cell, metric, paper, failures=why))
            continue
        pairs = zip(runs, others, strict=False) if others else ((run, None) for run in runs)
        try:
            values = [measure(run, how, other) for run, other in pairs]
        except FedtailError as error:  # other numbers of the same runs may still be had
            lines.append(Compared(cell, metric, paper, failures=(*failures, str(error))))
            continue
        lines.append(Compared(cell, metric, paper, tuple(values), tuple(failures)))
    return lines
