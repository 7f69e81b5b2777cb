"""How far the proxy prior is from the true class counts, read off rows (Eq. 4) and off the bias.

FEDTAIL_DATA=FOLDER python -m benchmarks.proxy_prior

One exchange on cells of the comparison, two seeds. *distance* is the total variation of both
distributions, *tail* the share of the rarest 30 % of classes over the true one; without the floor.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from torch import Tensor

from benchmarks.comparison.plan import PROTOCOLS
from benchmarks.figures.common import experiment, read_protocol
from benchmarks.results_file import save
from fedtail import run

CELLS = (
    "f_cifar10_if100_dir0.1",
    "f_cifar10_if100_dir0.5",
    "f_cifar100_if100_dir0.1",
    "f_cifar100_if100_dir0.5",
    "p_speech",
    "p_fortunes",
    "s_fashion_mnist_dir0.1",
    "s_fashion_mnist_dir0.5",
    "r_hapt",
)
SEEDS = (0, 1)


def shares(cell: str, seed: int, prior: dict[str, Any]) -> Tensor:
    """Return the class prior that a run begins with."""
    protocol = read_protocol(PROTOCOLS / f"{cell}.toml", rounds=1, eval_every=1)
    counts: Tensor = run(experiment(protocol, seed, {"name": "bsm", "prior": prior})).state.prior
    return counts.double() / counts.double().sum()


def measured(cell: str, seed: int, reads: str) -> dict[str, float]:
    """Compare the estimate with the truth."""
    found = shares(cell, seed, {"name": "proxy", "reads": reads, "floor": 1e-9})
    true = shares(cell, seed, {"name": "global"})
    tail = true.argsort()[: max(len(true) * 3 // 10, 1)]
    return {
        "distance": round(float((found - true).abs().sum() / 2), 3),
        "tail": round(float(found[tail].sum() / true[tail].sum()), 2),
    }


def table(numbers: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return the distances, means over seeds, as GBME's page has them."""
    rows = ["| | rows (Eq. 4) | bias |", "|---|---|---|"]
    for cell in CELLS:
        seeds = [numbers[f"{cell}/{seed}"] for seed in SEEDS]
        means = [fmean(found[reads]["distance"] for found in seeds) for reads in ("rows", "bias")]
        rows.append(f"| {cell} | {means[0]:.2f} | {means[1]:.2f} |")
    return "\n".join(rows)


def main() -> None:
    """Measure every cell, seed and reading."""
    numbers = {
        f"{cell}/{seed}": {reads: measured(cell, seed, reads) for reads in ("rows", "bias")}
        for cell in CELLS
        for seed in SEEDS
    }
    save("proxy_prior", numbers)


if __name__ == "__main__":
    main()
