"""What is trained is a choice; the rest is frozen, at home, and in evaluation mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import GBME, Experiment, FedAlign, FedAvg, FedtailError, load, run
from fedtail.models import ResNet8, SplitModel, build
from fedtail.models.trained import named_blocks, with_trained

METHOD: FedAvg[Any] = FedAvg(local=tiny.quick())


class Block(nn.Module):
    """A residual block, as networks repeat them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x + self.inner(x))
        return out


class Stacked(nn.Module):
    """A network as transformers are built: a body with a stack of blocks, then a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, tiny.CLASSES)  # registered first, used last
        self.body = nn.ModuleDict(
            {
                "embed": nn.Linear(192, 4),
                "layers": nn.ModuleList([Block(4), Block(4)]),
                "norm": nn.LayerNorm(4),
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.body["embed"](x.flatten(1))
        for layer in self.body["layers"]:  # type: ignore[attr-defined]
            x = layer(x)
        out: Tensor = self.head(self.body["norm"](x))
        return out


def counting() -> nn.Module:
    """BatchNorms with and without parameters of their own, and dropout before the classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2),
        nn.BatchNorm2d(4, affine=False),
        nn.ReLU(),
        nn.Conv2d(4, 4, 1),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(36, tiny.CLASSES),
    )


def training(model: SplitModel) -> set[str]:
    """Return the leaves that are in training mode."""
    model.train()
    named = model.module.named_modules()
    return {name for name, m in named if m.training and next(m.children(), None) is None}


def test_blocks_are_what_a_network_repeats_and_normalisation_goes_along() -> None:
    found = named_blocks(SplitModel(Stacked(), "head"))
    assert [part[0] for part in found] == [
        "body.embed.weight",
        "body.layers.0.inner.0.weight",
        "body.layers.1.inner.0.weight",
        "head.weight",
    ]
    assert found[2][-2:] == ["body.norm.weight", "body.norm.bias"]
    resnet = named_blocks(build(ResNet8(), (3, 32, 32), 10))
    # Eight layers: the first, three blocks of two, the classifier.
    assert [part[0].rpartition(".")[0].split(".")[0] for part in resnet][-1] == "fc"
    assert len(resnet) == 5


@pytest.mark.parametrize(
    ("choice", "names", "modes"),
    [
        ("head", {"7.weight", "7.bias"}, {"7"}),
        ("last:1", {"7.weight", "7.bias"}, {"7"}),
        (
            "last:2",
            {"3.weight", "3.bias", "4.weight", "4.bias", "4.running_mean", "4.running_var",
             "4.num_batches_tracked", "7.weight", "7.bias"},
            {"3", "4", "5", "6", "7"},
        ),
        ("7.*, 3.bias", {"3.bias", "7.weight", "7.bias"}, {"3", "7"}),
        ("7 3", {"3.weight", "3.bias", "7.weight", "7.bias"}, {"3", "7"}),
    ],
)  # fmt: skip
def test_only_the_choice_moves(choice: str, names: set[str], modes: set[str]) -> None:
    model = with_trained(SplitModel(counting()), choice)
    assert model.names() == names
    assert training(model) == modes


def test_the_model_that_was_given_stays_as_it_is() -> None:
    mine = counting()
    run(tiny.experiment(METHOD, mine, train="head", rounds=1))
    assert all(p.requires_grad for p in mine.parameters())
    model = SplitModel(mine)
    assert with_trained(model, "all") is model
    assert training(model) == {"0", "1", "2", "3", "4", "5", "6", "7"}


def test_the_wire_carries_the_head_and_nothing_else(tmp_path: Path) -> None:
    result = run(tiny.experiment(METHOD, counting, train="head"), out=tmp_path / "run")
    each = 4 * (4 * 36 + 4)  # float32; beside it the number of samples and of steps
    assert result.metrics["bytes_down"] == 4 * each
    assert result.metrics["bytes_up"] == 4 * (each + 16)
    assert result.tensors.keys() == counting().state_dict().keys()
    assert sum(t.numel() for t in result.state.model.values()) == 4 * 36 + 4
    held = tiny.arrays()
    again = load(tmp_path / "run", network=counting)
    assert again.score(held["x_test"], held["y_test"]) == result.metrics["accuracy"]


def test_all_by_name_is_all() -> None:
    # Dropout, statistics and parameters: the same computation, so the same bits.
    by_name = run(tiny.experiment(METHOD, counting, train="*"))
    assert by_name.digest == run(tiny.experiment(METHOD, counting)).digest
    last = run(tiny.experiment(METHOD, counting, train="last:3"))
    assert last.digest == by_name.digest


def test_workers_and_a_resumed_run_freeze_the_same(tmp_path: Path) -> None:
    plain = tiny.experiment(METHOD, counting, train="last:2")
    whole = run(plain)
    assert run(plain.but(workers=2)).digest == whole.digest
    run(plain.but(rounds=2), out=tmp_path / "run")
    assert run(plain, out=tmp_path / "run", resume=True).digest == whole.digest


def test_a_run_is_not_resumed_on_another_frozen_part(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first, other = counting(), counting()
    run(tiny.experiment(METHOD, first, train="head", rounds=1), out=tmp_path / "run")
    with pytest.raises(FedtailError, match="a run with another frozen part of the model"):
        run(tiny.experiment(METHOD, other, train="head"), out=tmp_path / "run", resume=True)


def test_experts_on_a_frozen_body_are_heads_on_the_same_features(tmp_path: Path) -> None:
    method = GBME(local=tiny.quick(), experts=2)
    for network in (Stacked, counting):
        out = tmp_path / network.__name__
        result = run(tiny.experiment(method, network, train="head", rounds=2), out=out)
        bodies = [name for name in result.tensors if not name.startswith("heads.")]
        assert all(name.startswith("trunk.body.") for name in bodies)
        assert len(result.tensors) - len(bodies) == 4  # two heads, weight and bias each
        held = tiny.arrays()
        again = load(out, network=network)
        assert again.score(held["x_test"], held["y_test"]) == result.metrics["accuracy"]


def test_what_is_frozen_is_not_drawn_again_for_experts() -> None:
    base = with_trained(SplitModel(counting()), "last:2")
    made = GBME(experts=2, split_at="0").build_model(base).whole({})
    for index in range(2):
        assert torch.equal(made[f"experts.{index}.0.weight"], base.whole({})["0.weight"])


def test_a_block_that_is_to_be_slimmed_has_to_be_trained() -> None:
    with pytest.raises(FedtailError, match="the block '3' at two widths, and it is frozen"):
        run(tiny.experiment(FedAlign(local=tiny.quick()), counting, train="head"))
    # The classifier and the last block with weights.
    run(tiny.experiment(FedAlign(local=tiny.quick()), counting, train="last:2", rounds=1))


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ("", "say what is trained: all, head, last:N"),
        ("last", "give last:N with N at least 1"),
        ("last:0", "give last:N with N at least 1"),
        ("last:4", "'last:4' is more than the 3 blocks of the model"),
        ("haed", "'haed' names no parameter .* did you mean 'head'"),
        ("7.weight", "leaves '7.bias' frozen, which is of the classifier .* add '7.\\*'"),
        ("3.*", "leaves '7.weight' frozen"),
    ],
)
def test_what_cannot_be_chosen_is_said(choice: str, sentence: str) -> None:
    with pytest.raises(FedtailError, match=sentence):
        run(tiny.experiment(METHOD, counting, train=choice))


def test_the_choice_is_a_part_of_the_description() -> None:
    assert Experiment(train="head").describe()["train"] == "head"
