"""Numbers that the probe's two halves make of tensors (`fedtail.methods.probe`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedtail.data.federation import ClientData
from fedtail.forms import LARGEST
from fedtail.models.heads import class_axis
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Tensors
from fedtail.reduce import Reduced
from fedtail.training.classifier import prefix
from fedtail.validation import COUNTED_AT_ONCE

UNIT = 1024.0
"""What samples are counted in where squares of their number are added up."""


class Told(NamedTuple):
    """Numbers that clients add up in a round, with n in units of 1024 samples.

    Attributes
    ----------
    body, body2, head, head2
        n ‖Δ‖² and n² ‖Δ‖², of the network before its classifier and of the classifier.
    samples2, own
        n², and Σ_c n_c² / n.
    loss, seen
        The loss of the received model, summed over so many samples.
    forgotten, lacking
        KL(received ‖ trained) among the classes that a client lacks, and 1 if it lacks two or more.
    """

    body: float
    body2: float
    head: float
    head2: float
    samples2: float
    own: float
    loss: float
    seen: float
    forgotten: float
    lacking: float


class Spread(NamedTuple):
    """Of standardised features about their class's mean: Σ ‖z‖², and Σ_c n_c ‖z̄_c‖² by client."""

    total: float
    between: float


class Surest(NamedTuple):
    """Of the half of its held-out samples that a client is surest about: how many, how many wrong.

    Surest by the margin of the closed-form head.
    """

    samples: float
    wrong: float


ASIDE = {"spread": Spread._fields, "surest": Surest._fields}
"""Groups of an examination that are a few numbers each."""


def as_summands(told: Sequence[float]) -> Tensor:
    """Return numbers to be added up; what has diverged is large, and not lost."""
    numbers = torch.tensor(told, dtype=torch.float64)
    return numbers.nan_to_num(LARGEST, LARGEST).clamp(0, LARGEST)


def spaced(size: int, chosen: int) -> Tensor:
    """Return so many places in a row of samples, evenly spread."""
    return torch.arange(chosen) * size // max(1, chosen)


def right(scores: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return how many samples of each class have its score as their largest."""
    return torch.bincount(y[scores.argmax(1) == y], minlength=classes)


def surest(scores: Tensor, y: Tensor) -> Surest:
    """Return the half of the samples with the largest margins, and how many of them are wrong."""
    if not len(y) or scores.shape[1] < 2:
        return Surest(0.0, 0.0)
    best = scores.topk(2, dim=1)
    margin = best.values[:, 0] - best.values[:, 1]
    half = margin.argsort(descending=True, stable=True)[: (len(y) + 1) // 2]
    return Surest(float(len(half)), float((best.indices[half, 0] != y[half]).sum()))


def trained_parts(model: SplitModel) -> Iterator[tuple[str, bool]]:
    """Give the names of what is trained, and whether it is of the classifier."""
    start = prefix(model)
    for name in sorted(model.parameter_names() & model.names()):
        yield name, name.startswith(start)


def changes(before: Tensors, after: Tensors, model: SplitModel) -> tuple[float, float]:
    """Return ‖Δ‖² of the classifier and of the rest."""
    found = [0.0, 0.0]
    for name, of_head in trained_parts(model):
        found[not of_head] += float((after[name].double() - before[name].double()).square().sum())
    return found[0], found[1]


def drift(model: Tensors, found: Sequence[Reduced], network: SplitModel) -> dict[str, Any]:
    """Return the inner products of the groups' mean changes, of the classifier and of the rest."""
    means = [f["model"] for f in found]
    gram = torch.zeros(2, len(means), len(means)).double()
    for name, of_head in trained_parts(network):
        rows = [(m.get(name, model[name]).double() - model[name].double()).flatten() for m in means]
        stack = torch.stack(rows)
        gram[int(not of_head)] += stack @ stack.T
    return {"head": gram[0].tolist(), "body": gram[1].tolist()}


def classifier_facts(before: Tensors, after: Tensors, network: SplitModel) -> dict[str, Any]:
    """Return the lengths of the classifier's rows, and how its bias changed, if it has one."""
    start = prefix(network)
    weight, bias = after.get(f"{start}weight"), after.get(f"{start}bias")
    facts: dict[str, Any] = {}
    if weight is not None and weight.ndim == 2:
        facts["norms"] = weight.double().norm(dim=1 - class_axis(network.classifier)).tolist()
    if bias is not None:
        facts["bias"] = (bias.double() - before[f"{start}bias"].double()).tolist()
    return facts


def cosine(one: Tensors, other: Tensors) -> float:
    """Return the cosine of two changes of a model; 0 where one is missing."""
    pairs = [(one[name].double(), other[name].double()) for name in one if name in other]
    inner = sum(float((a * b).sum()) for a, b in pairs)
    lengths = [sum(float(pair[side].square().sum()) for pair in pairs) for side in (0, 1)]
    scale = (lengths[0] * lengths[1]) ** 0.5
    return inner / scale if scale > 0 else 0.0


def sheet(found: Reduced, group: str, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return a group that was added up as plain data; the tensor ``numbers`` by its names."""
    tensors = found[group]
    numbers = tensors.pop("numbers", None)
    plain: dict[str, Any] = {name: t.tolist() for name, t in tensors.items()}
    plain["clients"] = len(found.clients)
    if numbers is not None:
        plain |= dict(zip(names, numbers.tolist(), strict=True))
    return plain


def head_scores(
    network: SplitModel, data: ClientData, told: Tensors
) -> tuple[Tensor, Tensor, Tensor]:
    """Return labels, logits and closed-form scores of what a client holds out, in float64."""
    network.eval()
    classes, seen = len(told["counts"]), []
    for index in torch.split(torch.arange(len(data)), COUNTED_AT_ONCE):
        x, y = data.batch(index)
        with torch.inference_mode():
            z, h, _ = network.output(x)
        scores = functional.linear(h.cpu().double(), told["weight"].double(), told["bias"].double())
        seen.append((y.cpu(), z.cpu().double(), scores))
    none = torch.zeros(0, classes, dtype=torch.float64)
    if not seen:
        return torch.zeros(0, dtype=torch.int64), none, none
    y, z, scores = (torch.cat(part) for part in zip(*seen, strict=True))
    return y, z, scores
