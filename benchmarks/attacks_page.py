"""The page on robust means, written from what `benchmarks.attacks` measured.

python -m benchmarks.attacks_page
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.attacks import ALONE, ATTACKS, DEFENCES, plan
from benchmarks.results_file import RESULTS
from fedtail.files import write_atomic

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "robust-means.md"
Rows = dict[tuple[str, int, str], dict[str, Any]]
"""By attack, how many attack, and defence."""
ALIKE = "clients alike"
SPLITS = {"none": "", ALONE: ", and one client alone holds each of the three rarest classes"}
UNMEASURED = """## What is missing

`python -m benchmarks.attacks` has one and three of ten clients attack in five ways, and this page
is written from what it has found so far.
"""
ATTACKED = """*Times 100*: the change of the model a hundred times; *sign flip*: ten times the
change, backwards; *label flip*: honest training on labels c → 9 − c; *backdoor*: copies of the
rarest class labelled as the most frequent one, and a change enlarged so that the mean becomes the
attackers' model; *little is enough*: the honest mean minus 1.5 standard deviations, number by
number. `share=0.3` tells a mean of three bad clients.
"""
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
    """Return the page as Markdown; what was not measured is not on it."""
    numbers = found["numbers"]
    rows = {(r["attack"], r["attackers"], r["defence"]): r for r in numbers["rows"]}
    parts = [_calm(rows, kind) for kind in SPLITS if (kind, 0, ALIKE) in rows]
    parts += [_attacked(rows, f) for f in (1, 3) if any(key[1] == f for key in rows)]
    parts += [_backdoor(rows)] if any(key[0] == "backdoor" for key in rows) else []
    missing = [row for row in plan() if row[1] and row not in rows]
    parts += [UNMEASURED] if missing else []
    return f"""# What robust means cost and save

<!-- Written by `python -m benchmarks.attacks_page` from benchmarks/results/attacks.json. -->

[A robust mean](../how-to/privacy.md#clients-that-send-nonsense) keeps a few bad clients from owning
a model. **It can also delete rare classes**, because who holds a class that others do not looks
like an outlier. The digits with a long tail (142 samples of the first class, 7 of the last), ten
clients (Dirichlet 0.3), all of them in every round, balanced softmax, an MLP with 64 hidden units,
{numbers["rounds"]} rounds (`python -m benchmarks.attacks`, {_commits(rows)}). Percent right, mean
over seeds (and standard deviation where there are several). *All*: the mean over classes; *rare*:
over the three rarest. Robust means count clients alike, so the plain mean of clients that count
alike is what they are held against.

With [secure sums](../how-to/privacy.md#let-the-server-see-sums-only) nobody looks at updates, and
of these only `norm_bound` with a fixed `bound` is left: each client shortens its own change. If all
do, it is the same mean. **Against a client that lies it is nothing**: it just does not shorten, so
that the rows below do not hold for it. It bounds those who run the code as it is, wrong labels
included.

{"".join(parts).rstrip()}
"""


def _calm(rows: Rows, kind: str) -> str:
    """Return what robust means cost on one split, as a table and in words."""
    base = mean(rows[kind, 0, ALIKE]["rare"])
    lines = [
        f"## Nobody attacks{SPLITS[kind]}",
        "",
        _seeds(rows[kind, 0, ALIKE]),
        "",
        "| mean | all | rare | rare, against clients alike |",
        "|---|---|---|---|",
    ]
    for d in (d for d in DEFENCES if (kind, 0, d) in rows):
        row = rows[kind, 0, d]
        apart = "" if d in ("none", ALIKE) else f"{mean(row['rare']) - base:+.1f}"
        lines.append(f"| {HOW[d]} | {_spread(row['all'])} | {_spread(row['rare'])} | {apart} |")
    return "\n".join([*lines, "", finding(rows, kind), "", ""])


def finding(rows: Rows, kind: str) -> str:
    """Return what the rows without an attack say, in words and numbers."""
    base = mean(rows[kind, 0, ALIKE]["rare"])
    robust = [d for d in DEFENCES if d not in ("none", ALIKE) and (kind, 0, d) in rows]
    left = {d: mean(rows[kind, 0, d]["rare"]) for d in robust}
    sorts = {
        "These delete the rare classes (less than a tenth is left)": [
            d for d in robust if left[d] < base / 10
        ],
        "These lose more than a third": [d for d in robust if base / 10 <= left[d] < base * 2 / 3],
        "These lose more than five points": [
            d for d in robust if base * 2 / 3 <= left[d] < base - 5
        ],
        "These lose no more than five points": [d for d in robust if left[d] >= base - 5],
    }
    told = [f"The plain mean finds {base:.1f} % of the three rarest classes."]
    for words, some in sorts.items():
        if some:
            told.append(f"{words}: {', '.join(f'{HOW[d]} ({left[d]:.1f} %)' for d in some)}.")
    return "\n".join(told)


def _attacked(rows: Rows, attackers: int) -> str:
    some = next(row for key, row in rows.items() if key[1] == attackers)
    kinds = [k for k in ATTACKS if (k, attackers, "none") in rows]
    lines = [
        f"## {'One' if attackers == 1 else 'Three'} of ten attack",
        "",
        ATTACKED if attackers == 1 else "",
        f"{_seeds(some)} All / rare:",
        "",
        f"| mean | {' | '.join(kinds)} |",
        "|---" * (1 + len(kinds)) + "|",
    ]
    for d in DEFENCES:
        each = [rows.get((kind, attackers, d)) for kind in kinds]
        if any(each):
            cells = [f"{_spread(r['all'])} / {_spread(r['rare'])}" if r else "" for r in each]
            lines.append(f"| {HOW[d]} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", ""])


def _backdoor(rows: Rows) -> str:
    lines = [
        "## The backdoor",
        "",
        "Samples of the rarest class that are taken for the most frequent one, percent:",
        "",
        "| mean | nobody attacks | one of ten | three of ten |",
        "|---|---|---|---|",
    ]
    for d in DEFENCES:
        each = [rows.get((*which, d)) for which in (("none", 0), ("backdoor", 1), ("backdoor", 3))]
        if any(each[1:]):
            cells = [_spread(r["taken"]) if r else "" for r in each]
            lines.append(f"| {HOW[d]} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", ""])


def _commits(rows: Rows) -> str:
    commits = sorted({commit[:10] for row in rows.values() for commit in row["commits"]})
    return ", ".join(f"commit `{commit}`" for commit in commits)


def _seeds(row: dict[str, Any]) -> str:
    seeds = row["seeds"]
    return f"Seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}."


def _spread(values: Sequence[float]) -> str:
    middle = mean(values)
    if len(values) == 1:
        return f"{middle:.1f}"
    deviation = (sum((v - middle) ** 2 for v in values) / (len(values) - 1)) ** 0.5
    return f"{middle:.1f} ({deviation:.1f})"


def mean(values: Sequence[float]) -> float:
    """Return the mean over seeds."""
    return sum(values) / len(values)


def main() -> None:
    """Write the page."""
    found = json.loads((RESULTS / "attacks.json").read_text(encoding="utf-8"))
    write_atomic(PAGE, page(found))


if __name__ == "__main__":
    main()
