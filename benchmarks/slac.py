"""What each part of SLAC gives: arms with parts on and off, on cells of the comparison.

Every arm has the cell's own rate and 30 rounds. The score is the balanced accuracy on what clients
hold out, in percent; test sets are not read. Started again it goes on: one line of the result file
an arm, cell and seed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.figures.common import Plain, experiment, read_protocol
from benchmarks.results_file import RESULTS, save
from fedtail import run

PROTOCOLS = Path(__file__).parent / "protocols"
CELLS = (
    "f_cifar10_if100_dir0.1",
    "f_cifar10_if100_dir0.5",
    "f_cifar100_if100_dir0.1",
    "r_hapt",
    "s_fashion_mnist_dir0.1",
    "n_fashion_mnist",
)
ROUNDS = 30
ADJUSTED = {"name": "balanced_softmax"}
PLAIN = {"name": "cross_entropy"}
LOCAL = {"name": "local"}
SMOOTHED = {"name": "smoothed", "samples": 1}
CLOSED = {"name": "closed-form", "head": {"name": "lda"}}
RIDGE = {"name": "closed-form", "head": {"name": "ridge"}}
BALANCED = {"name": "class_balanced"}
SHUFFLED = {"name": "shuffled"}
OFF = {"name": "none"}


def slac(**parts: Any) -> dict[str, Any]:
    """Return the method with only these parts on."""
    off = {"loss": PLAIN, "prior": LOCAL, "sampler": SHUFFLED, "rows": "samples", "finish": OFF}
    return {"name": "slac", **off, **parts}


ADJUST = {"loss": ADJUSTED, "prior": SMOOTHED}
ALL = {**ADJUST, "sampler": BALANCED, "rows": "classes", "finish": CLOSED}
ARMS: dict[str, Plain] = {
    "FedAvg": slac(),
    "A0: adjusted, local prior (BSM)": slac(loss=ADJUSTED),
    "A: one sample a class more": slac(**ADJUST),
    "Ag: one sample a class more, by global shares": slac(
        loss=ADJUSTED, prior={**SMOOTHED, "towards": "global"}
    ),
    "A∞: global prior": slac(loss=ADJUSTED, prior={"name": "global"}),
    "B: balanced batches": slac(sampler=BALANCED),
    "C: class-wise rows": slac(rows="classes"),
    "D: closed form, blended": slac(finish=CLOSED),
    "A + B": slac(**ADJUST, sampler=BALANCED),
    "A + C": slac(**ADJUST, rows="classes"),
    "B + C": slac(rows="classes", sampler=BALANCED),
    "A + B + C": slac(**{**ALL, "finish": OFF}),
    "A + C + D": slac(**{**ALL, "sampler": SHUFFLED}),
    "A + B + D": slac(**{**ALL, "rows": "samples"}),
    "B + C + D": slac(**{**ALL, "loss": PLAIN}),
    "A0 + B + C + D": slac(**{**ALL, "prior": LOCAL}),
    "A + B½ + C + D: batches by the root of counts": slac(
        **{**ALL, "sampler": {**BALANCED, "gamma": 0.5}}
    ),
    "A + B + C + Dr: ridge in the place of LDA": slac(**{**ALL, "finish": RIDGE}),
    "A + B + C + D": slac(**ALL),
}
"""From FedAvg to all parts; the letters are those of the method's page."""


def measured(cell: str, arm: Plain, seed: int, rounds: int) -> dict[str, Any]:
    """Return the scores of one run: of the last round, and the mean of the last ten rounds."""
    protocol = read_protocol(PROTOCOLS / f"{cell}.toml", rounds=rounds)
    protocol = {**protocol, "eval_every": 5, "keep": "last", "patience": 0}
    history = run(experiment(protocol, seed, arm)).history
    seen = [r["validation"] for r in history[-10:] if r.get("validation")]
    sent = sum(record["bytes_up"] + record["bytes_down"] for record in history)
    return {
        "last": round(100 * seen[-1]["balanced_accuracy"], 3),
        "mean": round(100 * fmean(v["balanced_accuracy"] for v in seen), 3),
        "few": None if seen[-1]["few"] is None else round(100 * seen[-1]["few"], 3),
        "megabytes": round(sent / 1e6, 2),
        "blend": history[-1]["method"].get("closed_form_share"),
    }


def table(numbers: Mapping[str, Any]) -> str:
    """Return every run, an arm a line and a cell and seed a column, as the method's page has it."""
    columns = sorted({(key.split("/")[0], key.split("/")[2]) for key in numbers})
    titles = [f"{cell}, seed {seed}" for cell, seed in columns]
    lines = ["| | " + " | ".join(titles) + " |", "|---" * (len(columns) + 1) + "|"]
    for arm in ARMS:
        found = [numbers.get(f"{cell}/{arm}/{seed}") for cell, seed in columns]
        if any(found):
            lines.append(f"| {arm} | " + " | ".join(map(shown, found)) + " |")
    return "\n".join(lines)


def shown(found: Plain | None) -> str:
    """Return the mean of the last ten rounds, and the few-shot classes of the last."""
    if found is None:
        return ""
    return f"{found['mean']:.1f}" + ("" if found["few"] is None else f" / {found['few']:.1f}")


def main(words: Sequence[str] | None = None) -> None:
    """Do what is left, and save after every run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cell", nargs="*", choices=[*CELLS, []], help="by default all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="default: 0 1")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of a run")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS, metavar="ARM")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result file")
    parser.add_argument("--table", action="store_true", help="print what was measured, no runs")
    chosen = parser.parse_args(words)
    path = chosen.out / "slac.json"
    numbers = json.loads(path.read_text())["numbers"] if path.exists() else {}
    if chosen.table:
        print(table(numbers))
        return
    for cell in chosen.cell or CELLS:
        for seed in chosen.seeds:
            for arm in chosen.arms:
                key = f"{cell}/{arm}/{seed}"
                if key not in numbers:
                    numbers[key] = measured(cell, ARMS[arm], seed, chosen.rounds)
                    save("slac", numbers, chosen.out)


if __name__ == "__main__":
    main()
