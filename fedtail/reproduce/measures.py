"""How the metrics of the papers are computed from finished runs.

Each function is given the rounds of one run and the description of the metric, and returns one
number for that run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedtail.errors import FedtailError
from fedtail.experiment import Experiment
from fedtail.reproduce.recipe import Score
from fedtail.setting import prepare

History = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Finished:
    """One run that came to its end."""

    experiment: Experiment
    history: History


def score(run: Finished, how: Score) -> float:
    """Return a score of the test set, averaged over the tested ones of the last rounds."""
    return fmean(late(run, how.last, how.key))


def rarest(run: Finished, how: Score) -> float:
    """Return the mean accuracy of the rarest classes; ``key`` says how many they are."""
    counts = prepare(run.experiment).class_counts
    order = sorted(range(len(counts)), key=lambda c: (counts[c], c))[: int(how.key)]
    return fmean(per_class[c] for per_class in late(run, how.last, "per_class") for c in order)


def late(run: Finished, last: int, key: str) -> list[Any]:
    """Return what the tested ones of the last rounds have under a name."""
    first = run.experiment.rounds - last
    values = [record.get(key) for record in run.history if record["round"] > first]
    tested = [value for value in values if value is not None]
    if not tested:
        raise FedtailError(f"no last round of '{run.experiment.title}' has a number '{key}'")
    return tested


def traffic_to_own_best(run: Finished, how: Score) -> float:
    """Return the GiB sent until 98 % of the run's own best accuracy (BalanceFL, Table 2)."""
    best = max(record["accuracy"] for record in run.history if record.get("accuracy") is not None)
    sent = 0.0
    for record in run.history:
        sent += float(record["bytes_up"]) + float(record["bytes_down"])
        if (record.get("accuracy") or 0.0) >= 0.98 * best:
            break
    return sent / 2**30


def sent_numbers(run: Finished, how: Score) -> float:
    """Return the most numbers that a client sends and gets in a round, 4 bytes each."""
    turns = [turn for record in run.history for turn in record.get("traffic", {}).values()]
    return float(max(sum(turn) for turn in turns)) / 4


def seconds_of_a_client(run: Finished, how: Score) -> float:
    """Return the mean seconds of a round for each client in it, on this machine."""
    return fmean(record["seconds"] / max(len(record["clients"]), 1) for record in run.history)


def data_fact(run: Finished, how: Score) -> float:
    """Return a fact of the data: ``train``, ``test``, ``classes`` or ``imbalance``."""
    setting = prepare(run.experiment)
    counts = setting.class_counts
    facts = {
        "train": sum(counts),
        "test": len(setting.dataset.test),
        "classes": len(counts),
        "imbalance": max(counts) / max(min(counts), 1),
    }
    return float(facts[how.key])


def model_size(run: Finished, how: Score) -> float:
    """Return the number of parameters of the model that the method trains."""
    return float(sum(p.numel() for p in prepare(run.experiment).model.parameters()))


MEASURES: dict[str, Callable[[Finished, Score], float]] = {
    function.__name__: function
    for function in (
        score,
        rarest,
        traffic_to_own_best,
        sent_numbers,
        seconds_of_a_client,
        data_fact,
        model_size,
    )
}


def measure(run: Finished, how: Score, other: Finished | None = None) -> float:
    """Return the metric of one run, or of one run against another, in the unit of the paper."""
    if how.measure not in MEASURES:
        raise FedtailError(
            f"'{how.measure}' is no measure; there are {', '.join(sorted(MEASURES))}"
        )
    a = MEASURES[how.measure](run, how)
    if other is None:
        return how.factor * a
    b = MEASURES[how.measure](other, how)
    if how.against == "minus":
        return how.factor * (a - b)
    if not b:
        title = other.experiment.title
        raise FedtailError(f"nothing is a share of '{title}', whose '{how.key}' is 0")
    return how.factor * (a - b if how.against == "gain" else b - a) / b
