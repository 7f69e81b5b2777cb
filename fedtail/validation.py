"""Validation in a federation: who holds samples out counts, and scores come of sums of counts.

It is an exchange like any other: the action `assess` of every method, with a form that is added
up as it is. So it works wherever tasks are carried, and in secure sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fedtail.forms import LARGEST, Form, Like, Total
from fedtail.metrics.evaluation import Evaluation
from fedtail.metrics.groups import ShotGroups
from fedtail.metrics.scores import class_scores
from fedtail.models.split_model import load_tested
from fedtail.protocol import Client, ClientId, Exchange, Payload, Task, Tensors, grouped

if TYPE_CHECKING:
    from fedtail.reduce import Reduced

HELD_OUT = "validation"
"""The group of tensors that is added up."""
COUNTED_AT_ONCE = 500
"""Samples that are given to the network at a time."""


def form_of_counts(classes: int) -> Form:
    """Declare right answers and samples of each class, and the summed loss.

    A table of confusions would tell more of a client than any score needs, and be C times as large.
    """
    count = Like((classes,), torch.int64, low=0, counted=True)
    loss = Like((1,), torch.float64, low=0)
    return Form().group(HELD_OUT, {"right": count, "samples": count, "loss": loss}, Total())


def count(model: Tensors, client: Client) -> Payload:
    """Count how a model does on what a client holds out; the client's state is not touched."""
    tested = load_tested(model, client.model, client.base or client.model)
    held, classes = client.data.held_out, client.num_classes
    found = Evaluation.empty(classes)
    with torch.inference_mode():
        for index in torch.split(torch.arange(len(held)), COUNTED_AT_ONCE):
            x, y = held.batch(index)
            found = found + Evaluation.of(tested(x), y, classes)
    # A model that has diverged has no loss; nothing else is sent that is not finite.
    loss = found.loss_sum if math.isfinite(found.loss_sum) else LARGEST
    counts = {
        "right": found.right,
        "samples": found.of_class,
        "loss": torch.tensor([min(loss, LARGEST)], dtype=torch.float64),
    }
    return Payload(grouped(HELD_OUT, counts))


def asked(model: Tensors, clients: Sequence[ClientId]) -> Exchange[Reduced | None]:
    """Send a model to those who hold something out; return what came back, if anything did."""
    payload = Payload(grouped("model", model))
    return (yield [Task(client, "assess", payload) for client in clients])


def validation_scores(
    found: Reduced | None, groups: ShotGroups, train_counts: Sequence[int]
) -> dict[str, Any]:
    """Return the scores of a validation, as plain JSON values; `None` where nobody answered.

    They are those of a test (`fedtail.metrics.scores`) but the calibration error, and ``samples``
    and ``clients``: how many samples were held out, and how many clients answered.
    """
    sums = {} if found is None else found[HELD_OUT]
    none = torch.zeros(len(train_counts), dtype=torch.int64)
    samples = sums.get("samples", none)
    total = int(samples.sum())
    loss = float(sums["loss"]) if "loss" in sums else math.inf
    return {
        **class_scores(sums.get("right", none).tolist(), samples.tolist(), groups, train_counts),
        "loss": loss / total if total and loss < LARGEST else None,
        "samples": total,
        "clients": 0 if found is None else len(found.clients),
    }
