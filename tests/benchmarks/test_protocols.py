"""The protocols of the comparison are experiments that can choose without the test set."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtail.described import load_experiment, make_experiment

FOLDER = Path(__file__).parents[2] / "benchmarks" / "protocols"
FILES = sorted(FOLDER.glob("*.toml"))


def test_there_is_one_for_every_cell() -> None:
    kinds = [path.name[0] for path in FILES]
    planned = {"c": 1, "f": 8, "n": 1, "p": 2, "r": 3, "s": 2}
    assert {kind: kinds.count(kind) for kind in kinds} == planned


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_an_experiment_that_validates(path: Path) -> None:
    described = load_experiment(path)
    chosen = make_experiment(described)
    assert chosen.validation.share > 0
    assert chosen.keep == "best"
    assert chosen.score == "balanced_accuracy"
    assert set(described["method"]) == {"local"}  # nothing is said of methods
