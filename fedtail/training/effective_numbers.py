"""Effective numbers: how many samples of a class there are, less what they have in common.

With u_i the directions of a class's features after its mean is taken off, and ρ the mean of all
their products u_i u_j, the number is 1/ρ: n where samples are as different as they can be, fewer
where they point the same way. Taking off the samples' own mean makes ρ smaller by 1/n, whatever
they are, so that 1/ρ explodes; "unbiased" puts that back, and is never above n.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Effective = Literal["unbiased", "code", "counts"]
LEAST_PRODUCT = 1e-6
LARGEST_NUMBER, LEAP = 1e4, 100.0
"""What the authors' code takes for an outlier in the first round, and for a leap later on."""


def effective_numbers(
    h: Tensor, labels: Tensor, classes: int, how: Effective, batch_size: int
) -> Tensor:
    """Return the effective number of each class, (C,); zero of one that is not there.

    Parameters
    ----------
    h, labels, classes
        Features (n, d) and classes of a client's samples, and C.
    how, batch_size
        By which rule; the authors' code adds up over batches.
    """
    found = torch.zeros(classes)
    for c in torch.unique(labels).tolist():
        of_class = labels == c
        n = int(of_class.sum())
        if how == "counts" or n == 1:
            found[c] = n
            continue
        unit = functional.normalize(h[of_class] - h[of_class].mean(dim=0), dim=1)
        if how == "unbiased":
            found[c] = n / (1 + n * unit.mean(dim=0).square().sum())
            continue
        where = of_class.nonzero().flatten() // batch_size
        for batch in torch.unique(where).tolist():
            rows = unit[where == batch]
            product = rows.mean(dim=0).square().sum().clamp(min=LEAST_PRODUCT)
            found[c] += 1.0 if len(rows) == 1 else 1 / product
    return found


def without_outliers(numbers: Tensor) -> Tensor:
    """Return the numbers of the first round, those above 10⁴ replaced by the mean of the others."""
    good = numbers <= LARGEST_NUMBER
    mean = numbers[good].mean() if bool(good.any()) else numbers.new_tensor(LARGEST_NUMBER)
    return torch.where(good, numbers, mean)


def without_leaps(old: Tensor, new: Tensor) -> Tensor:
    """Return the new numbers, and the old one of a class that changed by a factor of 100."""
    ratio = new / old.clamp(min=1e-12)
    return torch.where((ratio > LEAP) | (ratio < 1 / LEAP), old, new)
