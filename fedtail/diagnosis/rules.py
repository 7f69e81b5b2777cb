"""The rules: which number counts as what, and which method follows. All of them stand here.

Thresholds and their grounds are on the page `how-to/doctor.md`, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fedtail.diagnosis.signals import Estimate, Readings, SignalReader

Verdict = Literal["yes", "no", "unsure", "unknown", "shown"]
"""Beyond its threshold, not, or not enough signal; not to be read; shown without a threshold."""


class Reading(NamedTuple):
    """A signal and what is made of it.

    Attributes
    ----------
    key
        What the rules call it.
    title
        What it measures.
    reader
        How it is read.
    threshold
        Beyond which it is a finding; none if it is only shown.
    below
        Whether it is one below the threshold.
    counted
        Whether it is known exactly if everybody was asked.
    finding, otherwise
        What is said in either case.
    unit
        What the number is: a share, points of accuracy, times, or plain.
    """

    id: str
    key: str
    title: str
    reader: Callable[[Readings], SignalReader]
    threshold: float | None = None
    finding: str = ""
    otherwise: str = ""
    unit: Literal["", "%", "points", "times"] = ""
    below: bool = False
    counted: bool = False


READINGS = (
    Reading("D1", "tail", "largest class over smallest", lambda r: r.imbalance, 3.0,
            "a long tail", "no long tail", "times", counted=True),
    Reading("D1", "bias", "class counts and the first change of the bias, rank correlation",
            lambda r: r.bias_tilt),
    Reading("D2", "norms", "class counts and lengths of the classifier's rows, rank correlation",
            lambda r: r.row_norms),
    Reading("D3", "skew", "labels: share of the variance between clients", lambda r: r.skew, 0.1,
            "label skew: clients hold different classes", "clients hold about the same classes",
            "%", counted=True),
    Reading("D3", "drift_head", "agreement of clients' updates, classifier",
            lambda r: r.drift("head")),
    Reading("D3", "drift_body", "agreement of clients' updates, the rest",
            lambda r: r.drift("body")),
    Reading("D4", "coverage", "clients that hold the class that fewest hold", lambda r: r.coverage,
            0.1, "a class sits at very few clients", "every class is at many clients", "%",
            below=True, counted=True),
    Reading("D5", "gap", "closed-form head above the trained one", lambda r: r.head_gap, 10.0,
            "the trained head is far behind its features",
            "the trained head keeps up with its features", "points"),
    Reading("D5", "head", "closed form without class shares above itself with them",
            lambda r: r.tail_gap, 10.0, "head-bound: the tail sits in the classifier",
            "the tail costs the classifier little", "points"),
    Reading("D6", "post_hoc", "class shares taken off the trained logits", lambda r: r.post_hoc,
            unit="points"),
    Reading("D7", "shift", "features within a class: share of the variance between clients",
            lambda r: r.shift, 0.1, "feature shift: a class looks different at other clients",
            "classes look alike at all clients", "%"),
    Reading("D8", "noise", "cosine of successive changes of the model", lambda r: r.cosine, 0.0,
            "rounds undo each other", "rounds go the same way", below=True, counted=True),
    Reading("D9", "forgetting", "divergence among the classes that a client lacks",
            lambda r: r.forgetting, 0.05, "clients forget the classes that they lack",
            "clients forget little of the classes that they lack"),
    Reading("D10", "overfit", "rare classes: training above held-out", lambda r: r.overfit, 10.0,
            "rare classes are learned by heart", "rare classes are not learned by heart", "points"),
    Reading("D10", "labels", "errors among the surest half of what is held out",
            lambda r: r.label_noise, 0.1, "errors where there should be none: wrong labels, or "
            "features that cannot tell classes apart", "few errors among the surest answers", "%"),
    Reading("D11", "missing", "classes that a client lacks", lambda r: r.missing, 0.3,
            "clients lack whole classes", "clients hold most classes", "%", counted=True),
)  # fmt: skip
"""The eleven signals of the doctor; some have a second reading."""


@dataclass(frozen=True)
class Signal:
    """A reading of one federation."""

    reading: Reading
    estimate: Estimate
    verdict: Verdict

    @property
    def fired(self) -> bool:
        """Whether the number itself, however sure it is, is beyond its threshold."""
        value, threshold = self.estimate.value, self.reading.threshold
        if value is None or threshold is None:
            return False
        return value < threshold if self.reading.below else value >= threshold


def signal_of(reading: Reading, readings: Readings) -> Signal:
    """Return a signal with its verdict: unsure if the threshold is inside its interval."""
    found = readings.estimate(reading.reader(readings), reading.counted)
    return Signal(reading, found, judged(reading, found))


def judged(reading: Reading, found: Estimate) -> Verdict:
    """Return what a number is, seen with its interval."""
    if found.value is None:
        return "unknown"
    if reading.threshold is None:
        return "shown"
    if found.low is None or found.high is None or found.low < reading.threshold < found.high:
        return "unsure"
    return "yes" if (found.value < reading.threshold) == reading.below else "no"


class MethodRule(NamedTuple):
    """A line of the decision table.

    Attributes
    ----------
    applies
        Whether it does, by the keys of the signals that fired, and ``frozen``.
    methods
        What is recommended, as typed after ``--method``, the first that can be used; the others are
        what to try beside it.
    because
        Why, in a sentence.
    """

    applies: Callable[[Mapping[str, bool]], bool]
    methods: tuple[str, ...]
    because: str


RULES = (
    MethodRule(lambda f: not f["tail"] and (f["skew"] or f["missing"]), ("slac", "ccvr", "fedlc"),
         "No tail overall, and clients that lack classes: each has a tail of its own. Adjust by "
         "local counts, and let only those who hold a class decide on its row."),
    MethodRule(lambda f: not f["tail"] and f["shift"], ("fedavg,buffers=local", "fedavg"),
         "Not a long-tail problem: the inputs differ from client to client. Let every client keep "
         "its own BatchNorm statistics, if there are any."),
    MethodRule(lambda f: not f["tail"], ("fedavg",), "Nothing to repair: plain averaging."),
    MethodRule(lambda f: f["frozen"], ("slac", "closed-form", "bsm,prior=global"),
         "A tail, and nothing but the classifier is trained: margins by counts, mixed with the "
         "head that can be computed from sums. closed-form alone is close behind, without rounds."),
    MethodRule(lambda f: f["head"], ("slac", "bsm,prior=global", "creff", "ccvr"),
         "A tail that sits in the classifier: adjust its logits, and balance it at the end."),
    MethodRule(lambda f: f["missing"], ("slac", "balancefl", "bsm"),
         "A tail, and clients that lack whole classes: adjust by local counts, and let only those "
         "who hold a class decide on its row."),
    MethodRule(lambda f: True, ("slac", "balancefl", "crt-cb"),
         "A tail, and clients that hold most classes: show all classes equally often."),
)  # fmt: skip
"""The first that applies decides."""


def decide(fired: Mapping[str, bool]) -> int:
    """Return the number of the rule that applies first."""
    return next(number for number, rule in enumerate(RULES) if rule.applies(fired))


def doubts(fired: Mapping[str, bool], signals: Mapping[str, Signal]) -> dict[str, int]:
    """Return the unsure signals whose opposite would lead to another rule, and to which."""
    chosen, found = decide(fired), {}
    for key, signal in signals.items():
        if signal.verdict == "unsure":
            other = decide({**fired, key: not fired[key]})
            if other != chosen:
                found[key] = other
    return found
