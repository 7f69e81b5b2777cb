"""Several models side by side: mean probability, shared tensors, other beginnings."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fedtail import FedtailError
from fedtail.models import SplitModel
from fedtail.models.ensemble import Ensemble, as_member, mean_probability, of_member


def two_layers(heads_only: bool = False) -> Ensemble:
    base = SplitModel(nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 2)))
    return Ensemble(base, 2, heads_only)


def test_the_mean_of_probabilities_by_hand() -> None:
    # (9/10, 1/10) and (1/5, 4/5) have the mean (11/20, 9/20); (3/4, 1/4) and (1/100, 99/100) have
    # (38/100, 62/100). The logits are the logs of these numbers.
    z = torch.tensor([[[9.0, 1.0], [3.0, 1.0]], [[1.0, 4.0], [1.0, 99.0]]]).log()
    found = mean_probability(z)
    torch.testing.assert_close(found.softmax(1), torch.tensor([[0.55, 0.45], [0.38, 0.62]]))
    torch.testing.assert_close(found.exp(), found.softmax(1))


def test_a_confident_model_does_not_underflow() -> None:
    z = torch.tensor([[[200.0, 0.0]], [[0.0, 0.0]]])
    # (1, e^-200) and (1/2, 1/2): the mean is (3/4, 1/4).
    torch.testing.assert_close(mean_probability(z).exp(), torch.tensor([[0.75, 0.25]]))


@pytest.mark.parametrize("heads_only", [False, True])
def test_only_the_first_begins_as_the_model_does(heads_only: bool) -> None:
    base = SplitModel(nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 2)))
    first, second = (member.tensors() for member in Ensemble(base, 2, heads_only).members)
    assert all(torch.equal(first[name], tensor) for name, tensor in base.tensors().items())
    assert torch.equal(second["0.weight"], first["0.weight"]) == heads_only
    assert not torch.equal(second["1.weight"], first["1.weight"])


def test_members_are_the_ensembles_own_tensors_also_in_a_copy() -> None:
    model = copy.deepcopy(two_layers())
    other = {name: t + 1 for name, t in model.members[1].tensors().items()}
    model.members[1].load(other)
    found = of_member(1, model.tensors())
    assert all(torch.equal(found[name], tensor) for name, tensor in other.items())
    model.load({name: t + 1 for name, t in model.tensors().items()})
    assert torch.equal(model.members[1].tensors()["1.bias"], other["1.bias"] + 1)


def test_models_that_are_nothing_but_a_classifier() -> None:
    model = Ensemble(SplitModel(nn.Linear(2, 3)), 2)
    assert model.classifier_name == "members.1"
    assert set(model.names()) == {f"members.{i}.{n}" for i in (0, 1) for n in ("weight", "bias")}
    assert model(torch.zeros(4, 2)).shape == (4, 3)


def test_names_go_back_and_forth() -> None:
    named = two_layers().tensors()
    assert {**as_member(0, of_member(0, named)), **as_member(1, of_member(1, named))} == named
    assert set(of_member(0, named)) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_what_one_pass_gives() -> None:
    model, x = two_layers(), torch.ones(2, 1)
    out = model.output(x)
    assert out.features.shape == (2, 6)
    assert out.experts is not None
    torch.testing.assert_close(out.logits, model(x))
    for i, member in enumerate(model.members):
        torch.testing.assert_close(out.experts[i], member(x))
        torch.testing.assert_close(out.features[:, 3 * i : 3 * i + 3], member.features(x))
    assert model.num_classes == 2


class Rigid(nn.Module):
    """A layer that cannot be initialised again."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3, 2))
        self.in_features, self.out_features = 3, 2

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def test_models_that_would_all_begin_alike_are_refused() -> None:
    base = SplitModel(nn.Sequential(Rigid()), "0")
    with pytest.raises(FedtailError, match="no layer has 'reset_parameters'"):
        Ensemble(base, 2)
    # A trunk that can be initialised does not help where only heads are.
    deeper = SplitModel(nn.Sequential(nn.Linear(3, 3), Rigid()), "1")
    with pytest.raises(FedtailError, match="no layer of the head has 'reset_parameters'"):
        Ensemble(deeper, 2, heads_only=True)
    assert len(Ensemble(deeper, 2).members) == 2
    assert len(Ensemble(base, 1).members) == 1
