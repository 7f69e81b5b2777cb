"""FedLC's deviation bound: from which imbalance on a local update turns against a rare class.

Zhang et al., "Federated Learning with Label Distribution Skew via Logits Calibration", ICML 2022.

With features h, a softmax p and means over the samples of the class in the superscript, Definition
3 has for a frequent class j and a rare class r

    D_jr = (1 − p̄_r^(r)) ‖h̄^(r)‖² / (p̄_r^(j) h̄^(r)·h̄^(j)),

and by Theorem 1 the update deviates, that is it lowers the score of class r on its own samples,
where n_j / n_r is far above D_jr > 0. Theorem 3 is the bound after calibration. As printed,

    Σ_{y≠r} Δ_ry p̃̄_y^(r) ‖h̄^(r)‖² / (p̃̄_r^(j) h̄^(r)·h̄^(j)),   p̃_y = e^{f_y} / Σ_i e^{f_i − m_i},

with the margins m_i and Δ_ry = m_r − m_y, it lacks an exponential: it is 0 without margins and can
be negative. With e^Δ in the place of Δ it is Definition 3 under the calibrated softmax, which is
what is computed here; `printed_bound` is the other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Deviating(NamedTuple):
    """How many pairs of classes deviate, as numbers that add up over clients.

    Attributes
    ----------
    pairs
        Pairs of a frequent and a rarer class for which the bound is defined.
    deviating
        Those of them whose n_j / n_r is above it.
    log_ratio
        The sum of log (n_j / n_r / D_jr) over the pairs for which that is finite.
    finite
        How many these are.
    """

    pairs: int
    deviating: int
    log_ratio: float
    finite: int


def class_means(values: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the mean row of each class, (classes, width), in float64; NaN where there is none."""
    own = functional.one_hot(labels, classes).double()
    return own.T @ values.double() / own.sum(dim=0)[:, None]


def deviation_bound(features: Tensor, labels: Tensor, probabilities: Tensor) -> Tensor:
    """Return D (C, C), of the frequent class j in rows and the rare one r in columns.

    It is infinite where the rare class has no probability on samples of the frequent one, and NaN
    where it is not defined: a class has no samples, or mean features that do not point alike.

    Parameters
    ----------
    features
        (n, d): what the head is given.
    labels
        (n,).
    probabilities
        (n, C): softmax of the logits, calibrated or not.
    """
    classes = probabilities.shape[1]
    h = class_means(features, labels, classes)
    p = class_means(probabilities, labels, classes)
    return _bound(1 - p.diagonal(), p, h)


def printed_bound(features: Tensor, labels: Tensor, logits: Tensor, margins: Tensor) -> Tensor:
    """Return Theorem 3 as it is printed, without the exponential of Δ; see `deviation_bound`.

    Parameters
    ----------
    features, labels, logits
        Of n samples.
    margins
        m (C,): what calibration lowers each logit by, τ n^(−1/4) in the paper.
    """
    f, m = logits.double(), margins.double()
    p = (f - torch.logsumexp(f - m, dim=1, keepdim=True)).exp()
    h, p = (class_means(values, labels, f.shape[1]) for values in (features, p))
    apart = (m[:, None] - m) * p  # Δ_ry p̃̄_y^(r); 0 for y = r
    return _bound(apart.sum(dim=1), p, h)


def _bound(pull: Tensor, p: Tensor, h: Tensor) -> Tensor:
    alike = h @ h.T
    bound = pull * alike.diagonal() / (p * alike)
    return torch.where(alike > 0, bound, torch.nan)


def deviating(bound: Tensor, counts: Tensor) -> Deviating:
    """Return how many pairs deviate, and by how much, for a client's class counts."""
    n = counts.double()
    pairs = (n[:, None] > n) & (n > 0) & ~bound.isnan() & (bound > 0)
    ratio = (n[:, None] / n / bound)[pairs]
    finite = (ratio > 0) & ratio.isfinite()
    return Deviating(
        int(pairs.sum()),
        int((ratio > 1).sum()),
        float(ratio[finite].log().sum()),
        int(finite.sum()),
    )
