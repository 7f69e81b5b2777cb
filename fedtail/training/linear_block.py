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
from fedtail.training.local import LocalTraining


@dataclass
class LinearGradients:
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


@dataclass
class Span:
    """Wide linear classifiers of many clients, none of which is ever formed.

    What a client adds to W lies in the span of its samples: W_k = W − U_kᵀ H_k, with one row of U a
    sample. Its logits are H_k Wᵀ + b − (H_k H_kᵀ) U_k, and what is wanted in the end is a sum over
    clients, which is one product. It holds for SGD with momentum, without decay and clipping.

    Parameters
    ----------
    h
        (clients, most samples, width), the features, with zeros where a client has fewer samples.
    logits
        (clients, most samples, classes), H_k Wᵀ + b.
    weight, bias
        W and b, as received.
    gradients
        How the loss is differentiated at the logits.
    local, rate
        How clients train, and this round's rate.
    """

    h: Tensor
    logits: Tensor
    weight: Tensor
    bias: Tensor | None
    gradients: LinearGradients
    local: LocalTraining
    rate: float

    def __post_init__(self) -> None:
        self.products = torch.bmm(self.h, self.h.transpose(1, 2))
        self.u = torch.zeros_like(self.logits)
        self.velocity = torch.zeros_like(self.u) if self.local.momentum else self.u
        self.moved = torch.zeros_like(self.u[:, 0])  # what each b_k is away from b
        self.drift = torch.zeros_like(self.moved)

    def step(self, rows: Rows, places: Tensor, y: Tensor) -> None:
        """Do one batch of some clients, whose samples stand at these places of their own."""
        at, local = places[..., None], self.local
        u, products = self.u[rows], self.products[rows]
        of_batch = products.gather(1, at.expand(-1, -1, products.shape[2]))
        classes = at.expand(-1, -1, u.shape[2])
        z = torch.baddbmm(self.logits[rows].gather(1, classes), of_batch, u, alpha=-1)
        z += self.moved[rows][:, None]
        h = self.h[rows].gather(1, at.expand(-1, -1, self.h.shape[2])) if self.reads_h else z
        g = self.gradients.at_logits(z, h, y, rows)
        total = g.sum(dim=1) * (self.bias is not None)
        if not local.momentum:
            self.u[rows] = u.scatter_add_(1, classes, self.rate * g)
            self.moved[rows] -= self.rate * total
            return
        v = (self.velocity[rows] * local.momentum).scatter_add_(1, classes, g)
        drift = self.drift[rows] * local.momentum + total
        self.velocity[rows], self.drift[rows] = v, drift
        if local.nesterov:
            v = (v * local.momentum).scatter_add_(1, classes, g)
            drift = drift * local.momentum + total
        self.u[rows] = u.add_(v, alpha=self.rate)
        self.moved[rows] -= self.rate * drift

    @property
    def reads_h(self) -> bool:
        """Whether the loss may look at features."""
        return not self.gradients.plain

    def largest(self) -> Tensor:
        """Return what no number of each client's W is larger than."""
        # No number of a sample is larger than its norm, which stands among the products.
        norms = self.products.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
        added = self.u.abs().amax(dim=2) * norms
        return self.weight.abs().max() + added.sum(dim=1)

    def summed(self, weights: Tensor) -> Tensor:
        """Return Σ p_k W_k, in float64."""
        scaled = self.u * weights.to(self.u.dtype)[:, None, None]
        added = scaled.flatten(0, 1).T @ self.h.flatten(0, 1)
        return self.weight.double() * weights.sum() - added.double()


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
    start = f"{model.classifier_name}." if model.classifier_name else ""
    own = {start + name for name, _ in head.named_parameters()}
    return (
        isinstance(head, nn.Linear)
        and type(head).forward is nn.Linear.forward
        and type(model).output is SplitModel.output
        and model.names() == own == model.parameter_names()
    )
