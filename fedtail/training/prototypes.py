"""Prototypes: a gradient of the head for each class, as the server keeps and sends them.

A table has the tensors ``classes`` (L,), ascending, ``weight`` (L, C, d) and, if the head has one,
``bias`` (L, C): the class gradients of `class_gradients.py`, by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from fedtail.protocol import Tensors
from fedtail.training.class_gradients import ClassGradients, linear_head


def no_prototypes(head: nn.Module) -> dict[str, Tensor]:
    """Return the table without rows, for a linear head."""
    linear = linear_head(head)
    bias = None if linear.bias is None else torch.zeros(0, len(linear.bias))
    weight = torch.zeros(0, *linear.weight.shape)
    return as_table((torch.zeros(0, dtype=torch.int64), weight, bias))


def as_table(gradients: ClassGradients) -> dict[str, Tensor]:
    """Return class gradients by name."""
    classes, weight, bias = gradients
    table = {"classes": classes, "weight": weight}
    return table if bias is None else {**table, "bias": bias}


def renewed(old: Tensors, new: Tensors) -> dict[str, Tensor]:
    """Return `old` with the classes of `new` replaced or added; the other classes stay."""
    kept = ~torch.isin(old["classes"], new["classes"])
    both = {name: torch.cat([old[name][kept], new[name]]) for name in old}
    order = torch.argsort(both["classes"])
    return {name: t[order] for name, t in both.items()}


def sum_outside(table: Tensors, held: Tensor, num_classes: int, fill: bool) -> dict[str, Tensor]:
    """Return Σ G_c over the classes that are not `held`.

    With `fill`, a class that has no row counts as the mean of those summed, else as zero.
    """
    outside = ~torch.isin(table["classes"], held)
    known, wanted = int(outside.sum()), num_classes - len(held)
    factor = wanted / known if known and fill else 1.0
    # A product, because to pick the rows would copy a table of a hundred classes at every client.
    rows = factor * outside.float()
    return {n: torch.tensordot(rows, t, dims=1) for n, t in table.items() if n != "classes"}


Wire = Literal["float32", "float16"]
"""In which precision a table travels."""
LARGEST_HALF = torch.finfo(torch.float16).max


def wire_type(wire: Wire) -> torch.dtype:
    """Return the type of numbers on the wire."""
    return torch.float16 if wire == "float16" else torch.float32


def for_wire(table: Tensors, wire: Wire) -> dict[str, Tensor]:
    """Return a table as it is sent; the class numbers stay whole."""
    if wire == "float32":
        return dict(table)
    return {
        name: t.clamp(-LARGEST_HALF, LARGEST_HALF).half() if t.is_floating_point() else t
        for name, t in table.items()
    }


def from_wire(table: Tensors) -> dict[str, Tensor]:
    """Return a table as it is computed with."""
    return {name: t.float() if t.is_floating_point() else t for name, t in table.items()}


@dataclass
class Rebalancing:
    """One client's share of a round.

    Attributes
    ----------
    gradients
        g_c^k of its classes at the round's starting point, as they are sent.
    x, y
        The balanced set; y is empty if no class has T samples.
    h
        Its features, where they are the same at every step.
    held
        |L_bal|, the number of classes in it.
    missing
        Σ G_c over the classes outside it.
    strength
        λ of this round; 0 if there is nothing to balance with.
    steps
        What is still to be subtracted from parameters of W, up to the rate.
    seen
        ‖g_local‖, ‖g_bal‖ and the cosine between them, for the weight, step by step.
    """

    gradients: Tensors
    x: Tensor
    y: Tensor
    h: Tensor | None
    held: int
    missing: dict[str, Tensor]
    strength: float
    steps: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    seen: list[Tensor] = field(default_factory=list)
