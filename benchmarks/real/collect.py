"""Gather a finished `fedtail compare` into a small result file, with what is needed to repeat it.

fedtail compare benchmarks/real/mnist.toml --seeds 3 --out runs/mnist --method ...
python -m benchmarks.real.collect runs/mnist
"""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.results_file import RESULTS, readable
from fedtail.errors import FedtailError
from fedtail.files import make_folder, write_atomic
from fedtail.study.spec import folder_name

FACTS = ("commit", "fedtail", "torch", "python", "platform")


def main() -> None:
    """Collect one or more comparisons."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", nargs="+", type=Path, help="what `fedtail compare --out` wrote")
    parser.add_argument("--to", type=Path, default=RESULTS / "real", help="where the file goes")
    arguments = parser.parse_args()
    for folder in arguments.folder:
        try:
            found = collected(folder)
        except FedtailError as error:
            parser.error(str(error))
        make_folder(arguments.to)
        write_atomic(arguments.to / f"{folder.name}.json", readable(found) + "\n")
        print(markdown(found["methods"]))


def collected(folder: Path) -> dict[str, Any]:
    """Return the lines of a comparison, with accuracy by class, and where they come from."""
    table = folder / "comparison.json"
    if not table.exists():
        raise FedtailError(f"{folder} holds no comparison.json: is the comparison finished?")
    lines = json.loads(table.read_text())
    runs = sorted(path.parent for path in folder.glob("*/env.json"))
    made = [json.loads((run / "env.json").read_text()) for run in runs]
    for line in lines:
        line["per_class"] = _per_class(folder, line)
    return {
        "commands": sorted({_command(run["command"], folder.name) for run in made}),
        "environment": {key: sorted({str(run.get(key)) for run in made}) for key in FACTS},
        "methods": lines,
    }


def _command(words: list[str], name: str) -> str:
    """Return the command as one would type it, whatever machine it was typed on."""
    words = ["fedtail", *words[1:]]
    if "--out" in words:
        words[words.index("--out") + 1] = f"runs/{name}"
    return shlex.join(words)


def _per_class(folder: Path, line: dict[str, Any]) -> list[float]:
    """Return the accuracy of each class in the last round, on average over seeds."""
    runs = [folder / folder_name(line["method"], seed) for seed in line["seeds"]]
    last = [json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]) for run in runs]
    return [
        round(fmean(values), 4)
        for values in zip(*(record["per_class"] for record in last), strict=True)
    ]


def markdown(lines: list[dict[str, Any]]) -> str:
    """Return the table as a docs page shows it, in percent."""
    keys = ("accuracy", "balanced_accuracy", "many", "medium", "few", "worst_class")
    rows = ["| | all | balanced | many | medium | few | worst class | traffic |", "|---" * 8 + "|"]
    for line in lines:
        cells = [_cell(line["scores"][key]) for key in keys]
        rows.append(f"| `{line['method']}` | {' | '.join(cells)} | {line['bytes'] / 1e6:.1f} MB |")
    return "\n".join(rows)


def _cell(score: dict[str, float | None]) -> str:
    mean, deviation = score["mean"], score["std"]
    if mean is None:
        return "-"
    return f"{100 * mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


if __name__ == "__main__":
    main()
