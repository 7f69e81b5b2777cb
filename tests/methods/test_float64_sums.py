"""Exact sums against what float64 sums in the order of client ids gave.

`float64_sums.safetensors` holds the models of eleven methods after the three rounds of conformance
tests, made at the last commit that added updates up in float64. Another processor rounds training
itself otherwise, by some 1e-7 in three rounds; the tolerance is the one that the change promised.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from method_needs import make_experiment

from fedtail import run

BEFORE: dict[str, dict[str, Any]] = {
    "fedlc": {"absent": 0.0, "tau": 1.0},
    "gbme": {"prior": {"name": "proxy", "index": "epoch", "reads": "rows"}, "rest": "others"},
    "redgrape": {"rebalance": "outside"},
}
"""The defaults that methods had then."""
OLD = safetensors.torch.load_file(Path(__file__).with_name("float64_sums.safetensors"))


@pytest.mark.parametrize("name", sorted({key.partition("/")[0] for key in OLD}))
def test_the_sums_of_before(name: str) -> None:
    experiment = make_experiment(name, "plain")
    method = experiment.method.but(**BEFORE.get(name, {}))
    found = run(experiment.but(method=method)).tensors
    old = {k.removeprefix(f"{name}/"): t for k, t in OLD.items() if k.startswith(f"{name}/")}
    assert found.keys() == old.keys()
    for key, tensor in found.items():
        torch.testing.assert_close(tensor, old[key], rtol=0, atol=1e-6)
