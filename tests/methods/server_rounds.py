"""Rounds of one weight, for the tests of server optimisers."""

from __future__ import annotations

import tiny
import torch
from torch import nn

from fedtail import FedAvg
from fedtail.methods import ModelState
from fedtail.models import SplitModel
from fedtail.protocol import Payload, Update, grouped


def rounds(method: FedAvg[ModelState], *means: float) -> list[float]:
    """Return a weight that starts at 0, after each of the rounds whose averages are given."""
    model = SplitModel(nn.Sequential(nn.Linear(1, 2, bias=False)))
    server = tiny.server(model, 1)
    state, found = ModelState({"0.weight": torch.zeros(2, 1)}), []
    for mean in means:
        tensors = {"0.weight": torch.full((2, 1), mean)}
        update = Update(0, Payload(grouped("model", tensors), {"samples": 1}))
        state = tiny.after(method, state, [update], server)
        found.append(float(state.model["0.weight"][0]))
    return found
