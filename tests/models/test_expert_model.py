"""One trunk, several experts."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fedtail.errors import FedtailError
from fedtail.models import (
    CosineHead,
    ExpertModel,
    ResNet32Experts,
    ScaledHead,
    SplitModel,
    experts,
    with_cosine_heads,
    with_experts,
)


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 6),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Linear(6, 4),
        nn.BatchNorm1d(4),
        nn.Sequential(nn.Dropout(0.5), ScaledHead(4, 3)),
    )


def batch() -> Tensor:
    return torch.randn(8, 5, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def model() -> ExpertModel:
    return experts(chain(), "3", 3)


def test_identical_experts_give_the_logits_of_one() -> None:
    single = chain().eval()
    out = experts(single, "3", 3, fresh=False).eval().output(batch())

    assert out.experts is not None
    assert torch.allclose(out.logits, single(batch()))
    assert torch.equal(out.experts[0], out.experts[2])


def test_shapes_and_the_mean(model: ExpertModel) -> None:
    out = model.eval().output(batch())

    assert out.experts is not None
    assert out.experts.shape == (3, 8, 3)
    assert out.features.shape == (8, 12)
    assert (model.count, model.num_classes, model.feature_dim) == (3, 3, 12)
    assert torch.allclose(out.logits, out.experts.mean(0))
    assert torch.allclose(model(batch()), out.logits)
    assert torch.allclose(model.heads[1](out.features[:, 4:8]), out.experts[1])
    model.check(batch(), 3)


def test_experts_start_different_and_the_given_model_is_untouched() -> None:
    single = chain()
    before = copy.deepcopy(single.state_dict())
    tensors = experts(single, "3", 2).tensors()

    assert not torch.equal(tensors["heads.0.weight"], tensors["heads.1.weight"])
    assert not torch.equal(tensors["experts.0.3.weight"], tensors["experts.1.3.weight"])
    assert torch.equal(tensors["trunk.0.weight"], before["0.weight"])
    assert all(torch.equal(before[name], tensor) for name, tensor in single.state_dict().items())


def test_cosine_heads() -> None:
    model = experts(SplitModel(chain()), "3", 2, cosine=True, scale=16)

    assert all(isinstance(head, CosineHead) and head.scale == 16 for head in model.heads)
    assert list(model.head_names) == ["heads.0", "heads.1"]
    assert model.tensors()["heads.1.weight"].shape == (4, 3)


def test_each_tensor_belongs_to_the_trunk_or_to_one_expert(model: ExpertModel) -> None:
    owned = [model.expert_names(i) for i in range(3)]
    shared = {name for name in model.tensors() if name.startswith("trunk.")}

    assert sum(map(len, owned)) + len(shared) == len(model.tensors())
    assert shared.union(*owned) == model.tensors().keys()
    assert "experts.1.4.running_mean" in owned[1]


def steps(model: ExpertModel) -> set[str]:
    """Train a few steps with weight decay and momentum; return the names of what moved."""
    before = model.tensors()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        model.train()
        optimizer.zero_grad()
        model(batch()).square().sum().backward()
        optimizer.step()
    return {
        name for name, tensor in model.tensors().items() if not torch.equal(tensor, before[name])
    }


def test_train_only_moves_the_trunk_and_one_expert_buffers_too(model: ExpertModel) -> None:
    everything = set(model.tensors())
    scales = {f"heads.{i}.weight_scale" for i in range(3)}
    assert steps(model) == everything - scales

    model.train_only(1)  # the others carry gradients from the steps above

    others = model.expert_names(0) | model.expert_names(2)
    assert steps(model) == everything - others - scales
    assert not model.parameter_names() & others
    model.train_only(None)
    assert steps(model) == everything - scales


def test_train_only_keeps_the_mode_and_survives_a_copy(model: ExpertModel) -> None:
    assert not model.eval().train_only(0).training
    twin = copy.deepcopy(model).train()

    assert twin.training
    assert [layer.training for layer in twin.batch_norms()] == [True, True, False, False]


def test_the_resnet_of_gbme_shares_its_first_stage() -> None:
    model = ResNet32Experts(experts=2).build((3, 8, 8), 7)
    out = model.output(torch.zeros(2, 3, 8, 8))

    assert out.features.shape == (2, 2 * 48)
    assert {name.split(".")[1] for name in model.tensors() if name.startswith("trunk.")} == {
        "conv1",
        "bn1",
        "layer1",
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: experts(nn.ModuleList([nn.Linear(2, 2)]), "0", 2), "ModuleList is none"),
        (lambda: experts(chain(), "9", 2), "'9' is no place to split.*0, 1, 2"),
        (lambda: experts(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "1", 2), "no place to split"),
        (lambda: experts(chain(), "3", 0), "at least 1, not 0"),
        (lambda: experts(chain(), "3", 2).train_only(2), "no expert 2: the model has 2"),
        (lambda: experts(chain(), "3", 2).expert_names(-1), "no expert -1"),
    ],
)
def test_wrong_values_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(FedtailError, match=message):
        make()


def test_cosine_heads_take_the_place_of_linear_ones() -> None:
    given = SplitModel(chain())
    made = with_cosine_heads(given, scale=8.0)
    head = made.classifier
    assert isinstance(head, CosineHead)
    assert (head.in_features, head.out_features, head.scale) == (4, 3, 8.0)
    assert made.eval().output(batch()).logits.abs().max() <= 8.0 + 1e-4  # rounded
    made.check(batch(), 3)
    # The given model is as it was, and the other tensors are its own.
    assert isinstance(given.classifier, ScaledHead)
    before = given.tensors()
    assert all(torch.equal(before[n], t) for n, t in made.tensors().items() if n[0] != "5")


def test_a_model_that_is_its_classifier_becomes_a_cosine_head() -> None:
    made = with_cosine_heads(SplitModel(nn.Linear(5, 3)))
    assert isinstance(made.module, CosineHead)
    made.check(batch(), 3)


def test_every_expert_gets_a_cosine_head_and_keeps_one_that_it_has(model: ExpertModel) -> None:
    made = with_cosine_heads(model)
    assert all(isinstance(head, CosineHead) and head.scale == 30 for head in made.heads)
    again = with_cosine_heads(made, scale=2.0)
    assert all(isinstance(head, CosineHead) and head.scale == 30 for head in again.heads)
    assert all(torch.equal(again.tensors()[n], t) for n, t in made.tensors().items())
    heads = {n for n in made.names() if n.startswith("heads.")}
    assert heads == {"heads.0.weight", "heads.1.weight", "heads.2.weight"}


def test_a_classifier_that_is_not_linear_cannot_become_a_cosine_head() -> None:
    with pytest.raises(FedtailError, match="Bilinear"):
        with_cosine_heads(SplitModel(nn.Sequential(nn.Bilinear(2, 2, 3)), "0"))
    model = SplitModel(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)), "1")
    with pytest.raises(FedtailError, match="'1' is LayerNorm"):
        experts(model, "0", 2, cosine=True)


def test_experts_only_where_there_are_none() -> None:
    base = SplitModel(chain())
    assert with_experts(base, 1) is base
    made = with_experts(base, 2, "3")
    assert isinstance(made, ExpertModel)
    assert made.count == 2
    assert with_experts(made, 2) is made
    with pytest.raises(FedtailError, match="has 2 experts, the method 3"):
        with_experts(made, 3)
