"""Mixtures of two linear heads on the same features, counted on what clients hold out.

With logits z of the trained head and ℓ of another, (1 − κ) log softmax(z) + κ log softmax(ℓ / T)
differs from (1 − κ) z + κ ℓ / T by the same number for all classes: a mixture of two linear heads
is a linear head. All mixtures are counted in one pass, and one exchange.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from fedtail.forms import LARGEST, Form, Like, Total
from fedtail.metrics.evaluation import Evaluation
from fedtail.models.split_model import load_tested
from fedtail.protocol import Client, ClientId, Exchange, Payload, Task, Tensors, grouped
from fedtail.training.federated_features import Head
from fedtail.validation import COUNTED_AT_ONCE

if TYPE_CHECKING:
    from fedtail.reduce import Reduced

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""κ: how much of the other head there is."""
TEMPERATURES = (1.0, 2.0, 4.0)
"""T: what the other head's logits are divided by."""
COUNTED = "mixtures"


class Mixture(NamedTuple):
    """κ and T."""

    share: float
    temperature: float

    def of(self, trained: Head, other: Head) -> Head:
        """Return (1 − κ) z + κ ℓ / T as one head."""
        a, b = 1 - self.share, self.share / self.temperature
        weight = a * trained.weight + b * other.weight
        if trained.bias is None or other.bias is None:
            return Head(weight, None)
        return Head(weight, a * trained.bias + b * other.bias)


MIXTURES = tuple(
    Mixture(share, t) for share in SHARES for t in (TEMPERATURES if share else TEMPERATURES[:1])
)
"""All that are counted; the first is the trained head alone."""

Judge = Callable[[Sequence[int], Sequence[int], float], float | None]
"""From right answers and samples of each class, and the mean loss, to a score: more is better."""


def blends_form(task: Payload, classes: int) -> Form:
    """Declare the right answers of each mixture, the samples of each class, and the losses."""
    count = Like((classes,), torch.int64, low=0, counted=True)
    looks = {"samples": count, "loss": Like((len(MIXTURES),), torch.float64, low=0)}
    looks |= {f"right {number}": count for number in range(len(MIXTURES))}
    return Form().group(COUNTED, looks, Total())


def count_blends(payload: Payload, client: Client) -> Payload:
    """Count how each mixture does on what a client holds out."""
    network = load_tested(payload.group("model"), client.model, client.base or client.model)
    told = payload.group("other")
    other = Head(told["weight"], told.get("bias")).to(client.device)
    held, classes = client.data.held_out, client.num_classes
    found = [Evaluation.empty(classes) for _ in MIXTURES]
    with torch.inference_mode():
        for index in torch.split(torch.arange(len(held)), COUNTED_AT_ONCE):
            x, y = held.batch(index)
            z, h, _ = network.output(x)
            other_z = functional.linear(h, *other)
            for number, (share, t) in enumerate(MIXTURES):
                mixed = (1 - share) * z + share / t * other_z
                found[number] += Evaluation.of(mixed, y, classes)
    losses = [f.loss_sum if math.isfinite(f.loss_sum) else LARGEST for f in found]
    counts = {
        "samples": found[0].of_class,
        "loss": torch.tensor(losses, dtype=torch.float64).clamp(max=LARGEST),
        **{f"right {n}": f.right for n, f in enumerate(found)},
    }
    return Payload(grouped(COUNTED, counts))


def choose_blend(
    model: Tensors, other: Head, clients: Sequence[ClientId], judge: Judge
) -> Exchange[Mixture]:
    """Have all mixtures counted, and return the best.

    Of those with the same score it is the one with the smallest loss, and then the first.
    """
    tensors = {"weight": other.weight} if other.bias is None else other._asdict()
    question = Payload({**grouped("model", model), **grouped("other", tensors)})
    found = yield [Task(client, "compare_heads", question) for client in clients]
    return best_of(found, judge)


def best_of(found: Reduced, judge: Judge) -> Mixture:
    """Return the mixture that did best; the other head alone where nothing can be said."""
    sums = found[COUNTED]
    samples = sums["samples"].tolist()
    scored = []
    for number, loss in enumerate(sums["loss"].tolist()):
        mean = loss / max(1, sum(samples))
        score = judge(sums[f"right {number}"].tolist(), samples, mean)
        if score is not None:
            scored.append((score, -mean, -number))
    return MIXTURES[-max(scored)[2]] if scored else Mixture(1.0, 1.0)
