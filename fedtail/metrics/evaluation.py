"""What a test leaves behind: counts that merge in any order and from which every score follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from fedtail.errors import FedtailError

BINS = 15
"""Equal confidence bins of the calibration error: bin b holds (b / 15, (b + 1) / 15]."""

MOST_CONFUSED = 200
"""With more classes no table of confusions is counted: a batch would cost its C² cells."""

_GRAIN = 2.0**26


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Sums over test samples.

    Integers add exactly. The two real sums are made of multiples of 2⁻²⁶, which float64 adds
    without rounding up to 2²⁷, so that they too are the same bits in whatever order batches,
    clients or workers are merged.

    Attributes
    ----------
    right, of_class
        The right answers and the samples of each class; (C,), int64.
    confusion
        How often a sample of class `row` was taken for class `column`; C x C, int64, and empty with
        more than `MOST_CONFUSED` classes.
    loss_sum
        Sum of the cross-entropy; not finite when the model has diverged.
    bin_count, bin_correct, bin_confidence
        For each confidence bin the samples, the right ones and the sum of their confidences.
    by_owner
        Of each natural client the right answers and the samples, (clients, 2); empty if it is not
        known whose the samples are.
    """

    right: Tensor
    of_class: Tensor
    confusion: Tensor
    loss_sum: float
    bin_count: Tensor
    bin_correct: Tensor
    bin_confidence: Tensor
    by_owner: Tensor = field(default_factory=lambda: torch.zeros(0, 2, dtype=torch.int64))

    @classmethod
    def empty(cls, num_classes: int) -> Self:
        """Return the evaluation of no sample: the zero of the addition."""
        none = torch.zeros(num_classes, dtype=torch.int64)
        return cls(
            right=none,
            of_class=none,
            confusion=_confusion(none[:0], none[:0], num_classes),
            loss_sum=0.0,
            bin_count=torch.zeros(BINS, dtype=torch.int64),
            bin_correct=torch.zeros(BINS, dtype=torch.int64),
            bin_confidence=torch.zeros(BINS, dtype=torch.float64),
        )

    @classmethod
    def of(
        cls,
        logits: Tensor,
        y: Tensor,
        num_classes: int,
        owner: Tensor | None = None,
        owners: int = 0,
    ) -> Self:
        """Evaluate one batch.

        Parameters
        ----------
        logits
            One row a sample, one column a class, on any device.
        y
            The true classes.
        num_classes
            How many classes there are; the batch may lack some.
        owner, owners
            The natural client of each sample, and how many there are, if that is known.
        """
        _check(logits, y, num_classes)
        # float64 on the CPU: the same sums wherever the logits come from (MPS has no float64).
        log_p = logits.detach().cpu().double().log_softmax(dim=1)
        truth = y.detach().cpu().long()
        top, predicted = log_p.max(dim=1)
        confidence = _grained(top.exp())
        bins = _bin(confidence)
        right = predicted == truth
        return cls(
            right=torch.bincount(truth[right], minlength=num_classes),
            of_class=torch.bincount(truth, minlength=num_classes),
            confusion=_confusion(truth, predicted, num_classes),
            loss_sum=float(_grained(-log_p.gather(1, truth[:, None])).sum()),
            bin_count=torch.bincount(bins, minlength=BINS),
            bin_correct=torch.bincount(bins[right], minlength=BINS),
            bin_confidence=torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, confidence),
            **({} if owner is None else {"by_owner": _by_owner(right, owner, owners)}),
        )

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.of_class)

    @property
    def samples(self) -> int:
        """The number of samples."""
        return int(self.of_class.sum())

    def __add__(self, other: Evaluation) -> Evaluation:
        if self.num_classes != other.num_classes:
            raise FedtailError(
                f"evaluations of {self.num_classes} and {other.num_classes} classes do not add"
            )
        return Evaluation(
            right=self.right + other.right,
            of_class=self.of_class + other.of_class,
            confusion=self.confusion + other.confusion,
            loss_sum=self.loss_sum + other.loss_sum,
            bin_count=self.bin_count + other.bin_count,
            bin_correct=self.bin_correct + other.bin_correct,
            bin_confidence=self.bin_confidence + other.bin_confidence,
            by_owner=_added(self.by_owner, other.by_owner),
        )


def _check(logits: Tensor, y: Tensor, num_classes: int) -> None:
    if logits.shape != (len(y), num_classes):
        raise FedtailError(
            f"logits of shape {tuple(logits.shape)} do not fit {len(y)} labels"
            f" and {num_classes} classes"
        )
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < num_classes:
        raise FedtailError(
            f"labels {int(y.min())} to {int(y.max())} are not all in 0 to {num_classes - 1}"
        )


def _confusion(truth: Tensor, predicted: Tensor, num_classes: int) -> Tensor:
    side = num_classes if num_classes <= MOST_CONFUSED else 0
    cells = torch.bincount(truth * side + predicted, minlength=side**2) if side else truth[:0]
    return cells.view(side, side)


def _by_owner(right: Tensor, owner: Tensor, owners: int) -> Tensor:
    counted = [torch.bincount(part, minlength=owners) for part in (owner[right], owner)]
    return torch.stack(counted, dim=1)


def _added(one: Tensor, other: Tensor) -> Tensor:
    """Return the sum, where one that knows of nobody (of no sample) adds nothing."""
    return one + other if len(one) == len(other) else max(one, other, key=len)


def _grained(values: Tensor) -> Tensor:
    return (values * _GRAIN).round() / _GRAIN


def _bin(confidence: Tensor) -> Tensor:
    # A diverged model has no confidence: its samples go to the first bin, whose sum says so.
    upper = (confidence.nan_to_num(0.0) * BINS).ceil().long() - 1
    return upper.clamp(0, BINS - 1)
