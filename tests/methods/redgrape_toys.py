"""Small models, data and messages for the tests of RedGrape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tiny
import torch
from torch import nn

from fedtail import LocalTraining
from fedtail.data.federation import Federation
from fedtail.methods import LocalRun
from fedtail.methods.redgrape import RedGrape
from fedtail.models import SplitModel
from fedtail.protocol import Client, Payload, grouped
from fedtail.training.prototypes import no_prototypes

STEP = LocalTraining(lr=1.0, batch_size=10)


def network(method: RedGrape, norm: bool = False, classes: int = 3) -> SplitModel:
    """Return two inputs, four features.

    A bias before BatchNorm has a gradient of zero, and whether it moves is a matter of rounding.
    """
    layers = [
        nn.Linear(2, 4, bias=not norm),
        nn.BatchNorm1d(4) if norm else nn.Identity(),
        nn.Tanh(),
    ]
    return method.build_model(SplitModel(nn.Sequential(*layers, nn.Linear(4, classes))))


def cloud(labels: Sequence[int], classes: int = 3) -> Federation:
    """Return one client with two random inputs a sample."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(len(labels), 2, generator=generator).tolist()
    return tiny.federation(x, labels, [range(len(labels))], classes)


def sent(model: SplitModel, rows: Mapping[int, Sequence[Sequence[float]]] | None = None) -> Payload:
    """Return what the server sends: the model, and prototypes of the weight by class."""
    table = no_prototypes(model.classifier)
    if rows:
        table["classes"] = torch.tensor(sorted(rows))
        table["weight"] = torch.tensor([rows[c] for c in sorted(rows)])
    if rows and "bias" in table:
        table["bias"] = table["weight"].sum(dim=2)
    return Payload({**grouped("model", model.tensors()), **grouped("proto", table)})


def started(method: RedGrape, payload: Payload, client: Client) -> LocalRun:
    """Return the local run before its first step."""
    method.load(payload, client)
    return method.start(payload, client)
