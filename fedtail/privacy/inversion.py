"""The features of a class's only sample, in closed form from the change of a linear head.

With p = softmax(W h + b), a sample of class y moves row a of the head by (1[a = y] − p_a) h and its
bias by 1[a = y] − p_a: one divided by the other is h. In a batch, row c moves up by its own samples
and down by Σ p_c h over all of them; a class that the client does not hold moves by the latter
alone. So such rows are subtracted first, which is exact for a client with one sample, and nearly so
for a class with one sample in an early round, when p is about the same for all classes:

    h ≈ (ΔW_c − mean_a ΔW_a) / (Δb_c − mean_a Δb_a),   over rows a whose bias fell further.

Of a gradient that is sent for the class alone (CReFF, RedGrape), minus the gradient is the change,
and the formula is exact. (Dividing by the bias: Geiping, Bauermeister, Dröge, Moeller, "Inverting
Gradients", NeurIPS 2020.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedtail.forms import CLASSES
from fedtail.models.heads import class_axis
from fedtail.models.split_model import SplitModel
from fedtail.privacy.views import Seen, Witnessed
from fedtail.setting import Setting

MOST_SINGLES = 200
"""How many samples are attacked at most."""
UNSEEN_MEAN = 500
"""How many test samples the attacker knows the mean feature of."""


class Inversion(NamedTuple):
    """How near the computed features are to those of the sample.

    Attributes
    ----------
    samples
        How many samples, each its client's only one of its class, were attacked.
    error, cosine
        Median of ‖ĥ − h‖ / ‖h‖, and mean cosine of ĥ and h, both less the mean feature of test
        samples: 0 and 1 are knowing them.
    blind_error, blind_cosine
        The same for who says the mean feature of test samples of the class: what the class alone
        tells.
    """

    samples: int
    error: float
    cosine: float
    blind_error: float
    blind_cosine: float


class Single(NamedTuple):
    """A client's only sample of a class, its features, and what test samples of the class have."""

    client: int
    label: int
    features: Tensor
    usual: Tensor


def single_samples(
    witnessed: list[Witnessed], setting: Setting
) -> tuple[list[Single], Tensor] | None:
    """Return the only samples of their class, and the mean test feature, at the sent model."""
    federation, model = setting.federation, setting.model
    found: list[Single] = []
    sent = witnessed[0].task.payload.group("model") if witnessed else {}
    if not model.fits(sent) or len(model.heads) != 1:
        return None
    model.load(sent)
    model.eval()
    with torch.inference_mode():
        x, y = federation.test_batch(0, UNSEEN_MEAN)
        tested, y = model.features(x).cpu().double(), y.cpu()
        mean = tested.mean(dim=0)
        for w in witnessed:
            data, counts = federation.client(w.task.client), federation.counts(w.task.client)
            for c in torch.nonzero(counts == 1)[:, 0].tolist()[: MOST_SINGLES - len(found)]:
                x, _ = data.batch(torch.nonzero(data.labels == c)[:, 0])
                usual = tested[y == c].mean(dim=0) if bool((y == c).any()) else mean
                h = model.features(x).cpu().double()[0]
                found.append(Single(w.task.client, c, h, usual))
    return (found, mean) if found else None


def inversion(
    seen: Mapping[int, Seen], singles: tuple[list[Single], Tensor] | None, model: SplitModel
) -> Inversion | None:
    """Attack what is seen; none if there is no such sample, or no linear head is sent."""
    if singles is None:
        return None
    samples, mean = singles
    guesses = []
    for client, label, _, _ in samples:
        rows = head_rows(seen[client], model, label)
        if rows is None:
            return None
        guesses.append(inverted(*rows, label, float(mean.norm())))
    h, usual = (torch.stack([getattr(s, n) for s in samples]) for n in ("features", "usual"))
    return Inversion(
        len(samples), *_nearness(torch.stack(guesses), h, mean), *_nearness(usual, h, mean)
    )


def _nearness(guess: Tensor, h: Tensor, mean: Tensor) -> tuple[float, float]:
    """Return the median relative error, and the mean cosine of both less the mean."""
    error = (guess - h).norm(dim=1) / h.norm(dim=1).clamp(min=1e-12)
    cosine = functional.cosine_similarity(guess - mean, h - mean, dim=1)
    return float(error.quantile(0.5)), float(cosine.mean())


def inverted(weight: Tensor, bias: Tensor | None, label: int, norm: float) -> Tensor:
    """Return ĥ of the only sample of a class.

    Parameters
    ----------
    weight, bias
        How the head moved (classes, features) and (classes), upwards for classes that are there.
    label
        The class.
    norm
        The norm that features usually have, where no bias tells it.
    """
    size = weight.sum(dim=1) if bias is None else bias
    below = size < size[label]
    moved = weight[label] - (weight[below].mean(dim=0) if below.any() else 0)
    if bias is None:
        return norm * functional.normalize(moved, dim=0)
    by = bias[label] - (bias[below].mean() if below.any() else 0)
    return moved / (by if abs(float(by)) > 1e-30 else 1e-30)


def head_rows(seen: Seen, model: SplitModel, label: int) -> tuple[Tensor, Tensor | None] | None:
    """Return how the head moved for a class: by its own gradient, if that is sent, or as it did."""
    for group, classes in class_groups(seen):
        weight, bias = seen.get(f"{group}/weight"), seen.get(f"{group}/bias")
        where = torch.nonzero(classes == label)[:, 0]
        if weight is not None and weight.ndim == 3 and len(where):
            row = int(where[0])
            return -weight[row].double(), None if bias is None else -bias[row].double()
    weights, biases = head_changes(seen, model)
    if len(weights) != 1:
        return None
    return weights[0].double(), biases[0].double() if biases else None


def class_groups(seen: Seen) -> Iterator[tuple[str, Tensor]]:
    """Give the groups that have a row for each class, and the classes of the rows."""
    for name, classes in seen.items():
        group, _, last = name.partition("/")
        if last == CLASSES:
            yield group, classes


def head_changes(seen: Seen, model: SplitModel) -> tuple[list[Tensor], list[Tensor]]:
    """Return the change of each classifier's weight (classes, features) and of its bias, if seen.

    No weights at all if one of them cannot be seen.
    """
    weights, biases = [], []
    for name, head in zip(model.head_names, model.heads, strict=True):
        before = f"model/{name}." if name else "model/"
        change, bias = seen.get(f"{before}weight"), seen.get(f"{before}bias")
        if change is None or change.ndim != 2:
            return [], []
        weights.append(change if class_axis(head) == 0 else change.T)
        biases += [] if bias is None else [bias]
    return weights, biases
