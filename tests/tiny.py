"""The small federation of `fedtail.testing`, and what tests of single functions need beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedtail.data.dataset import Dataset, Samples
from fedtail.data.federation import ClientData, Federation
from fedtail.forms import Form
from fedtail.methods import FedAvg, Method, ModelState
from fedtail.models import SplitModel
from fedtail.protocol import Client, Payload, Server, Update
from fedtail.reduce import Reduced, reduced
from fedtail.testing.executors import Isolated, global_streams, run_with
from fedtail.testing.federation import (
    COUNTS,
    IMAGE,
    arrays,
    dropout_model,
    experiment,
    norm_model,
    plain_model,
    quick,
    source,
    unbiased_model,
)
from fedtail.testing.federation import (
    NUM_CLASSES as CLASSES,
)

__all__ = [
    "CLASSES",
    "COUNTS",
    "IMAGE",
    "Isolated",
    "added",
    "after",
    "arrays",
    "client",
    "dropout_model",
    "experiment",
    "federation",
    "global_streams",
    "line_of",
    "norm_model",
    "plain_model",
    "quick",
    "run_with",
    "server",
    "source",
    "spare_model",
    "unbiased_model",
    "vectors",
]


S = TypeVar("S", bound=ModelState)


def spare_model() -> SplitModel:
    """Softmax regression with a parameter that has no part in it, and so never a gradient."""
    module = nn.Sequential(nn.Linear(1, 2, bias=False))
    module.register_parameter("spare", nn.Parameter(torch.ones(1)))
    return SplitModel(module)


def vectors(x: Sequence[Sequence[float]], y: Sequence[int], classes: int) -> Samples:
    """Return float samples."""
    return Samples(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


def federation(
    x: Sequence[Sequence[float]], y: Sequence[int], parts: Sequence[Sequence[int]], classes: int = 2
) -> Federation:
    """Return a federation of vectors, tested on what it trains on."""
    samples = vectors(x, y, classes)
    dataset = Dataset(samples, samples, tuple(str(c) for c in range(classes)))
    return Federation(dataset, [np.array(part, dtype=np.int64) for part in parts])


def client(
    of: Federation,
    k: int,
    model: SplitModel,
    state: dict[str, Tensor] | None = None,
    **fields: Any,
) -> Client:
    """Return what a task of client k sees."""
    moment: Mapping[str, Any] = {"round": 1, "rounds": 1, **fields}
    data: ClientData = of.client(k)
    return Client(
        id=k,
        data=data,
        counts=of.counts(k),
        model=model,
        state={} if state is None else state,
        **moment,
    )


def server(model: SplitModel, clients: int, **fields: Any) -> Server:
    """Return the server of round 1, with all clients in the cohort."""
    chosen: dict[str, Any] = {
        "round": 1,
        "rounds": 1,
        "clients": range(clients),
        "per_round": clients,
        "num_classes": 2,
        **fields,
    }
    return Server(model=model, **chosen)


def line_of(module: ModuleType, text: str) -> int:
    """Return the number of the line of a module that holds a text."""
    lines = Path(str(module.__file__)).read_text(encoding="utf-8").splitlines()
    (number,) = [n for n, line in enumerate(lines, start=1) if text in line]
    return number


def added(
    method: Method[Any],
    updates: Sequence[Update],
    server: Server,
    action: str = "train",
    task: Payload | None = None,
) -> Reduced:
    """Return hand-made updates, added up as the method declares."""
    declared = getattr(method, f"{action}_form")
    form: Form = declared(task or Payload(), server.model, server.num_classes)
    return reduced(updates, form)


def after(
    method: FedAvg[S],
    s: S,
    updates: Sequence[Update],
    server: Server,
    action: str = "train",
    task: Payload | None = None,
) -> S:
    """Return the state after hand-made updates."""
    return method.aggregate(s, added(method, updates, server, action, task), server)
