"""What a model is made of is walked once, and again when it is made of something else."""

from __future__ import annotations

import copy
import pickle

import torch
from torch import Tensor, nn

from fedtail.models.split_model import SplitModel


def model() -> SplitModel:
    return SplitModel(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)))


def test_a_walk_is_remembered() -> None:
    made = model()
    assert made._found is made._found
    assert list(made.tensors()) == list(made.module.state_dict())


def test_a_layer_that_is_replaced_is_seen() -> None:
    made = model()
    made.tensors()
    new = nn.Linear(3, 2)
    setattr(made.module, "2", new)
    assert made.trainable()["2.weight"] is new.weight
    assert torch.equal(made.tensors()["2.bias"], new.bias)


def test_a_parameter_that_is_replaced_removed_or_added_is_seen() -> None:
    made = model()
    made.tensors()
    made.classifier.register_parameter("bias", None)
    assert "2.bias" not in made.names()
    weight = made.classifier.weight = nn.Parameter(torch.zeros(2, 3))
    assert made.trainable()["2.weight"] is weight
    made.classifier.register_buffer("seen", torch.ones(1))
    assert "2.seen" in made.names()


def test_a_head_that_is_added_is_seen() -> None:
    made = model()
    made.tensors()
    made.extra_heads["more"] = nn.Linear(3, 2)
    assert {"more.weight", "more.bias"} <= made.names()


def test_copies_know_their_own_tensors() -> None:
    made = model()
    made.tensors()
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        own = dict(other.module.named_parameters())
        assert all(own[name] is parameter for name, parameter in other.trainable().items())


def test_frozen_layers_start_and_stay_in_evaluation_mode() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    module[:2].requires_grad_(False)
    made = SplitModel(module)
    assert module[1].training
    made.train()
    assert [layer.training for layer in module] == [False, False, True]
    made.eval()
    assert not made.training and not any(layer.training for layer in module)


class Own(nn.Module):
    """A layer that never trains."""

    def train(self, mode: bool = True) -> Own:
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_a_layer_with_a_mode_of_its_own_keeps_it() -> None:
    made = SplitModel(nn.Sequential(Own(), nn.Linear(2, 2)))
    made.train()
    assert [layer.training for layer in made.module.children()] == [False, True]


def test_features_are_seen_and_nothing_is_left_behind() -> None:
    made = model().eval()
    x = torch.ones(4, 2)
    out = made.output(x)
    assert torch.equal(made.classifier(out.features), out.logits)
    assert "forward" not in vars(made.classifier)


def test_a_forward_of_the_users_own_is_called_and_kept() -> None:
    made = SplitModel(nn.Sequential(nn.Linear(2, 2)))
    layer = made.classifier
    plain = layer.forward
    mine = layer.forward = lambda x: plain(2 * x)
    out = made.output(torch.ones(1, 2))
    assert torch.equal(out.features, torch.ones(1, 2))
    assert torch.equal(out.logits, plain(2 * torch.ones(1, 2)))
    assert layer.forward is mine
