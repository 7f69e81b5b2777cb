"""Whatever a method ships is loaded from its folder as it was tested."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
from method_needs import make_experiment

from fedtail import Method, load, run
from fedtail.folder import RunFolder

NAMES = [n for n in Method.registry if Method.registry[n].__module__.startswith("fedtail.")]


@pytest.mark.parametrize("name", NAMES)
def test_what_any_method_ships_can_be_loaded(name: str, tmp_path: Path) -> None:
    held = tiny.arrays()
    result = run(make_experiment(name, rounds=2), out=tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    confusion = np.array(json.loads(folder.confusion.read_bytes())["confusion"])
    loaded = load(tmp_path / "run")
    expected = confusion.trace() / confusion.sum()
    assert loaded.score(held["x_test"], held["y_test"]) == expected
    assert result.model.score(held["x_test"], held["y_test"]) == expected
    assert set(loaded.network.state_dict()) == set(result.tensors)
