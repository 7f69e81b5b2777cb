"""A search for each method's hyper-parameters, by the score of what clients hold out.

Trials are asked for and told in batches of one size. The first are spread evenly (`draws.py`), the
others drawn from a seed of their own each: what is found depends neither on how many run side by
side, nor on whether the search was interrupted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from fedtail.callbacks import Record
from fedtail.callbacks.tracking import dotted
from fedtail.config import fields_of
from fedtail.described import apply, make_experiment, parse_value
from fedtail.errors import FedtailError, RunStopped, missing_extra
from fedtail.experiment import Experiment, must_be_experiment
from fedtail.files import write_atomic
from fedtail.folder import FREE, RunFolder, completed, first_difference
from fedtail.metrics.scores import LESS_IS_BETTER
from fedtail.plugins import first_line
from fedtail.rng import derive
from fedtail.study.grid import Row, grid
from fedtail.study.lines import short
from fedtail.study.perform import JobNumber, Overall, must_be_jobs, perform
from fedtail.study.plan import Planned
from fedtail.study.runs import read_run
from fedtail.study.settle import DataHere, Ending
from fedtail.study.space import make_space
from fedtail.study.spec import apply_method, field_meant, folder_name, method_class, split_spec
from fedtail.study.study import WIDTH, folder_for_runs
from fedtail.study.validation import must_be_validated, validation_score

if TYPE_CHECKING:
    from optuna import Study as Search
    from optuna import Trial
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.storages import RDBStorage

TRIALS_AT_ONCE = 5
"""So many trials of a method are drawn before the next ones know what they gave."""
EVEN_TRIALS = 10
"""So many trials are spread evenly, before what they gave decides where to look."""
DATABASE, RESULT = "tune.db", "tuned.json"


@dataclass(frozen=True)
class Found:
    """What a search found for one method.

    Attributes
    ----------
    label
        The method as it was typed.
    words
        The method with the best values found, as `fedtail compare --method` takes it.
    score
        The validation score that these gave; nothing if no trial came to its end.
    trials, given_up, failed
        How many trials there were, and how many of them were given up early, or failed.
    by
        Which score it is.
    """

    label: str
    words: str
    score: float | None
    trials: int
    given_up: int
    failed: int
    by: str = "balanced_accuracy"


@dataclass(frozen=True, repr=False)
class Tuned:
    """What a search found, method by method, in the order typed."""

    found: tuple[Found, ...]
    folder: Path

    @property
    def methods(self) -> list[str]:
        """The methods with their best values, to be compared."""
        return [each.words for each in self.found if each.score is not None]

    def text(self, width: int) -> Text:
        """Return a row a method."""
        headings = ("best values", "validation", "trials", "given up", "failed")
        rows = []
        for each in self.found:
            counts = (each.trials, each.given_up, each.failed)
            rows.append(Row(each.words, [_shown(each), *map(str, counts)]))
        return grid(headings, rows, width)

    def table(self, width: int = WIDTH) -> str:
        """Return the table as text."""
        return self.text(width).plain

    def __repr__(self) -> str:
        return self.table()


def tune(
    experiment: Experiment,
    methods: Sequence[str] = (),
    *,
    trials: int = 20,
    ranges: Mapping[str, str] | None = None,
    grids: Mapping[str, Sequence[str]] | None = None,
    out: str | Path,
    jobs: JobNumber = "auto",
    progress: bool = False,
) -> Tuned:
    """Search the hyper-parameters of methods, each with the same number of trials.

    A trial is a run, scored by what its clients hold out; the test set is not looked at. Called
    again with the same `out` it goes on, also with more `trials`.

    Parameters
    ----------
    experiment
        What all trials share; it holds samples out for validation.
    methods
        As typed for `compare`, such as ``"fedlc"`` or ``"fedavg,sampler=class_balanced"``; fields
        that are given stay. By default the experiment's own.
    trials
        For each method.
    ranges
        Bounds by field of the method, ``{"tau": "0.1..10:log"}``, beside or instead of the usual.
    grids
        Values by field, one of which is taken.
    out
        Where the runs and the database go.
    jobs
        How many trials run side by side; ``"auto"`` takes the cores that are free, if the trials
        are long enough. What is found is the same.
    progress
        Whether to print how far it is.
    """
    must_be_experiment(experiment)
    plain = {**experiment.given(), "method": fields_of(experiment.method)}
    wanted = list(methods) or [experiment.method.name]
    console = Console() if progress else None
    with folder_for_runs(Path(out)):
        return search(plain, wanted, trials, ranges or {}, grids or {}, Path(out), jobs, console)


def search(
    plain: Mapping[str, Any],
    methods: Sequence[str],
    trials: int,
    ranges: Mapping[str, str],
    grids: Mapping[str, Sequence[str]],
    out: Path,
    jobs: JobNumber,
    console: Console | None,
) -> Tuned:
    """Do what is left of all trials, batch by batch of all methods."""
    if trials < 1:
        raise FedtailError(f"--trials {trials} is refused: give at least 1")
    must_be_jobs(jobs)
    ranges, grids = _of_methods(ranges), _of_methods(grids)
    spaces = {label: _Space(plain, label, ranges, grids) for label in dict.fromkeys(methods)}
    _must_be_used([*ranges, *grids], list(spaces.values()))
    with _storage(out / DATABASE) as storage:
        searches = [_Search(space, storage, out) for space in spaces.values()]
        here = DataHere()
        for each in searches:
            each.must_be_on(here)
        del here  # the trials have data of their own
        ended = sum(each.ended for each in searches)
        overall = Overall(console, max(trials * len(searches), ended), ended)
        while batch := [trial for each in searches for trial in each.next_batch(trials)]:
            _carry_out(batch, jobs, overall)
        found = tuple(each.found() for each in searches)
    text = json.dumps([vars(each) for each in found], indent=1, ensure_ascii=False)
    write_atomic(out / RESULT, text + "\n")
    return Tuned(found, out)


class _Space:
    """A method as it was typed, what of it is searched, and the experiment at any point of it."""

    def __init__(
        self,
        plain: Mapping[str, Any],
        label: str,
        ranges: Mapping[str, str],
        grids: Mapping[str, Sequence[str]],
    ) -> None:
        self.label, self._plain = label, dict(plain)
        apply_method(self._plain, label)
        try:
            self.experiment = make_experiment(self._plain)
        except FedtailError as error:
            raise FedtailError(f"{label}: {error}") from None
        must_be_validated(self.experiment)
        self._plain["test"] = "none"  # tests choose nothing here
        _, *fields = split_spec(label)
        fixed = [field.partition("=")[0] for field in fields]
        kind = method_class(self._plain)
        self.distributions: dict[str, BaseDistribution] = make_space(kind, fixed, ranges, grids)
        for bounds in zip(*(_bounds(each) for each in self.distributions.values()), strict=True):
            self.at(dict(zip(self.distributions, bounds, strict=True)))  # refused before any run

    def at(self, values: Mapping[str, Any], name: str = "") -> Experiment:
        """Return the experiment at one point."""
        changed: dict[str, Any] = {**self._plain, "name": name}
        for path, value in values.items():
            apply(changed, f"method.{path}", parse_value(_word(value)))
        try:
            return make_experiment(changed)
        except FedtailError as error:
            raise FedtailError(f"{self.words(values)}: {error}") from None

    def words(self, values: Mapping[str, Any]) -> str:
        """Return the method at one point as it is typed."""
        return ",".join([self.label, *(f"{path}={_word(v)}" for path, v in values.items())])

    def settings(self) -> str:
        """Return all that a search is made with, to know it again."""
        described = self.experiment.describe()
        space = {path: str(each) for path, each in self.distributions.items()}
        return json.dumps([described, space], sort_keys=True)


def _other_search(stored: str, wanted: str) -> str:
    """Return the setting in which two searches differ, or the field with another range, if any."""
    (old, old_space), (new, new_space) = json.loads(stored), json.loads(wanted)
    if odd := first_difference(dotted(completed(old)), dotted(new), FREE):
        return f"'{odd}'"
    odd = first_difference(old_space, new_space)
    return f"range of '{odd}'" if odd else ""


class _Search:
    """The trials of one method, as the database knows them."""

    def __init__(self, space: _Space, storage: RDBStorage, out: Path) -> None:
        import optuna

        self.space, self._out = space, out / folder_name(space.label, space.experiment.seed)
        rounds = space.experiment.rounds
        self.study: Search = optuna.create_study(
            study_name=space.label,
            storage=storage,
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(
                n_startup_trials=TRIALS_AT_ONCE, n_warmup_steps=rounds // 4
            ),
            load_if_exists=True,
        )
        stored = self.study.user_attrs.get("settings")
        if stored is None:
            self.study.set_user_attr("settings", space.settings())
        elif odd := _other_search(stored, space.settings()):
            raise FedtailError(
                f"'{out}' holds a search of '{space.label}' with another {odd}; "
                "choose another --out"
            )

    def must_be_on(self, here: DataHere) -> None:
        """Refuse to go on with other data than the trials so far had: scores would be mixed."""
        begun = [
            folder
            for path in self._out.glob("trial-*")
            if (folder := RunFolder(path)).digests.is_file()
        ]
        digests = here.digests(self.space.experiment) if begun else {}
        try:
            for folder in begun:
                folder.must_be_on(digests)
        except FedtailError:
            raise FedtailError(
                f"'{self._out.parent}' holds a search of '{self.space.label}' on other data; "
                "choose another --out"
            ) from None

    @property
    def ended(self) -> int:
        """How many trials are over."""
        return sum(trial.state.is_finished() for trial in self.study.get_trials(deepcopy=False))

    def next_batch(self, trials: int) -> list[_Trial]:
        """Return the trials that were begun and not ended, and new ones until the batch is full."""
        import optuna

        known = self.study.get_trials(deepcopy=False)
        open_ = [trial for trial in known if not trial.state.is_finished()]
        batch = [optuna.Trial(self.study, trial._trial_id) for trial in open_]
        first = (len(known) - len(open_)) // TRIALS_AT_ONCE * TRIALS_AT_ONCE
        for number in range(len(known), min(first + TRIALS_AT_ONCE, trials)):
            self.study.sampler = self._sampler(number)
            batch.append(self.study.ask(self.space.distributions))
        return [_Trial(self, trial) for trial in batch]

    def _sampler(self, number: int) -> BaseSampler:
        """Return what draws the values of a trial."""
        from optuna.samplers import TPESampler

        from fedtail.study.draws import FixedDraw, first_draw

        experiment, space = self.space.experiment, self.space.distributions
        if number < EVEN_TRIALS:
            return FixedDraw(first_draw(space, number, experiment.method))
        seed = derive(experiment.seed, f"tune/{self.space.label}", number)
        return TPESampler(n_startup_trials=EVEN_TRIALS, seed=seed % 2**32)

    def planned(self, trial: Trial) -> Planned:
        """Return the run of a trial."""
        label = f"{self.space.words(trial.params)} trial {trial.number}"
        experiment = self.space.at(trial.params, label)
        return Planned(label, experiment.seed, experiment, self._out / f"trial-{trial.number:03d}")

    def found(self) -> Found:
        """Return the best trial, and how many there were."""
        from optuna.trial import TrialState

        trials = self.study.get_trials(deepcopy=False)
        states = [trial.state for trial in trials]
        best = self.study.best_trial if TrialState.COMPLETE in states else None
        words = self.space.label if best is None else self.space.words(best.params)
        by = self.space.experiment.score
        score = None if best is None else best.value
        if score is not None and by in LESS_IS_BETTER:
            score = -score  # trials are told the opposite, for which more is better
        given_up, failed = (states.count(s) for s in (TrialState.PRUNED, TrialState.FAIL))
        return Found(self.space.label, words, score, len(trials), given_up, failed, by)


class _Trial:
    """One trial and its run."""

    def __init__(self, search: _Search, trial: Trial) -> None:
        self.planned, self._search, self._trial = search.planned(trial), search, trial
        self._score = search.space.experiment.score
        frozen = search.study.get_trials(deepcopy=False)[trial.number]
        self._told = set(frozen.intermediate_values)

    def hear(self, record: Record) -> bool:
        """Report a round, and say whether the trial is worth going on with."""
        score = validation_score(record, self._score)
        if score is None:
            return True
        if record["round"] not in self._told:
            self._trial.report(score, record["round"])
        return not self._trial.should_prune()

    def tell(self, ending: Ending) -> None:
        """Tell the database what came of it."""
        from optuna.trial import TrialState

        score = None
        if not ending.failure and not ending.given_up:
            score = validation_score(read_run(self.planned.path).validated or {}, self._score)
        if score is not None:
            self._search.study.tell(self._trial, score)
        else:
            state = TrialState.PRUNED if ending.given_up else TrialState.FAIL
            self._search.study.tell(self._trial, state=state)


def _carry_out(batch: Sequence[_Trial], jobs: JobNumber, overall: Overall) -> None:
    """Do the runs of a batch; all are told of at its end, whatever the order in which they end."""
    trials = {trial.planned.path: trial for trial in batch}
    endings: dict[Path, Ending] = {}

    def hear(planned: Planned, record: Record) -> bool:
        return trials[planned.path].hear(record)

    plan = [trial.planned for trial in batch]
    with closing(perform(plan, jobs, hear=hear, overall=overall)) as ended:
        for planned, ending in ended:
            endings[planned.path] = ending
    refusals = {ending.failure for ending in endings.values() if ending.refused}
    if len(refusals) == 1 and all(ending.refused for ending in endings.values()):
        raise FedtailError(refusals.pop())
    for path, ending in endings.items():
        if ending.died:  # nothing is told: the same batch goes on, and finds what it would have
            said = f"{trials[path].planned.label}: {ending.failure}"
            raise RunStopped(f"{said}; the same command goes on from here")
    for path, trial in trials.items():
        trial.tell(endings[path])


@contextmanager
def _storage(path: Path) -> Iterator[RDBStorage]:
    """Open the database of the trials."""
    try:
        import optuna
    except ImportError:
        raise missing_extra("tuning", "Optuna", "tune") from None
    from sqlalchemy.exc import DatabaseError

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.WARNING)
    try:
        storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
        try:
            yield storage
        finally:
            storage.remove_session()
            storage.engine.dispose()
    except DatabaseError as error:
        said = first_line(error.orig or error)
        raise FedtailError(
            f"'{path}' cannot be used as a database of trials ({said}): put it back as it was, or "
            "choose another --out"
        ) from None
    finally:
        optuna.logging.set_verbosity(before)


def _of_methods(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields without the section, and refuse those of the protocol, which all share."""
    odd = next((path for path in typed if path.partition(".")[0] in Experiment.model_fields), None)
    named = {path.removeprefix("method."): value for path, value in typed.items()}
    if odd is not None and not odd.startswith("method."):
        raise FedtailError(
            f"'{odd}' is not searched: it is of the protocol, which all methods share; give a "
            "field of a method, such as local.lr"
        )
    return named


def _must_be_used(paths: Sequence[str], spaces: Sequence[_Space]) -> None:
    for path in paths:
        if not any(path in space.distributions for space in spaces):
            meant = short(field_meant(f"method.{path}", spaces[0].experiment.describe()))
            hint = f"; did you mean '{meant}'?" if meant else ""
            raise FedtailError(f"none of the methods has a field '{path}' to search{hint}")


def _bounds(distribution: Any) -> tuple[Any, Any]:
    """Return the ends of a range, or the first and the last value."""
    if hasattr(distribution, "low"):
        return distribution.low, distribution.high
    return distribution.choices[0], distribution.choices[-1]


def _shown(found: Found) -> str:
    """Return the score as it is printed: shares in per cent, a loss as it is."""
    if found.score is None:
        return "-"
    return f"{found.score:.4f}" if found.by in LESS_IS_BETTER else f"{100 * found.score:.1f}"


def _word(value: Any) -> str:
    """Return a value as it is typed; three digits are as much as a search can tell."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
