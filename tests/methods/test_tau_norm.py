"""τ-norm: class vectors of a more equal length, on the copy that is tested."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from torch import nn

from fedtail import FedAvg, ModelState, TauNorm, experts, run
from fedtail.models import SplitModel
from fedtail.models.heads import CosineHead


def final(method: TauNorm, model: SplitModel) -> dict[str, torch.Tensor]:
    """Drive `finalize` by hand; it asks nobody."""
    with pytest.raises(StopIteration) as stop:
        next(method.finalize(ModelState(model.tensors()), tiny.server(model, 1)))
    tensors: dict[str, torch.Tensor] = stop.value.value.model
    return tensors


def linear() -> SplitModel:
    model = SplitModel(nn.Sequential(nn.Identity(), nn.Linear(2, 3)))
    model.load(
        {
            "1.weight": torch.tensor([[3.0, 4.0], [0.0, 4.0], [0.0, 0.0]]),
            "1.bias": torch.tensor([1.0, 2.0, 3.0]),
        }
    )
    return model


@pytest.mark.parametrize(
    ("tau", "expected"),
    [
        # Norms 5, 4 and 0: divided by 5 and 4; by sqrt(5) = 2.236068 and 2; nothing stays nothing.
        (1.0, [[0.6, 0.8], [0.0, 1.0], [0.0, 0.0]]),
        (0.5, [[1.341641, 1.788854], [0.0, 2.0], [0.0, 0.0]]),
    ],
)
def test_vectors_by_hand_and_no_bias(tau: float, expected: list[list[float]]) -> None:
    found = final(TauNorm(tau=tau), linear())
    assert torch.allclose(found["1.weight"], torch.tensor(expected), atol=1e-6)
    assert found["1.bias"].tolist() == [0.0, 0.0, 0.0]


def test_columns_are_the_classes_of_a_cosine_head() -> None:
    model = SplitModel(nn.Sequential(nn.Identity(), CosineHead(2, 3)), "1")
    model.load({"1.weight": torch.tensor([[3.0, 0.0, 1.0], [4.0, 2.0, 0.0]])})
    found = final(TauNorm(tau=1.0), model)["1.weight"]
    assert torch.allclose(found, torch.tensor([[0.6, 0.0, 1.0], [0.8, 1.0, 0.0]]))


def test_every_expert_has_its_head_normalised() -> None:
    model = experts(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 3)), "1", 2)
    found = final(TauNorm(tau=1.0), model)
    for i in range(2):
        norms = found[f"heads.{i}.weight"].norm(dim=1)
        assert torch.allclose(norms, torch.ones(3), atol=1e-6)
        assert not found[f"heads.{i}.bias"].any()
    assert torch.equal(found["trunk.0.weight"], model.tensors()["trunk.0.weight"])


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model])
def test_training_is_fedavgs_and_tau_0_is_fedavg(model: Any) -> None:
    local = tiny.quick(momentum=0.9)
    plain = run(tiny.experiment(FedAvg(local=local), model))
    shorter = run(tiny.experiment(TauNorm(local=local, tau=0.5), model))
    none = run(tiny.experiment(TauNorm(local=local, tau=0), model))
    assert none.digest == plain.digest
    assert all(torch.equal(shorter.state.model[n], t) for n, t in plain.tensors.items())
    assert shorter.digest != plain.digest
    # Nothing is sent for it.
    for one, other in zip(shorter.history, plain.history, strict=True):
        assert one["traffic"] == other["traffic"]
