"""The page of the papers' claims, from claims.toml, papers/ and results/reproduce.

python -m benchmarks.claims.page
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.claims.verdict import Claim, Seen, claims, hours, judged, results, seen
from fedtail.files import write_atomic

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"
ABOUT = """# The papers' claims, put to the test

<!-- Written by `python -m benchmarks.claims.page` from papers and benchmarks/results/reproduce. -->

At most five headline claims of each paper. Each is one cell of a table: a method is above another.
*Printed* and *ours* are both values in percent and their difference; ours with its 95 % interval,
paired by seed. A claim is **reproduced** if the difference is surely above zero and at least half
of what is printed; **in order only** if it is surely above zero, but less; **open** if the interval
holds zero; **not reproduced** if it is surely below; else it is **not run** yet, or **not
testable** here. *Full scale* is what both methods take as in the paper, in hours of one core, by
the estimate of `fedtail reproduce`. The scale of our runs stands below each paper: absolute numbers
are not the papers', and a verdict is one about that scale. A run's score is the mean of its last
two tests, because one round alone is noise: that was decided when the first claim had been run,
which is **open** by its last rounds alone (+11.4, −2.5 to +25.3), and before all others. To run
claims: `python -m benchmarks.claims --only CReFF --precision bfloat16`.
"""


def text(known: Sequence[Mapping[str, Any]]) -> str:
    """Return the page."""
    every = claims()
    counts = Counter(judged(claim, seen(claim, known)) for claim in every)
    said = ", ".join(f"{number} {name}" for name, number in counts.most_common())
    parts = [
        paper(name, list(mine), known) for name, mine in groupby(every, lambda claim: claim.paper)
    ]
    return "\n".join([ABOUT, f"Of {len(every)} claims: {said}.", "", *parts])


def paper(name: str, mine: Sequence[Claim], known: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of one paper, and what was run for it."""
    rows = [
        f"## {name}",
        "",
        "| claim | where | printed | ours | verdict | full scale |",
        "|---" * 6 + "|",
    ]
    notes: list[str] = []
    for claim in mine:
        found = seen(claim, known)
        rows.append(row(claim, found))
        if found is not None:
            source = found.source
            made_with = ", ".join(f"`{commit[:10]}`" for commit in source["commits"])
            notes.append(f"- {source['where']}, {source['scale_is']}; made with {made_with}")
        reason = claim.not_testable or claim.why
        if reason and judged(claim, found) != "reproduced":
            notes.append(f"- *{claim.says}* {reason}")
    return "\n".join([*rows, "", *dict.fromkeys(notes), ""] if notes else [*rows, ""])


def row(claim: Claim, found: Seen | None) -> str:
    """Return the line of one claim."""
    table = claim.recipe()
    high, low = claim.printed(table)
    ours = "–" if found is None else _ours(found)
    needed = hours(claim, table)
    where = f"{claim.dataset}, {claim.setting.replace(';', ', ')}"
    cells = [
        claim.says,
        f"{table.recipe.where}: `{claim.method}` against `{claim.beside}`, {where}",
        f"{high:.1f} / {low:.1f}, {high - low:+.1f}",
        ours,
        f"**{judged(claim, found)}**",
        "?" if needed is None else f"{needed:,.0f} h",
    ]
    return f"| {' | '.join(cells)} |"


def _ours(found: Seen) -> str:
    gain = found.gain
    means = " / ".join(f"{sum(v) / len(v):.1f}" for v in (found.method, found.beside))
    if gain.low is None or gain.high is None:
        return f"{means}, {gain.mean:+.1f}"
    return f"{means}, {gain.mean:+.1f} ({gain.low:+.1f} to {gain.high:+.1f})"


if __name__ == "__main__":
    write_atomic(PAGE, text(results()))
