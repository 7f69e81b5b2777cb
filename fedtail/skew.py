"""FedLC's deviation of any method, counted by the clients: how far label skew turns updates.

Whenever a model is tested, every client passes its samples through it once and sends four numbers,
which are added up: see `fedtail.metrics.deviation`. The softmax is that of the method's loss, with
its margins or its prior.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedtail.forms import Form, Like, Total
from fedtail.losses import CrossEntropy, LocalLoss, LossContext
from fedtail.metrics.deviation import deviating, deviation_bound
from fedtail.models.split_model import load_tested
from fedtail.protocol import Client, Exchange, Payload, Server, Task, Tensors, grouped
from fedtail.validation import COUNTED_AT_ONCE

if TYPE_CHECKING:
    from fedtail.reduce import Reduced

SKEW = "deviation"
"""The group of numbers that is added up."""


def skew_form() -> Form:
    """Declare how many pairs of classes there are, how many deviate, and by how much."""
    count = Like((1,), torch.int64, low=0)
    looks = {"pairs": count, "deviating": count, "finite": count}
    return Form().group(SKEW, {**looks, "log_ratio": Like((1,), torch.float64)}, Total())


def count_skew(payload: Payload, client: Client, loss: Any, prior: Tensor) -> Payload:
    """Count the pairs of a client's classes that deviate at a model.

    Parameters
    ----------
    payload, client
        The model, and whose samples are meant.
    loss, prior
        What the method's clients minimise, and the prior that it uses.
    """
    network = load_tested(payload.group("model"), client.model, client.base or client.model)
    known = loss if isinstance(loss, LocalLoss) else CrossEntropy()
    counts = client.counts.to(client.device, torch.float32)
    context = LossContext(counts, prior.to(client.device), client.round, client.rounds)
    features, p = [], []
    with torch.inference_mode():
        for index in torch.split(torch.arange(len(client.data)), COUNTED_AT_ONCE):
            z, h, _ = network.output(client.data.batch(index)[0])
            features.append(h.flatten(1).cpu())
            p.append(known.adjusted(z, context).softmax(dim=1).cpu())
    sums = {name: torch.zeros(1) for name in ("pairs", "deviating", "log_ratio", "finite")}
    if features:
        # Pairs are of classes that the client holds: of all there are C², and few that count.
        held, y = torch.unique(client.data.labels, return_inverse=True)
        bound = deviation_bound(torch.cat(features), y, torch.cat(p)[:, held])
        found = deviating(bound, client.counts[held])._asdict()
        sums = {name: torch.tensor([float(value)]) for name, value in found.items()}
    whole = {name: t.double() if name == "log_ratio" else t.long() for name, t in sums.items()}
    return Payload(grouped(SKEW, whole))


def ask_skew(model: Tensors, prior: Tensor | None, server: Server) -> Exchange[None]:
    """Have every client count at a model, and log the sum."""
    told = {} if prior is None else {"prior/counts": prior}
    question = Payload({**grouped("model", model), **told})
    found: Reduced = yield [Task(client, "count_deviation", question) for client in server.clients]
    sums = {name: float(t) for name, t in found[SKEW].items()}
    if sums.get("pairs"):
        server.log("deviation_share", sums["deviating"] / sums["pairs"])
    if sums.get("finite"):
        server.log("deviation_ratio", math.exp(sums["log_ratio"] / sums["finite"]))
    return None
