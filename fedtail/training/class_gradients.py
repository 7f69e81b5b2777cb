"""Class gradients: what one class asks of a linear head, by the closed form.

With p = softmax(W h + b), the gradient of the cross-entropy of one sample is (p − e_y) hᵀ for the
weight and p − e_y for the bias. CReFF and RedGrape average it over a client's samples of one class,
and over the clients that hold the class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from fedtail.data.batch_augment import one_change
from fedtail.data.federation import ClientData
from fedtail.errors import FedtailError
from fedtail.forms import Like, like
from fedtail.models.heads import refuse_frozen
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Tensors

ClassGradients = tuple[Tensor, Tensor, Tensor | None]
"""Classes (L,), ascending; of each the gradient of the weight (L, C, d) and of the bias (L, C)."""


def linear_head(head: nn.Module) -> nn.Linear:
    """Return the head, if its logits are W h + b: the closed form is for these only."""
    if isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward:
        return head
    raise FedtailError(
        f"class gradients need a linear classifier (nn.Linear), not {type(head).__name__}"
    )


def trained_head(head: nn.Module) -> nn.Linear:
    """Return the head, if it is linear and no part of it is frozen."""
    refuse_frozen(head)
    return linear_head(head)


def class_gradients(
    model: SplitModel,
    head: nn.Module,
    data: ClientData,
    num_classes: int,
    generator: torch.Generator | None = None,
    batch_size: int = 500,
) -> ClassGradients:
    """Return the mean gradient over all local samples of each class, in evaluation mode.

    Parameters
    ----------
    model
        Gives the features; its weights and statistics are not changed.
    head
        A linear classifier over these features: the model's own, or another one.
    data
        The local samples.
    num_classes
        The number of classes of the whole federation.
    generator
        Given, the samples are augmented as in training; else they are taken as they are.
    batch_size
        Samples in one forward pass.

    Returns
    -------
    ClassGradients
        The classes that the client holds, and the gradient of the mean cross-entropy of each, on
        the CPU; no bias if the head has none.
    """
    order = torch.argsort(data.labels, stable=True)
    batches = (data.batch(index, generator) for index in torch.split(order, batch_size))
    return batch_gradients(model, head, batches, torch.unique(data.labels), num_classes)


def augmented_gradients(
    model: SplitModel,
    head: nn.Module,
    data: ClientData,
    num_classes: int,
    generator: torch.Generator,
    repeats: int = 10,
    samples: int = 32,
) -> ClassGradients:
    """Return the mean gradient of each class over repeats of a few samples, as CReFF's code does.

    Each repeat draws at most `samples` samples of the class and changes all of them in one random
    way (`fedtail.data.batch_augment`). The other parameters are those of `class_gradients`.
    """
    classes = torch.unique(data.labels)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for c in classes:
            mine = torch.nonzero(data.labels == c)[:, 0]
            for _ in range(repeats):
                drawn = torch.randperm(len(mine), generator=generator)[:samples]
                x, y = data.batch(mine[drawn])
                yield one_change(x, generator), y

    return batch_gradients(model, head, batches(), classes, num_classes)


def batch_gradients(
    model: SplitModel,
    head: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    classes: Tensor,
    num_classes: int,
) -> ClassGradients:
    """Return the mean gradient of each of `classes` over batches of (inputs, labels).

    Batches whose classes stand together are the fast ones: a run of one class is one product.
    """
    linear = linear_head(head)
    weight = torch.zeros(len(classes), *linear.weight.shape, device=linear.weight.device)
    bias = weight.new_zeros(len(classes), num_classes)
    counts = torch.zeros(len(classes))
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for x, y in batches:
            h = model.features(x)
            of_logits = softmax_residual(linear, h, y)
            # Σ (p − e_y) hᵀ over the samples of one class is one product of matrices; a gradient
            # for each sample would take batch times the head. Classes that stand apart are right
            # too, in more and smaller products: a row is added to, never set.
            runs, lengths = torch.unique_consecutive(y.cpu(), return_counts=True)
            rows = torch.searchsorted(classes, runs)
            parts = torch.split(of_logits, lengths.tolist()), torch.split(h, lengths.tolist())
            for row, r, of in zip(rows.tolist(), *parts, strict=True):
                weight[row].addmm_(r.T, of)
                bias[row] += r.sum(dim=0)
            counts.index_add_(0, rows, lengths.to(counts.dtype))
    model.train(was_training)
    # A class that no batch had, though it was asked for, keeps the gradient zero.
    counts = counts.clamp(min=1).to(weight.device)
    weight.div_(counts[:, None, None])
    bias.div_(counts[:, None])
    return classes, weight.cpu(), None if linear.bias is None else bias.cpu()


@torch.no_grad()
def head_gradient(head: nn.Linear, h: Tensor, y: Tensor, scale: float) -> dict[str, Tensor]:
    """Return the gradient of `scale` times the mean cross-entropy of features, by name."""
    r = softmax_residual(head, h, y).mul_(scale / len(y))
    found = {"weight": r.T @ h}
    return found if head.bias is None else {**found, "bias": r.sum(dim=0)}


def softmax_residual(head: nn.Linear, h: Tensor, y: Tensor) -> Tensor:
    """Return p − e_y of each sample, (batch, classes)."""
    p = torch.softmax(head(h), dim=1)
    return p.scatter_add_(1, y[:, None], -torch.ones_like(y[:, None], dtype=p.dtype))


def grad_group(gradients: ClassGradients, group: str = "grad") -> dict[str, Tensor]:
    """Return class gradients as they travel: one row for each class, ragged by client."""
    classes, weight, bias = gradients
    tensors = {f"{group}/classes": classes, f"{group}/weight": weight}
    return tensors if bias is None else {**tensors, f"{group}/bias": bias}


def grad_rows(head: nn.Module, dtype: torch.dtype = torch.float32) -> dict[str, Like]:
    """Return what one row of the class gradients of a linear head looks like, on the wire."""
    rows = like(linear_head(head).named_parameters())
    return {name: look._replace(dtype=dtype) for name, look in rows.items()}


def as_gradients(table: Tensors) -> ClassGradients:
    """Return class gradients that came by name: the inverse of `grad_group`."""
    return table["classes"], table["weight"], table.get("bias")
