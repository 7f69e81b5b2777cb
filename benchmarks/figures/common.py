"""What the figures share: their arguments, runs of one protocol, and where results go."""

from __future__ import annotations

import argparse
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.results_file import RESULTS, save
from fedtail import Experiment
from fedtail.described import load_experiment, make_experiment
from fedtail.files import make_folder, write_atomic

FOLDER = Path(__file__).parent
DEMO = FOLDER.parent / "demo.toml"
PICTURES = FOLDER.parents[1] / "docs" / "figures"

Plain = Mapping[str, Any]
"""An experiment, or a part of it, as TOML has it."""


def arguments(about: str | None, protocol: Path) -> argparse.ArgumentParser:
    """Return a parser with what every figure takes."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(
        "--protocol", type=Path, default=protocol, help="experiment file (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... (default: 3)")
    parser.add_argument("--out", type=Path, help="folder of the results; by default the repository")
    return parser


def short_runs(
    about: str | None, words: Sequence[str] | None
) -> tuple[dict[str, Any], argparse.Namespace]:
    """Return the demo's protocol with twenty rounds, and the arguments that may change it."""
    parser = arguments(about, DEMO)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of a run (default: 20)")
    chosen = parser.parse_args(words)
    return read_protocol(Path(chosen.protocol), rounds=chosen.rounds), chosen


def experiment(protocol: Plain, seed: int, method: Plain) -> Experiment:
    """Return the protocol with a seed, and with a method that keeps its local training."""
    shared = protocol.get("method", {})
    return make_experiment({**protocol, "seed": seed, "method": {**shared, **method}})


def read_protocol(path: Path, **changes: Any) -> dict[str, Any]:
    """Return an experiment file, with the changes that are not None."""
    known = {key: value for key, value in changes.items() if value is not None}
    return {**load_experiment(path), **known}


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Return mean and standard deviation over seeds, and the values themselves."""
    spread = stdev(values) if len(values) > 1 else 0.0
    return {
        "mean": round(fmean(values), 4),
        "std": round(spread, 4),
        "by_seed": [round(value, 4) for value in values],
    }


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches, that needs no display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def publish(
    name: str, numbers: Plain, figure: Figure, out: Path | None, file: str | None = None
) -> None:
    """Write the numbers and the picture, under the script's name or another one."""
    save(f"figures.{name}", numbers, out or RESULTS, file)
    save_picture(file or name, figure, out)


def save_picture(name: str, figure: Figure, out: Path | None) -> None:
    """Write a picture alone: a second one of the same numbers."""
    folder = PICTURES if out is None else out / "figures"
    make_folder(folder)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    write_atomic(folder / f"{name}.png", buffer.getvalue())
