"""LoRA: what is sent is small, what is shipped is the plain network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from fedtail import GBME, FedAvg, FedtailError, load, run
from fedtail.models import SplitModel
from fedtail.models.lora import merged_model, rank_of, with_lora

METHOD: FedAvg[Any] = FedAvg(local=tiny.quick())


def network() -> nn.Module:
    """Two layers that LoRA fits beside, one of groups that it does not, a norm and a classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 4, 1, groups=2),
        nn.Flatten(),
        nn.Linear(36, 6),
        nn.ReLU(),
        nn.Linear(6, tiny.CLASSES),
    )


def test_the_rank_and_alpha_are_read() -> None:
    assert rank_of("lora:r=8") == (8, 16)
    assert rank_of("lora:r=4, alpha=2") == (4, 2)
    for wrong in ("lora", "lora:8", "lora:r=0", "lora:r=2,beta=1"):
        with pytest.raises(FedtailError, match="give lora:r=8, or lora:r=8,alpha=16"):
            tiny.experiment(METHOD, network, train=wrong)


def test_it_begins_as_the_network_is_and_trains_little_of_it() -> None:
    plain = SplitModel(network()).eval()
    model = with_lora(plain, "lora:r=2")
    x = torch.randn(3, *tiny.IMAGE, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.eval()(x), plain(x))
    # Rank 2: A is 2 x (3 3x3) and B 4 x 2 for the first layer, 2 x 36 and 6 x 2 for the second.
    sizes = {name: t.numel() for name, t in model.live()}
    assert sizes == {
        "0.lora_A.default.weight": 54,
        "0.lora_B.default.weight": 8,
        "4.lora_A.default.weight": 72,
        "4.lora_B.default.weight": 12,
        "6.weight": 24,
        "6.bias": 4,
    }
    assert not any(
        norm.training for norm in model.train().modules() if isinstance(norm, nn.BatchNorm2d)
    )


def test_merging_is_the_sum_by_hand() -> None:
    model = with_lora(SplitModel(network()), "lora:r=2,alpha=6")
    with torch.no_grad():
        for name, tensor in model.live():
            if "lora_B" in name:
                tensor.normal_(generator=torch.Generator().manual_seed(1))
    parts = model.whole(model.tensors())
    update = 3 * parts["4.lora_B.default.weight"] @ parts["4.lora_A.default.weight"]  # α / r = 3
    plain = merged_model(model)
    tensors = plain.whole(plain.tensors())
    assert tensors.keys() == network().state_dict().keys()
    torch.testing.assert_close(tensors["4.weight"], parts["4.base_layer.weight"] + update)
    x = torch.randn(3, *tiny.IMAGE, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(plain.eval()(x), model.eval()(x))
    assert merged_model(plain) is plain


def test_a_run_sends_the_update_and_ships_the_plain_network(tmp_path: Path) -> None:
    experiment = tiny.experiment(METHOD, network, train="lora:r=2")
    result = run(experiment, out=tmp_path / "run")
    each = 4 * (54 + 8 + 72 + 12 + 24 + 4)
    assert result.metrics["bytes_down"] == 4 * each
    assert result.metrics["bytes_up"] == 4 * (each + 16)
    mine = network()
    mine.load_state_dict(result.tensors)
    held = tiny.arrays()
    again = load(tmp_path / "run", network=network)
    assert again.score(held["x_test"], held["y_test"]) == result.metrics["accuracy"]
    again.export(tmp_path / "model.pt2")
    assert run(experiment.but(workers=2)).digest == result.digest
    longer = run(experiment.but(rounds=4), out=tmp_path / "run", resume=True)
    assert longer.digest == run(experiment.but(rounds=4)).digest


def test_experts_get_updates_of_their_own(tmp_path: Path) -> None:
    method = GBME(local=tiny.quick(), experts=2, split_at="4")
    result = run(tiny.experiment(method, network, train="lora:r=2"), out=tmp_path / "run")
    assert not any("lora" in name for name in result.tensors)
    held = tiny.arrays()
    again = load(tmp_path / "run", network=network)
    assert again.score(held["x_test"], held["y_test"]) == result.metrics["accuracy"]


def test_a_network_without_a_body_is_refused() -> None:
    with pytest.raises(FedtailError, match="finds no linear or convolution layer before"):
        with_lora(SplitModel(nn.Linear(2, 2)), "lora:r=1")


def test_without_peft_the_extra_is_named(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(FedtailError, match=r"needs the package peft.*\.\[pretrained\]"):
        run(tiny.experiment(METHOD, network, train="lora:r=2"))
