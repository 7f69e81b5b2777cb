"""The page on robust means, written from what `benchmarks.attacks` measured.

python -m benchmarks.attacks_page
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.attacks import ALONE, ATTACKS, DEFENCES
from benchmarks.results_file import RESULTS
from fedtail.files import write_atomic

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "robust-means.md"
CALM = ("none", 0)
Cell = tuple[str, int, str]
"""Attack, how many attack, defence."""
HOW = {
    "none": "the plain mean, by samples",
    "clients alike": "the plain mean, clients alike",
    "norm bound, median norm": "`norm_bound`, median norm",
    "norm bound, 0.5": "`norm_bound`, `bound=0.5`",
    "median": "`median`",
    "trimmed mean": "`trimmed_mean`, `share=0.3`",
    "Krum": "`krum`, `share=0.3`",
    "multi-Krum": "`multi_krum`, `share=0.3`",
    "geometric median": "`geometric_median`",
}


def page(found: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    numbers, environment = found["numbers"], found["environment"]
    rows = {(r["attack"], r["attackers"], r["defence"]): r for r in numbers["rows"]}
    seeds = ", ".join(map(str, range(numbers["seeds"])))
    return f"""# What robust means cost and save

<!-- Written by `python -m benchmarks.attacks_page` from benchmarks/results/attacks.json. -->

[A robust mean](../how-to/privacy.md#clients-that-send-nonsense) keeps a few bad clients from owning
a model. **It can also delete rare classes**, because who alone holds a class looks like an outlier.
Both are measured here: the digits with a long tail (142 samples of the first class, 7 of the last),
ten clients (Dirichlet 0.3), all of them in every round, balanced softmax, an MLP with 64 hidden
units, {numbers["rounds"]} rounds, seeds {seeds} (`{environment["command"]}`,
commit `{environment["commit"][:10]}`). Percent right, mean over seeds (and standard deviation): of
all classes alike / of the three rarest.

## Nobody attacks

*Spread*: the split as Dirichlet drew it. *Held alone*: the same, but each of the three rarest
classes is with one client. Robust means count clients alike, so the plain mean of clients that
count alike is what they are held against.

| mean | spread: all / rare | held alone: all / rare | rare, held alone, against clients alike |
|---|---|---|---|
{_lines(_calm(rows, d) for d in DEFENCES)}

{finding(rows)}

## One and three of ten attack

*Times 100*: the change of the model a hundred times; *sign flip*: ten times the change, backwards;
*label flip*: honest training on labels c → 9 − c; *backdoor*: copies of the rarest class labelled
as the most frequent one, and a change enlarged so that the mean becomes the attackers' model;
*little is enough*: the honest mean minus 1.5 standard deviations, number by number. `share=0.3`
tells a mean of three bad clients. A mean that is lost ends near 10 / 0.

{_lines(_attacked(rows, attackers) for attackers in (1, 3))}

## The backdoor

Samples of the rarest class that are taken for the most frequent one, percent:

| mean | nobody attacks | one of ten | three of ten |
|---|---|---|---|
{_lines(_backdoor(rows, d) for d in _tried())}
"""


def finding(rows: dict[Cell, dict[str, Any]]) -> str:
    """Return what the rows without an attack say, in words and numbers."""
    base = mean(rows[ALONE, 0, "clients alike"]["rare"])
    held = {d: mean(rows[ALONE, 0, d]["rare"]) for d in DEFENCES}
    robust = [d for d in DEFENCES if d not in ("none", "clients alike")]
    gone = [d for d in robust if held[d] < base / 10]
    less = [d for d in robust if base / 10 <= held[d] < base - 5]
    rest = [d for d in robust if d not in gone + less]
    told = [
        f"Where one client alone holds a rare class, the plain mean finds {base:.1f} % of the "
        "three rarest classes."
    ]
    for words, some in (
        ("These delete them (less than a tenth of that is left)", gone),
        ("These lose more than five points", less),
        ("These do not lose more than five points", rest),
    ):
        if some:
            told.append(f"{words}: {', '.join(f'{HOW[d]} ({held[d]:.1f} %)' for d in some)}.")
    return "\n".join(told)


def _tried() -> list[str]:
    return [d for d in DEFENCES if d != "clients alike"]


def _calm(rows: dict[Cell, dict[str, Any]], defence: str) -> str:
    spread, alone = rows[*CALM, defence], rows[ALONE, 0, defence]
    base = mean(rows[ALONE, 0, "clients alike"]["rare"])
    apart = "" if defence in ("none", "clients alike") else f"{mean(alone['rare']) - base:+.1f}"
    return f"| {HOW[defence]} | {_pair(spread)} | {_pair(alone)} | {apart} |"


def _attacked(rows: dict[Cell, dict[str, Any]], attackers: int) -> str:
    lines = [
        f"{'One' if attackers == 1 else 'Three'} of ten:",
        "",
        f"| mean | {' | '.join(ATTACKS)} |",
        "|---" * (1 + len(ATTACKS)) + "|",
    ]
    for d in _tried():
        cells = [_pair(rows[kind, attackers, d]) for kind in ATTACKS]
        lines.append(f"| {HOW[d]} | {' | '.join(cells)} |")
    return "\n".join([*lines, *([""] if attackers == 1 else [])])


def _backdoor(rows: dict[Cell, dict[str, Any]], defence: str) -> str:
    each = [CALM, ("backdoor", 1), ("backdoor", 3)]
    cells = [_spread(rows[*which, defence]["taken"]) for which in each]
    return f"| {HOW[defence]} | {' | '.join(cells)} |"


def _pair(row: dict[str, Any]) -> str:
    return f"{_spread(row['all'])} / {_spread(row['rare'])}"


def _spread(values: Sequence[float]) -> str:
    middle = mean(values)
    deviation = (sum((v - middle) ** 2 for v in values) / max(1, len(values) - 1)) ** 0.5
    return f"{middle:.1f} ({deviation:.1f})"


def mean(values: Sequence[float]) -> float:
    """Return the mean over seeds."""
    return sum(values) / len(values)


def _lines(each: Any) -> str:
    return "\n".join(each)


def main() -> None:
    """Write the page."""
    found = json.loads((RESULTS / "attacks.json").read_text(encoding="utf-8"))
    write_atomic(PAGE, page(found))


if __name__ == "__main__":
    main()
