"""What needs no gradient is a part of the architecture: not sent, not moved, but shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from fedtail import FedAvg, FedtailError, load, run
from fedtail.models import SplitModel
from fedtail.models.probe import frozen_layers


def network(frozen: bool) -> nn.Module:
    trunk = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False), nn.ReLU()
    )
    trunk.requires_grad_(not frozen)
    return nn.Sequential(trunk, nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, tiny.CLASSES))


def half_frozen() -> nn.Module:
    return network(frozen=True)


def test_layers_are_frozen_with_all_that_stands_inside() -> None:
    assert frozen_layers(network(frozen=True)) == ("0", "0.0", "0.1", "0.2", "0.3")
    assert frozen_layers(network(frozen=False)) == ()
    model = SplitModel(network(frozen=True))
    assert model.names() == {"3.weight", "3.bias"}
    assert model.batch_norms() == []
    assert len(SplitModel(network(frozen=False)).batch_norms()) == 2


def test_frozen_layers_stay_in_evaluation_mode() -> None:
    model = SplitModel(network(frozen=True)).train()
    modes = {name: layer.training for name, layer in model.module.named_modules()}
    assert modes == {
        "": True, "0": False, "0.0": False, "0.1": False, "0.2": False, "0.3": False,
        "1": True, "2": True, "3": True,
    }  # fmt: skip


def test_one_frozen_parameter_stays_at_home_and_its_layer_trains() -> None:
    layer = nn.Linear(4, 3)
    layer.bias.requires_grad_(False)
    model = SplitModel(nn.Sequential(layer))
    assert model.names() == {"0.weight"}
    assert frozen_layers(model.module) == ()
    assert model.train().module[0].training  # type: ignore[index]


def test_a_run_sends_only_what_moves_and_ships_everything(tmp_path: Path) -> None:
    torch.manual_seed(0)
    mine = half_frozen()
    with torch.no_grad():
        for norm in (mine[0][1], mine[0][2]):  # type: ignore[index]
            norm.running_mean.uniform_()
    method: FedAvg[Any] = FedAvg(local=tiny.quick())
    result = run(tiny.experiment(method, mine), out=tmp_path / "run")
    # A classifier of 4 x 36 weights and 4 biases in float32; the number of samples and of steps.
    each = 4 * (4 * 36 + 4)
    assert result.metrics["bytes_down"] == 4 * each
    assert result.metrics["bytes_up"] == 4 * (each + 16)
    before = mine.state_dict()
    assert result.tensors.keys() == before.keys()
    moved = {name for name, t in result.tensors.items() if not torch.equal(t, before[name])}
    assert moved == {"3.weight", "3.bias"}
    held = tiny.arrays()
    loaded = load(tmp_path / "run", network=half_frozen)  # with other weights in the trunk
    assert loaded.score(held["x_test"], held["y_test"]) == result.metrics["accuracy"]
    again = run(tiny.experiment(method, mine, workers=2))
    assert again.digest == result.digest


def test_a_model_without_anything_to_train_is_refused() -> None:
    with pytest.raises(FedtailError, match="no parameter of the model requires gradients"):
        run(tiny.experiment(model=tiny.plain_model().requires_grad_(False)))


def test_tensors_load_with_the_frozen_ones_and_without() -> None:
    model, other = SplitModel(network(frozen=True)), SplitModel(network(frozen=True))
    model.load(other.tensors())
    assert torch.equal(model.classifier.weight, other.classifier.weight)  # type: ignore[arg-type]
    assert not torch.equal(model.whole({})["0.0.weight"], other.whole({})["0.0.weight"])
    model.load(other.whole(other.tensors()))
    assert torch.equal(model.whole({})["0.0.weight"], other.whole({})["0.0.weight"])
