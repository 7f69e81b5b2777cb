"""A diagnosis in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedtail.diagnosis.rules import RULES, Signal
from fedtail.metrics.traffic import human_bytes

if TYPE_CHECKING:
    from fedtail.diagnosis.doctor import Diagnosis

WRONG = "What is wrong"
SECTIONS = {
    WRONG: ("yes",),
    "Not enough signal": ("unsure",),
    "What is not wrong": ("no",),
    "Beside that": ("shown", "unknown"),
}
"""In which order signals are told, by their verdicts."""
UNREAD = "cannot be read here"


def number(value: float | None, unit: str) -> str:
    """Return a value as people read it."""
    if value is None:
        return "none"
    match unit:
        case "%":
            return f"{round(100 * value)} %"
        case "points":
            return f"{value:+.1f} points"
        case "times":
            return f"{value:.1f} times"
    return f"{value:.2f}"


def measured(signal: Signal) -> str:
    """Return the number of a signal, its interval, and its threshold."""
    found, reading = signal.estimate, signal.reading
    text = number(found.value, reading.unit)
    if found.low is not None and found.high is not None and found.low < found.high:
        low, high = number(found.low, reading.unit), number(found.high, reading.unit)
        text += f" ({low.removesuffix(' points').removesuffix(' %')} to {high})"
    if reading.threshold is not None:
        side = "below" if reading.below else "from"
        text += f"; a finding {side} {number(reading.threshold, reading.unit).lstrip('+')}"
    return text


def verdict(signal: Signal) -> str:
    """Return what a signal says, in a clause."""
    match signal.verdict:
        case "yes":
            return signal.reading.finding
        case "no":
            return signal.reading.otherwise
        case "unsure":
            lean = signal.reading.finding if signal.fired else signal.reading.otherwise
            return f"not enough signal, rather {lean}"
        case "unknown":
            return UNREAD
    return "shown"


def bound(diagnosis: Diagnosis) -> str:
    """Return whether the head or the features are what is wrong, in a sentence."""
    gap, head = diagnosis.signals["gap"], diagnosis.signals["head"]
    if head.verdict == "yes":
        return "Head-bound: the features tell classes apart better than the classifier does."
    if gap.estimate.value is not None and gap.estimate.value < 2:
        return "Representation-bound: no head does better on these features; train longer."
    rounds = diagnosis.probe["rounds"]
    return (
        f"After {rounds} rounds the trained head is behind its features, as young heads are; the "
        "tail itself costs a head less than 10 points."
        if gap.fired
        else "Neither head nor features stand out."
    )


def what_else(diagnosis: Diagnosis) -> Iterator[str]:
    """Give what would be recommended if unsure signals were otherwise, and what else to try."""
    for key, method in diagnosis.doubts.items():
        title = diagnosis.signals[key].reading.title
        same = method == diagnosis.method
        other = "nothing depends on it" if same else f"were it otherwise, {method}"
        yield f"Not enough signal in “{title}”: {other}."
    if diagnosis.methods[1:]:
        yield f"To try beside it: {', '.join(diagnosis.methods[1:])}."


def diagnosis_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Give a diagnosis line by line."""
    every = diagnosis.signals.values()
    for title, verdicts in SECTIONS.items():
        chosen = [signal for signal in every if signal.verdict in verdicts]
        if chosen or title == WRONG:
            yield title
        for signal in chosen:
            name, found = signal.reading.title, measured(signal)
            if signal.verdict in ("yes", "unsure"):
                yield f"  {signal.reading.id:5}{verdict(signal)}"
                yield f"       {name}: {found}"
            else:
                said = verdict(signal) if signal.verdict == "no" else name
                told = UNREAD if signal.verdict == "unknown" else found.partition(";")[0]
                yield f"  {signal.reading.id:5}{said}: {told}"
        if title == WRONG:
            yield f"       {bound(diagnosis)}" if chosen else "       Nothing that it can see."
    yield ""
    yield f"What to do: {diagnosis.method} (rule {diagnosis.rule} of {len(RULES)})"
    yield from (f"   {sentence}" for sentence in diagnosis.because)
    yield from (f"   {sentence}" for sentence in what_else(diagnosis))
    yield ""
    rounds = diagnosis.recommended.rounds
    yield (
        f"What it costs: about {human_bytes(diagnosis.bytes)} to and from clients, "
        f"{diagnosis.seconds:.0f} s of training here, for {rounds} rounds"
    )
    probe = diagnosis.probe
    yield (
        f"   The probe: {probe['clients']} clients in {probe['groups']} groups, rounds: "
        f"{probe['rounds']}; {human_bytes(probe['bytes'])}, {probe['seconds']:.0f} s"
    )
