"""Gradients of linear classifiers of many clients, by batched products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedtail.losses import CrossEntropy, LocalLoss
from fedtail.models.split_model import SplitModel
from fedtail.training.block import Named, Rows, Stack


@dataclass
class Linear:
    """Gradients of z = W h + b: the loss is differentiated at z, and the rest is two products.

    Attributes
    ----------
    loss
        The loss of one client's logits, features and labels, given the tree.
    prefix
        What stands before ``weight`` and ``bias`` in their names.
    told
        What is given to the loss beside the batch.
    plain
        Whether the loss is the cross-entropy, which has a closed form.
    """

    loss: Callable[[Tensor, Tensor, Tensor, Any], Tensor]
    prefix: str
    told: Stack
    plain: bool

    def __call__(
        self, weights: Named, buffers: Named, rows: Rows, x: Tensor, y: Tensor
    ) -> dict[str, Tensor]:
        """Return the gradients of one batch of features each."""
        weight, bias = f"{self.prefix}weight", f"{self.prefix}bias"
        w = weights[weight].transpose(1, 2)
        z = torch.baddbmm(weights[bias][:, None], x, w) if bias in weights else torch.bmm(x, w)
        g = self.at_logits(z, x, y, rows)
        found = {weight: torch.bmm(g.transpose(1, 2), x)}
        return {**found, bias: g.sum(dim=1)} if bias in weights else found

    def at_logits(self, z: Tensor, h: Tensor, y: Tensor, rows: Rows) -> Tensor:
        """Return the gradient of each client's loss at its logits (clients, batch, classes)."""
        if self.plain:
            return cross_entropy_gradient(z, y)
        leaf = z.detach().requires_grad_()
        dims = (0, 0, 0, self.told.dims)
        losses = vmap(self.loss, dims, randomness="error")(leaf, h, y, self.told.of_rows(rows))
        (g,) = torch.autograd.grad(losses.sum(), leaf)
        return g


def cross_entropy_gradient(z: Tensor, y: Tensor) -> Tensor:
    """(softmax(z) − e_y) / batch."""
    g = z.log_softmax(dim=2).exp_()
    g.scatter_add_(2, y[..., None], -torch.ones_like(y[..., None], dtype=g.dtype))
    return g.div_(y.shape[1])


def is_plain(loss: LocalLoss) -> bool:
    """Whether a loss is the cross-entropy of the library and no other."""
    return type(loss).__call__ is CrossEntropy.__call__


def is_linear(model: SplitModel) -> bool:
    """Whether all that a model trains is one linear layer, over features that do not change."""
    head = model.classifier
    own = {f"{model.classifier_name}.{name}" for name, _ in head.named_parameters()}
    return (
        isinstance(head, nn.Linear)
        and type(head).forward is nn.Linear.forward
        and type(model).output is SplitModel.output
        and model.names() == own == model.parameter_names()
    )
