"""A study is one call: several experiments over several seeds, done, averaged and compared."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from fedtail.config import fields_of
from fedtail.errors import FedtailError, shown
from fedtail.experiment import Experiment, must_be_experiment
from fedtail.files import make_folder, write_atomic
from fedtail.metrics.scores import LESS_IS_BETTER
from fedtail.study.lines import Line, moments
from fedtail.study.paired import Difference
from fedtail.study.perform import JobNumber, perform
from fedtail.study.plan import Planned, apart, chosen, make_plan, words_of
from fedtail.study.runs import COMPARISON, read_run, seeded
from fedtail.study.tables import IN_PAPER, as_csv, as_latex, as_text, described_lines
from fedtail.study.validation import validation_score

WIDTH = 80


@dataclass(frozen=True, repr=False)
class Study:
    """What several runs gave.

    Attributes
    ----------
    lines
        One for each experiment or method, in the order given, over seeds.
    folder
        Where the runs are, if they were kept.
    """

    lines: tuple[Line, ...]
    folder: Path | None = None

    def table(self, width: int = WIDTH) -> str:
        """Return the table as text: scores over seeds, and the differences to the first line."""
        return as_text(self.lines, width).plain

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return all numbers as CSV, and write them to a file if one is given."""
        return _kept(as_csv(self.lines), path)

    def to_latex(self, path: str | Path | None = None, columns: Sequence[str] = IN_PAPER) -> str:
        """Return a LaTeX table, and write it to a file if one is given (see `as_latex`)."""
        return _kept(as_latex(self.lines, columns), path)

    def best(self, score: str | None = None) -> Line:
        """Return the line with the best mean, by default of what clients hold out.

        The validation score is the one that rounds are compared by (`Experiment.score`).

        Parameters
        ----------
        score
            A score of the test set instead, such as ``"few"``. A number that is chosen by the test
            set is no longer a fair estimate of anything: say so where you report it.
        """
        means = [_mean(line, score) for line in self.lines]
        known = [mean for mean in means if mean is not None]
        if not known:
            raise FedtailError(
                f"no run has a score '{score}'"
                if score
                else "there is no validation score to choose by: hold samples out "
                "(validation = 0.1), or name a score of the test set, best('accuracy')"
            )
        return self.lines[means.index(max(known))]

    def difference(self, label: str, score: str = "accuracy") -> Difference | None:
        """Return how much a line is above the first, over the seeds that both have."""
        line = next((line for line in self.lines if line.label == label), None)
        if line is None:
            known = ", ".join(repr(line.label) for line in self.lines)
            raise FedtailError(f"there is no line '{label}' (there are {known})")
        return line.above(self.lines[0], score)

    @property
    def failures(self) -> dict[str, str]:
        """Why runs failed, by what they are called."""
        return {
            seeded(line.label, seed): reason
            for line in self.lines
            for seed, reason in line.failures.items()
        }

    def __repr__(self) -> str:
        return self.table()


def _mean(line: Line, score: str | None) -> float | None:
    if score is not None:
        mean = line.score(score)[0]
        return -mean if mean is not None and score in LESS_IS_BETTER else mean
    usual = Experiment.model_fields["score"].default  # runs from before there was a choice
    found = [
        validation_score(run.validated or {}, run.settings.get("score", usual)) for run in line.runs
    ]
    return moments(found)[0]


def _kept(text: str, path: str | Path | None) -> str:
    if path is not None:
        make_folder(Path(path).parent)
        write_atomic(Path(path), text)
    return text


def compare(
    experiments: Experiment | Sequence[Experiment] | Mapping[str, Experiment],
    choices: Mapping[str, Sequence[Any]] | Sequence[Any] | None = None,
    *,
    seeds: int | Sequence[int] = 1,
    out: str | Path | None = None,
    jobs: JobNumber = "auto",
    progress: bool = False,
) -> Study:
    """Run experiments over seeds, and compare them with the first.

    Called again with the same `out`, it goes on: what is finished is read. A run that fails does
    not stop the others; `Study.failures` says why.

    Parameters
    ----------
    experiments
        Several, perhaps by label; or one, with `choices`.
    choices
        Values to try, by dotted name: ``{"method": ["fedavg", "fedlc,tau=2"], "local.lr": [0.1,
        0.01]}`` is four lines. A field of a method is only for methods that have it. A list is one
        of methods.
    seeds
        How many, counted from the experiment's own, or which ones.
    out
        Where the runs go, and the table; without a folder nothing is kept.
    jobs
        How many processes do whole runs side by side; ``"auto"`` takes the cores that are free, if
        the runs are long enough. The numbers are the same. In a script a number needs ``if
        __name__ == "__main__":`` around the call, as all of Python's processes do.
    progress
        Whether to print how far it is.

    Returns
    -------
    Study
        The lines, with tables of them.
    """
    console = Console() if progress else None
    with contextlib.ExitStack() as stack:
        place = out or stack.enter_context(tempfile.TemporaryDirectory(prefix="fedtail-"))
        plan = _planned(experiments, choices, seeds, Path(place))
        with folder_for_runs(Path(place)):
            study = carry_out(plan, Path(place), jobs, console)
    return study if out else Study(study.lines)


def _planned(
    experiments: Experiment | Sequence[Experiment] | Mapping[str, Experiment],
    choices: Mapping[str, Sequence[Any]] | Sequence[Any] | None,
    seeds: int | Sequence[int],
    out: Path,
) -> list[Planned]:
    if isinstance(experiments, Experiment):
        plain = {**experiments.given(), "method": fields_of(experiments.method)}
        tried = choices if isinstance(choices, Mapping) else {"method": choices or [None]}
        return make_plan(chosen(plain, tried), _seeds(seeds, experiments.seed), out)
    given = experiments.values() if isinstance(experiments, Mapping) else experiments
    for each in given if isinstance(given, Iterable) and not isinstance(given, str) else [given]:
        must_be_experiment(each)
    if choices:
        raise FedtailError("choices are for one experiment, and several are given")
    if isinstance(experiments, Mapping):
        named = dict(experiments)
    else:
        named = {each.name or words_of(each.method): each for each in experiments}
    if not named or len(named) < len(experiments):
        raise FedtailError(
            "give the experiments labels, as a dict: two would have the same"
            if named
            else "there is no experiment to compare"
        )

    for label in named:
        if not isinstance(label, str) or label.splitlines() != [label]:
            raise FedtailError(f"the label {shown(label)} is refused: give one line of text")

    def variant(label: str, seed: int) -> Experiment:
        return named[label].but(seed=seed, name=seeded(label, seed))

    plan: list[Planned] = []
    for label, each in named.items():
        plan += make_plan({label: partial(variant, label)}, _seeds(seeds, each.seed), out)
    return plan


def _seeds(seeds: int | Sequence[int], first: int) -> Sequence[int]:
    if isinstance(seeds, int):
        several: list[int] = list(range(first, first + seeds))
    else:
        listed = isinstance(seeds, Iterable) and not isinstance(seeds, str)
        several = list(seeds) if listed else []
    if not several or len(set(several)) < len(several):
        raise FedtailError(
            f"seeds = {shown(seeds)} is refused: give at least 1, or a list of different seeds"
        )
    return several


@contextlib.contextmanager
def folder_for_runs(out: Path) -> Iterator[None]:
    """Make the folder first, so that a wrong one is found early; leave no empty one behind."""
    make_folder(out)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            out.rmdir()


def carry_out(
    plan: Sequence[Planned], out: Path, jobs: JobNumber = "auto", console: Console | None = None
) -> Study:
    """Do what is left of a plan, and write the tables; those of what is done, after each run."""
    plan = apart(plan)
    lines: dict[str, Line] = {}
    for planned in plan:
        needs = planned.experiment.server_data
        lines.setdefault(planned.label, Line(planned.label, (), server_data=needs))
    refusals: set[str] = set()
    with contextlib.closing(perform(plan, jobs, console)) as ended:
        for planned, ending in ended:
            line = lines[planned.label]
            if ending.failure:
                failures = {**line.failures, planned.seed: ending.failure}
                lines[planned.label] = replace(line, failures=failures)
                refusals |= {ending.failure} if ending.refused else set()
                continue
            runs = sorted((*line.runs, read_run(planned.path)), key=lambda run: run.seed)
            lines[planned.label] = replace(line, runs=tuple(runs))
            write_results(out, list(lines.values()))
    if len(refusals) == 1 and not any(line.runs for line in lines.values()):
        # What every run refuses is wrong input to the study itself.
        raise FedtailError(refusals.pop())
    write_results(out, list(lines.values()))
    from fedtail.report.document import leave_report  # what only counts needs no page

    leave_report(out)
    return Study(tuple(lines.values()), out)


def write_results(folder: Path, lines: Sequence[Line]) -> None:
    """Write ``comparison.json`` and ``comparison.csv``."""
    rows = described_lines(lines)
    write_atomic(folder / COMPARISON, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    write_atomic(folder / "comparison.csv", as_csv(lines))
