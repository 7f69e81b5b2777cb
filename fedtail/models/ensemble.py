"""Several models of one kind side by side; together they answer with their mean probability."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedtail.errors import FedtailError
from fedtail.models.probe import reset
from fedtail.models.split_model import Output, SplitModel

T = TypeVar("T")


class EnsembleNet(nn.Module):
    """The plain module inside an `Ensemble`: ``members.0…``."""

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """Return the log of the members' mean softmax: logits of which that is the softmax."""
        return mean_probability(torch.stack([member(x) for member in self.members]))


class Ensemble(SplitModel):
    """M models of the same shape, each trained by itself.

    The first is the one given, the others are initialised again: whole, or only their heads.

    Parameters
    ----------
    model
        What they are copies of.
    count
        How many.
    heads_only
        Whether they differ in their heads alone.
    """

    def __init__(self, model: SplitModel, count: int, heads_only: bool = False) -> None:
        members = [copy.deepcopy(model) for _ in range(count)]
        for member in members[1:]:
            for part in member.heads if heads_only else [member.module]:
                reset(part)
            if all(map(torch.equal, member.tensors().values(), model.tensors().values())):
                raise FedtailError(
                    "a second model cannot be initialised: no layer"
                    f"{' of the head' if heads_only else ''} has 'reset_parameters'"
                )
        super().__init__(
            EnsembleNet(member.module for member in members),
            # A bare layer is its own classifier, and has no name.
            f"members.{count - 1}.{model.classifier_name}".rstrip("."),
        )
        # In a list: as attributes they would be registered a second time.
        self._members = members

    @property
    def members(self) -> list[SplitModel]:
        """The models; they share their tensors with the ensemble."""
        return self._members

    def compute_in(self, precision: torch.dtype) -> None:
        """Set what the members' bodies compute in while they train."""
        super().compute_in(precision)
        for member in self._members:
            member.compute_in(precision)

    def output(self, x: Tensor, features: bool = True) -> Output:
        """Return the logits of the mean probability, all features, and each member's logits."""
        each = [member.output(x) for member in self._members]
        logits = torch.stack([output.logits for output in each])
        found = torch.cat([output.features for output in each], dim=1)
        return Output(mean_probability(logits), found, logits)


def mean_probability(logits: Tensor) -> Tensor:
    """Return log(1/M Σ_m softmax(z_m)) of logits (members, batch, classes)."""
    return logits.log_softmax(dim=-1).logsumexp(dim=0) - math.log(len(logits))


def of_member(index: int, named: Mapping[str, T]) -> dict[str, T]:
    """Return what belongs to one member, by its own names."""
    prefix = f"members.{index}."
    return {n.removeprefix(prefix): item for n, item in named.items() if n.startswith(prefix)}


def as_member(index: int, named: Mapping[str, T]) -> dict[str, T]:
    """Return a member's things by the ensemble's names: the inverse of `of_member`."""
    return {f"members.{index}.{name}": item for name, item in named.items()}
