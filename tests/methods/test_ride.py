"""RIDE: all experts trained together; one expert is LDAM."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from torch import nn

from fedtail import LDAM, RIDE, FedtailError, LDAMLoss, LocalTraining, Method, RIDELoss, run
from fedtail.losses import BalancedSoftmax, CrossEntropy
from fedtail.models import CosineHead, ExpertModel, SplitModel, experts
from fedtail.protocol import Payload, grouped
from fedtail.rng import contained


def two_heads() -> ExpertModel:
    """Return two experts that are heads on the input itself, of weights 0 and (0, 1)."""
    heads = [nn.Linear(1, 2, bias=False) for _ in range(2)]
    model = ExpertModel(nn.Identity(), [nn.Identity() for _ in heads], heads)
    one = torch.tensor([[0.0], [1.0]])
    model.load({"heads.0.weight": torch.zeros(2, 1), "heads.1.weight": one})
    return model


def test_one_step_by_hand() -> None:
    # One sample x = 1 of class 0, lr = 1, λ = 0.4, T = 1. Expert 0 has q = (1/2, 1/2), expert 1
    # q = softmax(0, 1), the mean logits (0, 1/2) give p. Each moves by -(q - e_0) + λ (q - p).
    model, data = two_heads(), tiny.federation([[1.0]], [0], [range(1)])
    loss = RIDELoss(base=CrossEntropy(), diversity=0.4, spread=0)
    method = RIDE(loss=loss, experts=2, cosine=False, local=LocalTraining(lr=1.0, batch_size=1))
    reply = method.train(Payload(grouped("model", model.tensors())), tiny.client(data, 0, model))
    q = [torch.tensor([0.5, 0.5]), torch.tensor([0.0, 1.0]).softmax(0)]
    p, true = torch.tensor([0.0, 0.5]).softmax(0), torch.tensor([1.0, 0.0])
    for i, start in enumerate((torch.zeros(2), torch.tensor([0.0, 1.0]))):
        expected = start - (q[i] - true) + 0.4 * (q[i] - p)
        found = reply.tensors[f"model/heads.{i}.weight"].flatten()
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model])
@pytest.mark.parametrize("cosine", [True, False])
def test_one_expert_is_ldam_to_the_bit(model: Any, cosine: bool) -> None:
    ours = run(tiny.experiment(RIDE(experts=1, cosine=cosine, local=tiny.quick()), model))
    same = run(tiny.experiment(LDAM(cosine=cosine, local=tiny.quick()), model))
    assert ours.digest == same.digest


def test_every_expert_moves_and_they_differ() -> None:
    method = RIDE(local=tiny.quick())
    # Once in 64 draws all six ReLUs of an expert are dead, and its head cannot move.
    with contained(0):
        model = method.build_model(SplitModel(tiny.plain_model()))
    assert isinstance(model, ExpertModel)
    assert model.count == 3
    assert all(isinstance(head, CosineHead) and head.scale == 30 for head in model.heads)
    data = tiny.federation([[0.5] * 192] * 4, [0, 1, 1, 2], [range(4)], classes=4)
    before = model.tensors()
    reply = method.train(Payload(grouped("model", before)), tiny.client(data, 0, model))
    after = reply.group("model")
    for i in range(3):
        names = [n for n in before if n.startswith(f"heads.{i}.")]
        assert all(not torch.equal(before[n], after[n]) for n in names)
    assert not torch.equal(after["heads.0.weight"], after["heads.1.weight"])


def test_what_is_tested_is_the_mean_of_the_experts() -> None:
    result = run(tiny.experiment(RIDE(local=tiny.quick()), tiny.norm_model))
    x = torch.randn(5, *tiny.IMAGE)
    net = result.network
    with torch.no_grad():
        heads: Any = net.get_submodule("heads")
        features: Any = net
        each = heads.each(features.features(x))
        torch.testing.assert_close(net(x), each.mean(0))
    assert len(each) == 3


def test_experts_of_the_users_own_model() -> None:
    own = experts(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), "2", 2)
    assert isinstance(RIDE(experts=2).build_model(own), ExpertModel)
    with pytest.raises(FedtailError, match="has 2 experts, the method 3"):
        RIDE().build_model(own)
    chosen = RIDE(experts=2, split_at="2", cosine=False).build_model(SplitModel(tiny.plain_model()))
    assert chosen.names() == {"trunk.1.weight", "trunk.1.bias"} | {
        f"heads.{i}.{kind}" for i in (0, 1) for kind in ("weight", "bias")
    }
    whole = RIDE(experts=2, split_at="1", cosine=False).build_model(SplitModel(tiny.plain_model()))
    assert not any(name.startswith("trunk.") for name in whole.names())


def test_the_scale_of_the_heads_is_the_base_losss() -> None:
    base = SplitModel(tiny.plain_model())
    for inner, scale in ((LDAMLoss(scale=7), 7), (BalancedSoftmax(), 30)):
        model = RIDE(loss=RIDELoss(base=inner)).build_model(base)
        assert [head.scale for head in model.heads if isinstance(head, CosineHead)] == [scale] * 3


def test_fields_of_the_loss_inside_the_loss_can_be_set() -> None:
    fields = {"name": "ride", "loss": {"diversity": 0.2, "base": {"drw": False}}}
    expected = RIDE(loss=RIDELoss(diversity=0.2, base=LDAMLoss(drw=False)))
    assert Method.model_validate(fields) == expected


def test_the_papers_values() -> None:
    loss = RIDE().loss
    assert isinstance(loss, RIDELoss)
    assert (RIDE().experts, loss.diversity, loss.temperature, loss.spread) == (3, 0.2, 1.0, 0.05)
    assert loss.base == LDAMLoss()
