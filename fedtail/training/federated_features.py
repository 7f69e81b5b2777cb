"""Federated features: made so that a linear head's class gradients on them match the given ones.

Everything is in closed form. With features s_i of class c, z_i = W s_i + b and p_i = softmax(z_i),
the head's gradient on them is g_c = (1/m) Σ_i r_i s_iᵀ with r_i = p_i − e_c. The matching loss is a
sum of 1 − cos(row of g_c, row of the target), so its derivative in g_c is a matrix A, and

    ∂⟨A, g_c⟩ / ∂s_i = (1/m) (Wᵀ J_i A s_i + Aᵀ r_i),   J_i = diag(p_i) − p_i p_iᵀ,

which is a few matrix products for all samples of many classes at once: no double backward.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from fedtail.cores import own_threads
from fedtail.training.class_gradients import ClassGradients

# Numbers of one scratch array: about what stays in a core's cache between two operations.
CHUNK_SIZE = 2**18
# There are at least so many chunks, if there are as many classes: two cores share them.
CHUNKS = 2
# Batches that are gathered at once.
BATCHES_AT_ONCE = 64


class Head(NamedTuple):
    """A linear head: weight (C, d), and bias (C,) if it has one."""

    weight: Tensor
    bias: Tensor | None

    def to(self, device: torch.device) -> Head:
        """Return it on a device."""
        return Head(self.weight.to(device), None if self.bias is None else self.bias.to(device))


class Matching(NamedTuple):
    """The distance of two class gradients: scale · Σ_j (1 − g_j·t_j / (‖g_j‖‖t_j‖ + eps)).

    Attributes
    ----------
    scale
        The factor of the sum over rows.
    eps
        What keeps zero rows from a division by zero; with 0 they count as orthogonal.
    bias
        Whether the gradient of the bias is one more row.
    """

    scale: float
    eps: float
    bias: bool


class Pull(NamedTuple):
    """A second loss of the features: their cross-entropy under a head that stays as it is.

    Attributes
    ----------
    head
        Its rows are what features are drawn to, each to the row of its class.
    weight
        What the loss of one feature counts.
    """

    head: Head
    weight: float

    def gradient(self, features: Tensor, classes: Tensor) -> Tensor:
        """Return the derivative in the features, (A, m, d)."""
        r = _residual(features, classes, self.head)
        return self.weight * (r @ self.head.weight)


class Matched(NamedTuple):
    """What gradient matching gives.

    Attributes
    ----------
    features
        (A, m, d): those of the A matched classes.
    before, after
        (A,): the mean of 1 − cos over the weight's rows, for the old and the new features;
        without eps, so that it is comparable between distances.
    loss
        The matching loss of the new features, summed over classes.
    """

    features: Tensor
    before: Tensor
    after: Tensor
    loss: float


def match_features(
    features: Tensor,
    head: Head,
    targets: ClassGradients,
    matching: Matching,
    steps: int,
    lr: float,
    pull: Pull | None = None,
) -> Matched:
    """Take SGD steps on the features of each target's class.

    Parameters
    ----------
    features
        (A, m, d), in the order of the targets' classes; they are not changed.
    head
        At which the gradients are taken.
    targets
        The classes (A,) and the gradients to match.
    matching
        The distance.
    steps, lr
        How many steps, and their rate. A class never looks at another, so that they go in chunks,
        on as many threads as this process may use, up to two.
    pull
        What is added to the distance, if anything is.
    """
    classes, weight, bias = targets
    size = max(1, min(CHUNK_SIZE // weight.shape[1:].numel(), math.ceil(len(classes) / CHUNKS)))
    new = features.clone()

    def matched(start: int) -> tuple[Tensor, Tensor, float]:
        rows = slice(start, start + size)
        target = classes[rows], weight[rows], bias[rows] if bias is not None else None
        with torch.no_grad():
            chunk = _Chunk(new[rows], head, target, matching, pull)
            before = chunk.distances()[0]
            for _ in range(steps):
                chunk.step(lr)
            return before, *chunk.distances()

    # The cut depends on the shapes alone, and so bits do not depend on who does how much of it.
    at_once = min(CHUNKS, own_threads()) if features.is_cpu else 1
    with ThreadPoolExecutor(at_once) as threads:
        done = list(threads.map(matched, range(0, len(classes), size)))
    nothing = [features.new_zeros(0)]
    before = torch.cat([old for old, _, _ in done] or nothing)
    after = torch.cat([plain for _, plain, _ in done] or nothing)
    return Matched(new, before, after, sum(loss for _, _, loss in done))


def pull_features(features: Tensor, classes: Tensor, pull: Pull, steps: int, lr: float) -> Tensor:
    """Return features (A, m, d) of classes (A,) after SGD steps on the pull alone."""
    size = max(1, CHUNK_SIZE // pull.head.weight.numel())
    new = features.clone()
    with torch.no_grad():
        for start in range(0, len(classes), size):
            rows = slice(start, start + size)
            for _ in range(steps):
                new[rows] -= lr * pull.gradient(new[rows], classes[rows])
    return new


def _times(s: Tensor, w: Tensor) -> Tensor:
    """Return S Wᵀ; of few classes by way of W Sᵀ: a product as narrow as they are is slow."""
    if s.shape[1] < w.shape[-2]:
        return s @ w.mT
    return (w @ s.transpose(1, 2)).transpose(1, 2).contiguous()


def _residual(features: Tensor, classes: Tensor, head: Head) -> Tensor:
    """Return p − e_c for every feature, (A, m, C)."""
    z = _times(features, head.weight)
    if head.bias is not None:
        z += head.bias
    r = torch.softmax(z, dim=2)
    r[torch.arange(len(r), device=r.device), :, classes] -= 1
    return r


class _Cosine(NamedTuple):
    """Cosine of rows, and its derivative in the first of them: a·t + b·g."""

    value: Tensor
    a: Tensor
    b: Tensor


def _cosine(norm: Tensor, dot: Tensor, t_norm: Tensor, eps: float) -> _Cosine:
    """Return the cosine of rows g and t from ‖g‖, g·t and ‖t‖."""
    q = norm * t_norm + eps
    # Below this a quotient would be noise or infinite: a zero row has cosine 0 and no derivative.
    a = torch.where(q > 1e-30, 1 / q, 0)
    value = dot * a
    return _Cosine(value, a, torch.where(norm > 0, -value * t_norm * a / norm, 0))


def _rows_cosine(g: Tensor, t: Tensor, t_norm: Tensor, eps: float) -> _Cosine:
    return _cosine(torch.linalg.vector_norm(g, dim=-1), torch.linalg.vecdot(g, t), t_norm, eps)


class _Chunk:
    """The features of a few classes, changed in place."""

    def __init__(
        self,
        s: Tensor,
        head: Head,
        targets: ClassGradients,
        matching: Matching,
        pull: Pull | None = None,
    ) -> None:
        self.s, self.head, self.matching, self.pull = s, head, matching, pull
        self.classes, self.t, self.t_bias = targets
        self.with_bias = matching.bias and self.t_bias is not None
        self.t_norm = torch.linalg.vector_norm(self.t, dim=-1)
        self.rows = torch.arange(len(s), device=s.device)
        # Sums over the m features stand for means below: m in eps makes up for m in the gradient.
        self.eps = matching.eps * s.shape[1]

    def bias_cosine(self, r: Tensor) -> tuple[Tensor, _Cosine]:
        assert self.t_bias is not None
        g = r.sum(dim=1)
        norm = torch.linalg.vector_norm(self.t_bias, dim=-1)
        return g, _rows_cosine(g, self.t_bias, norm, self.eps)

    def climb(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """Return S Aᵀ and R A, where A is the derivative of Σ_j cos_j in the gradient G = Rᵀ S."""
        g = r.transpose(1, 2) @ self.s
        cosine = _rows_cosine(g, self.t, self.t_norm, self.eps)
        a = g.mul_(cosine.b[..., None]).addcmul_(cosine.a[..., None], self.t)
        return _times(self.s, a), r @ a

    def climb_thin(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same without G and A, which are large where features are fewer than classes.

        A row of A is b g + a t, and so S Aᵀ and R A follow from S Gᵀ = (S Sᵀ) R and S Tᵀ, and so do
        ‖g‖² and g·t. Entries of a row of Rᵀ have one sign: nothing cancels in the quadratic form.
        """
        own, along = (self.s @ self.s.transpose(1, 2)) @ r, _times(self.s, self.t)
        norm = (r * own).sum(dim=1).clamp(min=0).sqrt()
        cosine = _cosine(norm, (r * along).sum(dim=1), self.t_norm, self.eps)
        a, b = cosine.a[:, None], cosine.b[:, None]
        inner = (r * b) @ r.transpose(1, 2)
        return own.mul_(b).addcmul_(along, a), torch.baddbmm(inner @ self.s, r * a, self.t)

    def step(self, lr: float) -> None:
        pulled = None if self.pull is None else self.pull.gradient(self.s, self.classes)
        r = _residual(self.s, self.classes, self.head)
        thin = self.s.shape[1] < self.t.shape[1]
        # The derivative of Σ_j cos_j, which is climbed, in the features by way of G ...
        y, gain = self.climb_thin(r) if thin else self.climb(r)
        if self.with_bias and self.t_bias is not None:
            g_bias, bias = self.bias_cosine(r)
            y += (bias.a[:, None] * self.t_bias + bias.b[:, None] * g_bias)[:, None]
        # ... and in the logits: x = p ∘ (y − p·y), where p is r but for the column of the class.
        own = y[self.rows, :, self.classes]
        y -= (torch.linalg.vecdot(r, y) + own)[..., None]
        own = y[self.rows, :, self.classes]
        x = y.mul_(r)
        x[self.rows, :, self.classes] += own
        rate = lr * self.matching.scale
        self.s.add_(gain, alpha=rate)
        self.s.view(-1, self.s.shape[2]).addmm_(
            x.view(-1, x.shape[2]), self.head.weight, alpha=rate
        )
        if pulled is not None:
            self.s.sub_(pulled, alpha=lr)

    def distances(self) -> tuple[Tensor, float]:
        """Return each class's mean of 1 − cos without eps, and the sum of the loss."""
        r = _residual(self.s, self.classes, self.head)
        g = r.transpose(1, 2) @ self.s
        total = (1 - _rows_cosine(g, self.t, self.t_norm, self.eps).value).sum()
        if self.with_bias:
            total += (1 - self.bias_cosine(r)[1].value).sum()
        plain = 1 - _rows_cosine(g, self.t, self.t_norm, 0.0).value.mean(dim=1)
        return plain, float(total) * self.matching.scale


def new_head(num_classes: int, width: int, bias: bool, generator: torch.Generator) -> Head:
    """Draw a linear head as `nn.Linear` does: U(−1/√d, 1/√d)."""
    bound = width**-0.5

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator).mul_(2 * bound).sub_(bound)

    weight = draw(num_classes, width)
    return Head(weight, draw(num_classes) if bias else None)


def train_head(
    head: Head,
    features: Tensor,
    epochs: int,
    batch_size: int,
    lr: float,
    gen: torch.Generator,
    classes: Tensor | None = None,
) -> Head:
    """Train a head by SGD with cross-entropy on features (A, m, d) of A classes.

    Each epoch goes through all A·m features in a new order. The gradient of softmax regression
    needs no autograd: it is the batch's mean of (p − e_y) hᵀ. The bias is the weight of a constant
    feature. `classes` says which classes they are (default: all, in order).
    """
    num_classes, (_, m, width) = len(head.weight), features.shape
    y = torch.arange(num_classes) if classes is None else classes
    # Steps are so small that autograd's bookkeeping of in-place changes would cost a tenth.
    with torch.inference_mode():
        h, weight = features.reshape(-1, width), head.weight
        if head.bias is not None:
            h = torch.cat([h, h.new_ones(len(h), 1)], dim=1)
            weight = torch.cat([weight, head.bias[:, None]], dim=1)
        # Classes stand first: a product that is as narrow as they are few is slow.
        w = weight.clone(memory_format=torch.contiguous_format)
        y = y.to(h.device).repeat_interleave(m)
        for _ in range(epochs):
            order = torch.randperm(len(h), generator=gen).to(h.device)
            # Many batches are gathered at once, not all: a one-hot label is C numbers.
            for block in torch.split(order, BATCHES_AT_ONCE * batch_size):
                inputs = torch.split(h.index_select(0, block), batch_size)
                ones = h.new_zeros(num_classes, len(block)).scatter_(0, y[block][None], 1)
                labels = torch.split(ones, batch_size, dim=1)
                for x, e in zip(inputs, labels, strict=True):
                    r = torch.softmax(w @ x.T, dim=0).sub_(e)
                    w.addmm_(r, x, alpha=-lr / len(x))
    # A copy made out here may take part in autograd again.
    if head.bias is None:
        return Head(w.clone(), None)
    return Head(w[:, :-1].clone(memory_format=torch.contiguous_format), w[:, -1].clone())
