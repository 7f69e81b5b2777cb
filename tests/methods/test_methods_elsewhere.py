"""Every method trains on a GPU, as far as tensors can tell that pretend to be on one."""

from __future__ import annotations

import pytest
import torch
from method_needs import REFUSES, fields_of, make_experiment
from pretending import pretend

from fedtail import Method, run
from fedtail.models.clip import load_clip
from fedtail.testing.federation import BARE, DROPOUT, NORM, PLAIN

NAMES = [n for n in Method.registry if Method.registry[n].__module__.startswith("fedtail.")]
QUICK = {"creff", "fedavg", "fedyoyo", "redgrape", "scaffold", "slac"}
EVERY = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]


def warm(name: str) -> None:
    """Load what transformers builds in ways that a pretended device does not follow."""
    if name == "clip2fl":
        load_clip(fields_of(name)["clip"])


@pytest.mark.parametrize("name", EVERY)
def test_a_method_mixes_no_devices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # On mps, where there is no float64 either.
    warm(name)
    with pretend(monkeypatch, "mps"):
        result = run(make_experiment(name, DROPOUT, device="mps", rounds=2, eval_every=2))
    assert all(tensor.is_cpu for tensor in result.tensors.values())


@pytest.mark.slow
@pytest.mark.parametrize("together", [0, 4])
@pytest.mark.parametrize("model", [PLAIN, NORM, BARE])
@pytest.mark.parametrize("name", NAMES)
def test_a_method_finds_the_same_elsewhere(
    name: str, model: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if model in REFUSES.get(name, {}):
        return
    warm(name)
    wanted = run(make_experiment(name, model, rounds=2, together=together))
    with pretend(monkeypatch, "cuda"):
        chosen = make_experiment(name, model, rounds=2, together=together, device="cuda")
        found = run(chosen)
    for key, tensor in wanted.tensors.items():
        assert torch.equal(found.tensors[key], tensor)
