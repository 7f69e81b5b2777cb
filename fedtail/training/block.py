"""Many clients' training as one computation: weights with a dimension of clients in front.

Every client has its own batches, in its own order. Batches of one size are done at the same time,
so that a loss sees what it would see alone, and nothing is padded: within a pass over the data
first the full batches, the first of each client, the second, ..., then what is left, size by size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedtail.models.split_model import SplitModel
from fedtail.training.local import LocalTraining, batch_sizes, normalisable
from fedtail.training.samplers import BatchSampler

Rows = slice | Tensor
"""Which clients of a block: neighbours, or any."""
Named = dict[str, Tensor]


class Batches(NamedTuple):
    """One batch each of some clients, all of one size.

    Attributes
    ----------
    rows
        Which clients.
    places
        (clients, size), positions among the samples of all clients of the block.
    """

    rows: Rows
    places: Tensor


def planned_batches(
    local: LocalTraining,
    sampler: BatchSampler,
    labels: Sequence[Tensor],
    seeds: Sequence[int],
    pairs: bool,
) -> tuple[list[Batches], list[int]]:
    """Return all batches of a block, and how many each client has.

    Parameters
    ----------
    local, sampler, pairs
        How each client trains (see `LocalTraining.batches`).
    labels, seeds
        Of each client: its samples' classes, and the seed of the stream that orders them.
    """
    stream, orders, shifts = torch.Generator(), [], []
    found: dict[tuple[int, bool, int, int], tuple[list[int], list[int]]] = {}
    steps: list[int] = []
    at = first = 0
    for row, (own, seed) in enumerate(zip(labels, seeds, strict=True)):
        stream.manual_seed(seed)
        done = 0
        for epoch, order in enumerate(local.passes(sampler, own, stream)):
            begin = at
            for number, size in enumerate(batch_sizes(len(order), local.batch_size, pairs)):
                rest = size != local.batch_size
                rows, begins = found.setdefault(
                    (epoch, rest, 0 if rest else number, size), ([], [])
                )
                rows.append(row)
                begins.append(begin)
                begin, done = begin + size, done + 1
                if done == local.steps:
                    break
            orders.append(order)
            shifts.append(first)
            at += len(order)
            if done == local.steps:
                break
        steps.append(done)
        first += len(own)
    if not orders:
        return [], steps
    lengths = torch.tensor([len(order) for order in orders])
    flat = torch.cat(orders) + torch.tensor(shifts).repeat_interleave(lengths)
    return [
        Batches(_rows(rows), flat[torch.tensor(begins)[:, None] + torch.arange(size)])
        for (*_, size), (rows, begins) in sorted(found.items())
    ], steps


def _rows(rows: Sequence[int]) -> Rows:
    neighbours = rows[-1] - rows[0] == len(rows) - 1
    return slice(rows[0], rows[-1] + 1) if neighbours else torch.tensor(rows)


class Stack(NamedTuple):
    """Trees of tensors of many clients as one tree.

    Attributes
    ----------
    tree
        Dicts and tuples of tensors; what all clients have in common stands there once.
    dims
        The dimension of clients of each part, as `vmap` takes it: 0, or none if it is common.
    """

    tree: Any = None
    dims: Any = None

    @classmethod
    def of(cls, trees: Sequence[Any]) -> Stack:
        """Return the trees of some clients, which are alike."""
        first = trees[0]
        if all(tree is first for tree in trees):
            return cls(first)
        if isinstance(first, Tensor):
            return cls(torch.stack(list(trees)), 0)
        if isinstance(first, Mapping):
            parts = {name: cls.of([tree[name] for tree in trees]) for name in first}
            return cls(
                {name: part.tree for name, part in parts.items()},
                {name: part.dims for name, part in parts.items()},
            )
        if isinstance(first, tuple):
            each = [cls.of(part) for part in zip(*trees, strict=True)]
            kind: Callable[..., Any] = getattr(type(first), "_make", tuple)
            return cls(kind(part.tree for part in each), kind(part.dims for part in each))
        if all(tree == first for tree in trees):
            return cls(first)
        return cls(torch.tensor(list(trees)), 0)

    def of_rows(self, rows: Rows) -> Any:
        """Return the tree of some clients."""
        return _taken(self.tree, self.dims, rows)


def _taken(tree: Any, dims: Any, rows: Rows) -> Any:
    if dims is None:
        return tree
    if isinstance(tree, Tensor):
        return tree[rows]
    if isinstance(tree, Mapping):
        return {name: _taken(part, dims[name], rows) for name, part in tree.items()}
    kind: Callable[..., Any] = getattr(type(tree), "_make", tuple)
    return kind(_taken(part, dim, rows) for part, dim in zip(tree, dims, strict=True))


class Gradients(Protocol):
    """How the gradients of one batch each of some clients are computed."""

    def __call__(
        self, weights: Named, buffers: Named, rows: Rows, x: Tensor, y: Tensor
    ) -> dict[str, Tensor]:
        """Return the gradients by name; what takes no part in the loss has none."""


@dataclass
class Vmapped:
    """Gradients of any network: the loss of one client under `vmap`, differentiated as a sum.

    Attributes
    ----------
    loss
        The loss of one client's batch x, y, at the weights that the model holds, given the trees.
    model
        The resident model.
    told, aux
        What is given to the loss beside the batch.
    """

    loss: Callable[[Tensor, Tensor, Any, Any], Tensor]
    model: SplitModel
    told: Stack
    aux: Stack

    def __post_init__(self) -> None:
        self._places = _places(self.model)

    def __call__(
        self, weights: Named, buffers: Named, rows: Rows, x: Tensor, y: Tensor
    ) -> dict[str, Tensor]:
        """Return the gradients by name."""
        leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}

        def one(w: Named, b: Named, x: Tensor, y: Tensor, told: Any, aux: Any) -> Tensor:
            with _holding(self._places, {**w, **b}):
                return self.loss(x, y, told, aux)

        dims = (0, 0, 0, 0, self.told.dims, self.aux.dims)
        told, aux = self.told.of_rows(rows), self.aux.of_rows(rows)
        losses = vmap(one, dims, randomness="error")(leaves, buffers, x, y, told, aux)
        found = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
        return {name: g for name, g in zip(leaves, found, strict=True) if g is not None}


def _places(model: SplitModel) -> dict[str, list[tuple[dict[str, Any], str]]]:
    """Return where each tensor of a model is held, a tied one in several places."""
    places: dict[str, list[tuple[dict[str, Any], str]]] = {}
    first: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for part in (model.module, model.extra_heads):
        for prefix, layer in part.named_modules(remove_duplicate=False):
            start = f"{prefix}." if prefix else ""
            for held in (layer._parameters, layer._buffers):
                for name, tensor in held.items():
                    if tensor is not None:
                        same = first.setdefault(id(tensor), [])
                        same.append((held, name))
                        places[start + name] = same
    return places


@contextmanager
def _holding(
    places: Mapping[str, list[tuple[dict[str, Any], str]]], tensors: Mapping[str, Tensor]
) -> Iterator[None]:
    """Let a model hold other tensors, for a while."""
    before = [(held, name, held[name]) for n in tensors for held, name in places[n]]
    for name, tensor in tensors.items():
        for held, own in places[name]:
            held[own] = tensor
    try:
        yield
    finally:
        for held, own, tensor in before:
            held[own] = tensor


@dataclass
class ClientBlock:
    """The models of some clients as they are trained.

    Attributes
    ----------
    weights, buffers
        With a dimension of clients in front.
    local, rate
        How they are trained, and this round's rate.
    adjust
        What is done to the gradients of some clients before they are clipped.
    """

    weights: Named
    buffers: Named
    local: LocalTraining
    rate: float
    adjust: Callable[[Named, Named, Rows], None] | None = None

    def __post_init__(self) -> None:
        self.velocity: Named = {}
        if self.local.momentum:
            self.velocity = {name: torch.zeros_like(w) for name, w in self.weights.items()}

    def step(
        self,
        gradients: Gradients,
        rows: Rows,
        x: Tensor,
        y: Tensor,
        norms: Sequence[nn.Module] = (),
    ) -> None:
        """Do one batch of some clients."""
        every = (self.weights, self.buffers, self.velocity)
        weights, buffers, velocity = ({n: t[rows] for n, t in some.items()} for some in every)
        with normalisable(norms, y.shape[1]):
            found = gradients(weights, buffers, rows, x, y)
        with torch.no_grad():
            if self.adjust is not None:
                self.adjust(found, weights, rows)
            if self.local.clip is not None:
                _clip(found, self.local.clip)
            self._descend(weights, velocity, found)
            if isinstance(rows, Tensor):  # those were copies
                for whole, part in zip(every, (weights, buffers, velocity), strict=True):
                    for name, tensor in part.items():
                        whole[name][rows] = tensor

    def _descend(self, weights: Named, velocity: Named, gradients: Named) -> None:
        """Do what torch's SGD does, for all clients at once."""
        local, names = self.local, list(gradients)
        w, g = [weights[n] for n in names], list(gradients.values())
        if local.weight_decay:
            g = list(torch._foreach_add(g, w, alpha=local.weight_decay))
        if velocity:
            v = [velocity[n] for n in names]
            torch._foreach_mul_(v, local.momentum)
            torch._foreach_add_(v, g)
            g = list(torch._foreach_add(g, v, alpha=local.momentum)) if local.nesterov else v
        torch._foreach_add_(w, g, alpha=-self.rate)


def _clip(gradients: Named, largest: float) -> None:
    """Scale the gradients of each client to at most this norm, as `clip_grad_norm_` does."""
    norms = [torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in gradients.values()]
    if not norms:
        return
    factor = (largest / (torch.linalg.vector_norm(torch.stack(norms), dim=0) + 1e-6)).clamp(max=1)
    for g in gradients.values():
        g.mul_(factor.view(-1, *[1] * (g.ndim - 1)))
