"""The head of a report: on what the runs were made, and in what they are not alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedtail.study.lines import Line, differing
from fedtail.study.runs import Plain, Run

PROTOCOL = ("data", "tail", "partition", "clients", "server_per_class", "groups")
"""Sections of an experiment that decide on what runs train and by what they are scored."""


def head_facts(lines: Sequence[Line]) -> list[Plain]:
    """Return title and value of each fact; where lines differ, the values of all of them."""
    tellers: dict[str, Callable[[Run], str]] = {
        "Data": _data,
        "Long tail": lambda run: section(run, "tail"),
        "Split": lambda run: section(run, "partition"),
        "Clients": _clients,
        "Model": lambda run: section(run, "model"),
        "Rounds": lambda run: _told(run.settings.get("rounds")),
    }
    firsts = [line.runs[0] for line in lines]
    found = {title: list(dict.fromkeys(map(tell, firsts))) for title, tell in tellers.items()}
    seeds = sorted({run.seed for line in lines for run in line.runs})
    found["Seeds"] = [", ".join(map(str, seeds))]
    return [
        {"title": title, "value": " · ".join(filter(None, values))}
        for title, values in found.items()
        if any(values)
    ]


def cautions(lines: Sequence[Line]) -> list[str]:
    """Return a sentence for everything that makes two lines hard to compare."""
    firsts = [line.runs[0] for line in lines]
    keys = differing(firsts, lambda key: key.partition(".")[0] in PROTOCOL)
    sections = dict.fromkeys(key.partition(".")[0] for key in keys)
    found = []
    if sections:
        found.append(
            f"These runs are not on the same data: {', '.join(sections)} "
            f"{'differs' if len(sections) == 1 else 'differ'}. A difference between two lines may "
            "be one between their data."
        )
    elif changed := _changed(lines):
        found.append(
            f"The settings are the same, but the split of seed {changed[0]} is not: the data have "
            "changed between these runs."
        )
    if differing(firsts, lambda key: key == "rounds"):
        found.append("These runs do not have the same number of rounds.")
    if len({tuple(run.seed for run in line.runs) for line in lines}) > 1:
        told = "; ".join(f"{line.label}: {_seeds(line)}" for line in lines)
        found.append(f"These methods do not have the same seeds ({told}).")
    return found


def section(run: Run, name: str) -> str:
    """Return a section of the settings in words: its name, then its numbers."""
    prefix = f"{name}."
    fields = {k.removeprefix(prefix): v for k, v in run.settings.items() if k.startswith(prefix)}
    told = [
        f"{key} {value:g}"
        for key, value in fields.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return ", ".join([_told(fields.get("name")), *told]) if fields else ""


def _told(value: Any) -> str:
    return "" if value is None else str(value)


def _data(run: Run) -> str:
    """Return the source, and what is left of it after the tail was cut."""
    name, path = run.settings.get("data.name"), run.settings.get("data.path")
    words = [" ".join(filter(None, [_told(name), _told(path)]))]
    counts = [n for n in (run.split or {}).get("class_counts") or [] if isinstance(n, int | float)]
    if counts:
        few, many = f"{min(counts):,}", f"{max(counts):,}"
        words += [f"{len(counts)} classes", f"{sum(counts):,} training samples"]
        words += [f"{many} to {few} a class" if few != many else f"{few} a class"]
    return ", ".join(filter(None, words))


def _clients(run: Run) -> str:
    statistics = (run.split or {}).get("statistics") or {}
    clients = statistics.get("clients") or run.settings.get("clients")
    cohort = run.settings.get("per_round")
    return _told(clients) + (f", {cohort} in a round" if clients and cohort else "")


def _changed(lines: Sequence[Line]) -> list[int]:
    """Return the seeds whose runs have different splits, though nothing says that they should."""
    digests: dict[int, set[str]] = {}
    for line in lines:
        for run in line.runs:
            if run.split and "digest" in run.split:
                digests.setdefault(run.seed, set()).add(str(run.split["digest"]))
    return [seed for seed, found in sorted(digests.items()) if len(found) > 1]


def _seeds(line: Line) -> str:
    return ", ".join(str(run.seed) for run in line.runs)
