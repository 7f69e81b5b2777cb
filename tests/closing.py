"""Sums of features without a run: tasks answered by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tiny
import torch
from torch import nn

from fedtail import Arrays, ClosedForm, Experiment, Method
from fedtail.data.federation import Federation
from fedtail.models import SplitModel
from fedtail.protocol import Payload, Task, Update
from fedtail.reduce import Reduced
from fedtail.training.feature_sums import Aim, FeatureSums, Wanted, ask_feature_sums


def identity(width: int, classes: int, bias: bool = True) -> SplitModel:
    """Features are the inputs."""
    return SplitModel(nn.Sequential(nn.Identity(), nn.Linear(width, classes, bias=bias)))


def wide(method: Method[Any], **fields: Any) -> Experiment:
    """A head alone on 40 features of 120 samples: an aimed sketch is less than the triangle."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 4
    x = torch.randn(120, 40, generator=draw) + 3 * torch.eye(4).repeat(1, 10)[y]
    data = Arrays(x, y, x, y, classes=tuple("abcd"), normalisation="none")
    head = nn.Linear(40, 4)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    chosen: dict[str, Any] = {"clients": 6, "per_round": 2, "rounds": 40, "eval_every": 20}
    chosen |= {"partition": "iid", "device": "cpu", "validation": {"share": 0.2}, **fields}
    return Experiment(data=data, model=head, method=method, **chosen)


def question(
    model: SplitModel, counts: Sequence[int], products: bool, balanced: bool = False
) -> Payload:
    """Return what clients are sent in the second exchange."""
    tensors = {f"model/{n}": t for n, t in model.tensors().items()}
    facts = {"width": model.feature_dim, "products": int(products), "balanced": int(balanced)}
    return Payload({**tensors, "weigh/counts": torch.tensor(counts)}, facts)


def answered(tasks: Sequence[Task], data: Federation, model: SplitModel) -> Reduced:
    """Return what clients answer, added up."""
    method, action = ClosedForm(), tasks[0].action
    updates = [
        Update(t.client, getattr(method, action)(t.payload, tiny.client(data, t.client, model)))
        for t in tasks
    ]
    server = tiny.server(model, len(data), num_classes=data.num_classes)
    return tiny.added(method, updates, server, action, tasks[0].payload)


def asked(
    model: SplitModel, data: Federation, wanted: Wanted, aim: Aim | None = None
) -> FeatureSums:
    """Hold both exchanges, and those of an aimed sketch."""
    server = tiny.server(model, len(data), num_classes=data.num_classes)
    exchange = ask_feature_sums(model.tensors(), model, server, wanted, aim)
    tasks = next(exchange)
    while True:
        try:
            tasks = exchange.send(answered(tasks, data, model))
        except StopIteration as stop:
            sums: FeatureSums = stop.value
            return sums
