"""The page and the picture, from the numbers; nothing on the page is written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.figures.common import new_figure
from benchmarks.results_file import RESULTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "peers.md"
PICTURE = ROOT / "docs" / "figures" / "peers.svg"
NAMES = {
    "bare": "bare PyTorch loop",
    "together": "fedtail",
    "fedtail": "fedtail, client after client (`together=0`)",
    "fedlab": "FedLab",
    "pfl": "pfl-research",
    "fluke": "fluke",
    "flower": "Flower simulation (Ray)",
}
COLOURS = {
    "bare": "0.6",
    "together": "tab:blue",
    "fedtail": "#7fb2dd",
    "fedlab": "tab:orange",
    "pfl": "tab:green",
    "fluke": "tab:red",
    "flower": "tab:purple",
}


def numbers() -> dict[str, Any]:
    """Return the committed file."""
    found: dict[str, Any] = json.loads((RESULTS / "peers.json").read_text(encoding="utf-8"))
    return found


def present(found: dict[str, Any]) -> list[str]:
    """Return the peers of a file, in the order of the page."""
    there = {name for w in found["workloads"].values() for name in w["peers"]}
    return [name for name in NAMES if name in there]


def text(file: dict[str, Any]) -> str:
    """Return the page."""
    found, facts = file["numbers"], file["environment"]
    versions = found["versions"]
    sizes = "\n".join(
        f"| {w['title']} | {w['parameters']:,} | {w['per_round']} of {w['clients']} | "
        f"{w['samples_per_client']} | {w['batch']} |"
        for w in found["workloads"].values()
    )
    return f"""# Beside other libraries

<!-- Written by `python -m benchmarks.peers --page` from benchmarks/results/peers.json. -->

What a round of federated averaging costs here and elsewhere: the same networks (equal numbers of
parameters, checked), the same random samples in memory, one epoch, plain SGD, no test, no files.
All but Flower alternate in one process, round by round, on one thread of {facts["cpus"]} cores;
medians of {found["rounds"]} rounds. Flower's simulation has processes of its own: its processor
seconds are theirs and the server's, and it uses all cores. The bare loop trains on the same
samples without a federation: no model is copied or averaged, and images have channels last in
memory, as they have in fedtail.

- Versions: {", ".join(f"{name} {number}" for name, number in versions.items())}, Python
  {facts["python"]}; fedtail at commit `{_commit(facts)}`.
- Load of the machine before and after: {found["load_before"]} and {found["load_after"]}.
- `python -m benchmarks.peers` makes an environment of its own and measures again. FedLab imports
  torchvision for data sets that are not used; it is given an empty one.

![Samples for each processor second as a share of the bare loop's]({_link()})

## Samples trained for each processor second

{table(found, "samples_per_cpu_second")}

## Samples trained for each second on the clock

{table(found, "samples_per_wall_second")}

## Against fedtail

Samples for each processor second, over those of fedtail as it runs by default: above 1, in bold,
the other one is faster. {_verdict(found)}

{ratios(found)}

## Until the first round is done

A fresh process on the {found["workloads"][found["started_on"]]["title"]} model: imports, set-up
and one round. With start-up, n rounds take this and n - 1 rounds.

{start_table(found)}

## What is trained

| network | parameters | clients a round | samples a client | batch |
|---|---|---|---|---|
{sizes}
"""


def _commit(facts: dict[str, Any]) -> str:
    return str(facts["commit"] or "?")[:10]


def _link() -> str:
    return f"../{PICTURE.parent.name}/{PICTURE.name}"


def table(found: dict[str, Any], key: str) -> str:
    """Return a table of one number by peer and network."""
    rows = [_heading(found)]
    for name in present(found):
        cells = [w["peers"].get(name) for w in found["workloads"].values()]
        shown = ["–" if cell is None else f"{cell[key]:,}" for cell in cells]
        rows.append(f"| {NAMES[name]} | {' | '.join(shown)} |")
    return "\n".join(rows)


def _heading(found: dict[str, Any]) -> str:
    titles = [w["title"] for w in found["workloads"].values()]
    return f"| | {' | '.join(titles)} |\n|---|{'---|' * len(titles)}"


def own(workload: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of this library as it runs by default."""
    ours = [
        workload["peers"][name] for name in ("together", "fedtail") if name in workload["peers"]
    ]
    return max(ours, key=lambda cell: float(cell["samples_per_cpu_second"]))


def against(workload: dict[str, Any], name: str) -> float | None:
    """Return how many times as fast as this library a peer is."""
    cell = workload["peers"].get(name)
    key = "samples_per_cpu_second"
    return None if cell is None else float(cell[key] / own(workload)[key])


def ratios(found: dict[str, Any]) -> str:
    """Return the table of ratios; where another one is faster, it stands in bold."""
    rows = [_heading(found)]
    for name in present(found):
        if name in ("together", "fedtail"):
            continue
        each = [against(w, name) for w in found["workloads"].values()]
        rows.append(f"| {NAMES[name]} | {' | '.join(map(_ratio, each))} |")
    return "\n".join(rows)


def _ratio(value: float | None) -> str:
    if value is None:
        return "–"
    return f"**{value:.2f}**" if value > 1 else f"{value:.2f}"


def _verdict(found: dict[str, Any]) -> str:
    lost = [
        f"{NAMES[name]} on {w['title']}"
        for w in found["workloads"].values()
        for name in ("fedlab", "pfl", "fluke", "flower")
        if (against(w, name) or 0) > 1
    ]
    return f"It is faster: {', '.join(lost)}." if lost else "No other library is, here."


def start_table(found: dict[str, Any]) -> str:
    """Return the table of start-ups."""
    rows = ["| | processor seconds | seconds |\n|---|---|---|"]
    for name in NAMES:
        cell = found["started"].get(name)
        if cell is not None:
            rows.append(
                f"| {NAMES[name]} | {cell['cpu_seconds']:.1f} | {cell['wall_seconds']:.1f} |"
            )
    return "\n".join(rows)


def draw(found: dict[str, Any]) -> Figure:
    """Draw bars: samples for each processor second, over the bare loop's."""
    figure = new_figure(9.2, 3.6)
    axes = figure.subplots()
    names = present(found)
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        for at, w in enumerate(found["workloads"].values()):
            if name in w["peers"]:
                key = "samples_per_cpu_second"
                height = w["peers"][name][key] / w["peers"]["bare"][key]
                x = at + (place - (len(names) - 1) / 2) * width
                axes.bar(
                    x, height, 0.92 * width, color=COLOURS[name], label=NAMES[name].replace("`", "")
                )
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    axes.legend(once.values(), once.keys(), fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    titles = [w["title"] for w in found["workloads"].values()]
    axes.set_xticks(range(len(titles)), titles)
    axes.set_ylabel("over the bare loop")
    axes.axhline(1, color="0.3", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def write() -> None:
    """Write the page and the picture."""
    file = numbers()
    PAGE.write_text(text(file), encoding="utf-8")
    # Without a date and with fixed names, so that the same numbers give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "peers"}):
        draw(file["numbers"]).savefig(PICTURE, metadata={"Date": None})
