"""Signals from the sums that the probe logged, each with how sure it is.

A number is sure as far as groups of clients agree on it: it is computed once more without each of
the G groups, and the interval is that of this jackknife, with Student's t of G − 1. (A bootstrap
would draw groups twice, and a mean over pairs of clients would then pair some with themselves.)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from fedtail.callbacks import Record
from fedtail.diagnosis.parts import UNIT
from fedtail.errors import FedtailError

SURE = 0.9
Sheet = Mapping[str, Any]
SignalReader = Callable[[Sequence[int]], float | None]
"""From the numbers of some groups to a signal; nothing where they do not define it."""


@dataclass(frozen=True)
class Estimate:
    """A number, and the interval in which it is by what groups of clients say; none if unknown."""

    value: float | None
    low: float | None = None
    high: float | None = None


class Readings:
    """What the probe left, and the signals that follow from it.

    Parameters
    ----------
    history
        The records of its rounds.
    clients, per_round
        How many there are, and how many a round of the planned run has.
    """

    def __init__(self, history: Sequence[Record], clients: int, per_round: int) -> None:
        rounds = [record["method"] for record in history if "groups" in record["method"]]
        if not rounds or "exams" not in rounds[-1]:
            raise FedtailError("the probe has no readings: not enough clients answered it")
        self.clients, self.per_round = clients, per_round
        self.rounds = [json.loads(method["groups"]) for method in rounds]
        self.told: list[Sheet] = self.rounds[-1]
        self.exams: list[Sheet] = json.loads(rounds[-1]["exams"])
        self.gram = {k: np.array(v) for k, v in json.loads(rounds[-1]["drift"]).items()}
        self.first, self.head = json.loads(rounds[0]["head"]), json.loads(rounds[-1]["head"])
        self.cosines = [float(method["cosine"]) for method in rounds[1:]]
        self.asked = int(rounds[-1]["clients"])

    # How sure

    def estimate(self, reader: SignalReader, counted: bool = False) -> Estimate:
        """Return a signal of all groups, and how far it moves without each of them.

        What is counted is known, if everybody was asked.
        """
        every = list(range(len(self.told)))
        value = reader(every)
        if value is None:
            return Estimate(None)
        if counted and self.asked == self.clients:
            return Estimate(value, value, value)
        if len(every) < 2:
            return Estimate(value)
        without = [reader([g for g in every if g != left]) for left in every]
        known = [v for v in without if v is not None]
        if len(known) < len(every):
            return Estimate(value)
        from scipy.special import stdtrit

        size = len(known)
        mean = fmean(known)
        error = math.sqrt((size - 1) / size * sum((v - mean) ** 2 for v in known))
        half = float(stdtrit(size - 1, (1 + SURE) / 2)) * error
        return Estimate(value, value - half, value + half)

    # What is added up

    def _sum(self, name: str, groups: Sequence[int], exam: bool = False) -> Any:
        sheets = self.exams if exam else self.told
        return sum((np.array(sheets[g][name], dtype=float) for g in groups), np.zeros(()))

    def counts(self, groups: Sequence[int]) -> np.ndarray:
        """Return the samples of each class."""
        return np.asarray(self._sum("counts", groups))

    def members(self, groups: Sequence[int]) -> float:
        """Return how many clients the groups have: each is counted once a class that it holds."""
        return float(sum(self.told[g]["clients"] for g in groups))

    # The signals

    def imbalance(self, groups: Sequence[int]) -> float | None:
        """D1: the largest class over the smallest that somebody holds."""
        held = self.counts(groups)
        held = held[held > 0]
        return float(held.max() / held.min()) if len(held) > 1 else None

    def row_norms(self, groups: Sequence[int]) -> float | None:
        """D2: the rank correlation of the classifier's row lengths with class counts."""
        return _rank_correlation(self.head.get("norms"), self.counts(groups))

    def bias_tilt(self, groups: Sequence[int]) -> float | None:
        """D1, without counts: as above of the first round's change of the bias."""
        return _rank_correlation(self.first.get("bias"), self.counts(groups))

    def skew(self, groups: Sequence[int]) -> float | None:
        """D3, of labels: the share of their variance that is between clients."""
        counts = self.counts(groups)
        samples, clients = counts.sum(), self.members(groups)
        pure = float((counts**2).sum() / max(1.0, samples))
        between = float(self._sum("own", groups)) * UNIT - pure
        squares = float(self._sum("samples2", groups)) * UNIT**2
        within = samples - pure - between
        return share_between(
            between, within, clients - 1, samples - clients, samples - squares / max(1.0, samples)
        )

    def drift(self, part: str) -> SignalReader:
        """D3: how far clients' changes of a part of the network point the same way; 1 if all do."""

        def read(groups: Sequence[int]) -> float | None:
            n = np.array([sum(self.told[g]["counts"]) / UNIT for g in groups])
            gram = self.gram[part][np.ix_(groups, groups)]
            squares, squares2 = float(self._sum(part, groups)), float(self._sum(f"{part}2", groups))
            pairs = n.sum() ** 2 - float(self._sum("samples2", groups))
            if squares <= 0 or pairs <= 0:
                return None
            return float((n @ gram @ n - squares2) / pairs / (squares / n.sum()))

        return read

    def coverage(self, groups: Sequence[int]) -> float | None:
        """D4: the share of clients that hold the class that fewest hold."""
        held = np.asarray(self._sum("held", groups))
        return float(held[held > 0].min() / self.members(groups)) if held.any() else None

    def missing(self, groups: Sequence[int]) -> float | None:
        """D11: the share of classes that a client lacks, of those that somebody holds."""
        held = np.asarray(self._sum("held", groups))
        known = int((held > 0).sum())
        return float(1 - held.sum() / self.members(groups) / known) if known else None

    def balanced(self, name: str) -> SignalReader:
        """Return the balanced accuracy of a head on what is held out."""

        def read(groups: Sequence[int]) -> float | None:
            return _mean_share(self._sum(name, groups, True), self._sum("samples", groups, True))

        return read

    def head_gap(self, groups: Sequence[int]) -> float | None:
        """D5: points of balanced accuracy of the closed-form head above the trained one."""
        return _points(self.balanced("closed")(groups), self.balanced("trained 0")(groups))

    def tail_gap(self, groups: Sequence[int]) -> float | None:
        """D5, of the tail alone: points of the closed form above itself with class shares."""
        return _points(self.balanced("closed")(groups), self.balanced("plain")(groups))

    def post_hoc(self, groups: Sequence[int]) -> float | None:
        """D6: points that taking the log of the class shares off the logits gives."""
        return _points(self.balanced("trained 1")(groups), self.balanced("trained 0")(groups))

    def shift(self, groups: Sequence[int]) -> float | None:
        """D7: the share of the features' variance within classes that is between clients."""
        counts, held = self._sum("counts", groups, True), self._sum("held", groups, True)
        spread = [self.exams[g]["spread"] for g in groups]
        between = sum(s["between"] for s in spread)
        within = sum(s["total"] for s in spread) - between
        known = counts > 0
        pairs = counts[known] - self._sum("squares", groups, True)[known] / counts[known]
        free = float((held[known] - 1).sum())
        return share_between(
            between, within, free, float((counts - held).sum()), float(pairs.sum())
        )

    def label_noise(self, groups: Sequence[int]) -> float | None:
        """D10, of labels: errors among the half of what is held out that is surest."""
        seen = [self.exams[g]["surest"] for g in groups]
        total = sum(s["samples"] for s in seen)
        return sum(s["wrong"] for s in seen) / total if total else None

    def forgetting(self, groups: Sequence[int]) -> float | None:
        """D9: KL(received ‖ trained) among the classes that a client lacks, mean over clients."""
        lacking = float(self._sum("lacking", groups))
        return float(self._sum("forgotten", groups)) / lacking if lacking else None

    def overfit(self, groups: Sequence[int]) -> float | None:
        """D10: points of the closed form on training samples above held-out ones, rare classes."""
        counts = np.asarray(self._sum("counts", groups, True))
        rare = (counts > 0) & (counts <= np.median(counts[counts > 0]))
        parts = [np.asarray(self._sum(n, groups, True)) for n in ("fitted", "closed", "samples")]
        fitted, closed, samples = (part[rare] for part in parts)
        seen = samples > 0
        return _points(
            _mean_share(fitted[seen], counts[rare][seen]), _mean_share(closed[seen], samples[seen])
        )

    def cosine(self, groups: Sequence[int]) -> float | None:
        """D8: the mean cosine of successive changes of the model."""
        return fmean(self.cosines) if self.cosines else None

    def classes(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return each class: samples, holders, held-out accuracy of both heads."""
        every = range(len(self.told))
        told = [self._sum(n, every, True) for n in ("samples", "trained 0", "closed")]
        counts, held = self.counts(every), self._sum("held", every)
        return [
            {
                "class": name,
                "samples": int(counts[c]),
                "clients": int(held[c]),
                "trained": told[1][c] / told[0][c] if told[0][c] else None,
                "closed": told[2][c] / told[0][c] if told[0][c] else None,
            }
            for c, name in enumerate(names)
        ]

    def losses(self) -> list[float]:
        """D8: the mean training loss of the model that each round began with."""
        return [
            sum(s["loss"] for s in sheets) / max(1.0, sum(s["seen"] for s in sheets))
            for sheets in self.rounds
        ]


def share_between(
    between: float, within: float, free: float, inside: float, pairs: float
) -> float | None:
    """Return the intraclass correlation of a one-way analysis of variance.

    (B/f − W/i) / (B/f + (n₀ − 1) W/i), with n₀ = pairs / f: 0 on average where clients are drawn
    alike, 1 where each is constant.
    """
    if free <= 0 or inside <= 0 or pairs <= 0:
        return None
    mean_b, mean_w, size = between / free, within / inside, pairs / free
    total = mean_b + (size - 1) * mean_w
    return (mean_b - mean_w) / total if total > 0 else None


def _points(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else 100 * (one - other)


def _mean_share(part: np.ndarray, whole: np.ndarray) -> float | None:
    known = np.asarray(whole) > 0
    return (
        float((np.asarray(part)[known] / np.asarray(whole)[known]).mean()) if known.any() else None
    )


def _rank_correlation(values: Sequence[float] | None, counts: np.ndarray) -> float | None:
    if values is None or (counts > 0).sum() < 3:
        return None
    from scipy.stats import rankdata

    known = counts > 0
    ranks = [rankdata(np.asarray(v)[known]) for v in (values, counts)]
    spread = [float(r.std()) for r in ranks]
    if min(spread) == 0:
        return None
    return float(
        ((ranks[0] - ranks[0].mean()) * (ranks[1] - ranks[1].mean())).mean()
        / (spread[0] * spread[1])
    )
