"""How far a step of local training moves a linear head away from a class, and a bound on it.

A diagnostic of label skew in the sense of FedLC (Zhang et al., ICML 2022), derived from the
gradient, not copied from the paper's Definition 3. Let r_ic be the derivative of sample i's loss
in its logit c, for softmax losses p_ic − [y_i = c]. A small step of rate η on the row w_c (and the
bias), at fixed features h, changes the mean logit of class c over its own samples by

    (η/n) (pull_c − push_c),   pull_c = Σ_{y_i = c} −r_ic k_ic,   push_c = Σ_{y_i ≠ c} r_ic k_ic,

where k_ic = ⟨h_i, h̄_c⟩ (plus 1 if there is a bias) and h̄_c is the mean feature of class c. Their
quotient D_c = push_c / pull_c is the deviation. Above 1 the step makes the model worse at class c:
the samples of other classes outweigh its own, as they do when it is rare.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Deviation(NamedTuple):
    """The deviation of each class that the samples have; all but the last are (A,).

    Attributes
    ----------
    classes
        The A classes, ascending.
    value
        D_c. 0 if nothing pushes, infinite if something pushes and nothing pulls.
    counted
        N_c = Σ_{y_i ≠ c} r_ic / Σ_{y_i = c} −r_ic, which is Σ_{j ≠ c} n_j p̄_jc / (n_c (1 − p̄_cc))
        with the mean probability p̄_jc of c on samples of j: D_c if all features were the same,
        and that of the bias alone.
    lower, upper
        N_c times the least k_ic of the other samples over the largest of its own, and N_c times
        the largest over the least. D_c is between them if no feature is negative.
    absent
        Mean over the samples of Σ r_ic over the classes c that none of them has: these are pushed
        only, and for them D_c would be infinite.
    """

    classes: Tensor
    value: Tensor
    counted: Tensor
    lower: Tensor
    upper: Tensor
    absent: float


def head_deviation(
    features: Tensor, labels: Tensor, residuals: Tensor, bias: bool = True
) -> Deviation:
    """Return the deviation of a linear head on some samples.

    Parameters
    ----------
    features
        (n, d): what the head is given.
    labels
        (n,).
    residuals
        (n, C): the derivative of each sample's loss in its logits.
    bias
        Whether the head has a bias, which moves with the weight.
    """
    h, r = features.double(), residuals.double()
    classes = torch.unique(labels)
    own = labels[:, None] == classes
    means = own.double().T @ h / own.sum(dim=0)[:, None]
    k = h @ means.T + float(bias)
    push = r[:, classes].masked_fill(own, 0)
    pull = -r[:, classes].masked_fill(~own, 0)
    counted = _quotient(push.sum(dim=0), pull.sum(dim=0))
    least = _quotient(k.masked_fill(own, torch.inf).amin(0), k.masked_fill(~own, 0).amax(0))
    most = _quotient(k.masked_fill(own, 0).amax(0), k.masked_fill(~own, torch.inf).amin(0))
    # Where nothing pushes, or nothing pulls, likeness does not matter.
    plain = (counted == 0) | counted.isinf()
    held = torch.zeros(r.shape[1], dtype=torch.bool, device=r.device).index_fill(0, classes, True)
    return Deviation(
        classes,
        _quotient((push * k).sum(dim=0), (pull * k).sum(dim=0)),
        counted,
        torch.where(plain, counted, counted * least),
        torch.where(plain, counted, counted * most),
        float(r[:, ~held].sum()) / max(len(r), 1),
    )


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(a == 0, 0.0, a / b)
