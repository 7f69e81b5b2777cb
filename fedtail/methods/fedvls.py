"""FedVLS.

Guo, Ding, Liang, He, Wang, Tan, "Exploring Vacant Classes in Label-Skewed Federated Learning", AAAI
2025.

The server is FedAvg's. A class is vacant at a client that holds no sample of it. Clients minimise
the balanced softmax of their class prior, and two terms more: the received model teaches them how
vacant classes compare with each other, and the logits of the classes that a sample is not of are
pushed down. Without the two terms this is BSM, and without the prior FedAvg, bit by bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedtail.losses import BalancedSoftmax, LocalLoss
from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, LocalRun, ModelState
from fedtail.models.split_model import SplitModel
from fedtail.training.distillation import divergence
from fedtail.training.teacher import TeacherMode, frozen_copy, taught


@dataclass(frozen=True)
class VacantClasses:
    """The classes that a client does not hold, and who teaches them: the received model."""

    vacant: Tensor
    teacher: SplitModel


@Method.register("fedvls")
class FedVLS(FedAvg[ModelState]):
    """FedAvg with balanced softmax, a teacher for absent classes and smaller wrong logits."""

    family: ClassVar[str] = "local re-balancing"
    paper: ClassVar[str] = (
        "Guo et al., Exploring Vacant Classes in Label-Skewed Federated Learning, AAAI 2025"
    )

    loss: LocalLoss = Field(BalancedSoftmax(), description="L_cal, to which the terms are added")
    lam: float = Field(0.1, ge=0, description="λ, weight of vacant-class distillation")
    suppression: float = Field(0.005, ge=0, description="weight of logit suppression")
    teacher_mode: TeacherMode = Field(
        "train", description="BatchNorm and dropout of the teacher: train is the authors' code"
    )

    def prepare(self, run: LocalRun) -> VacantClasses | None:
        """Keep the received model, where there is something that it can teach."""
        vacant = run.context.counts == 0
        # A softmax over one class is 1 for teacher and student.
        if self.lam == 0 or int(vacant.sum()) < 2:
            return None
        return VacantClasses(vacant, frozen_copy(run.model, self.teacher_mode))

    def batch_loss(self, run: LocalRun, x: Tensor, y: Tensor) -> Tensor:
        """L_cal + λ L_dis + L_logit (Algorithm 1, line 18)."""
        output, absent = run.model.output(x), run.aux
        loss = self.loss(output, y, run.context)
        if absent is not None:
            q = taught(absent.teacher, x)[:, absent.vacant].softmax(dim=1)
            loss = loss + self.lam * divergence(output.logits[:, absent.vacant], q)
        return loss + self.suppression * wrong_logits(output.logits, y, run.context.prior)


def wrong_logits(z: Tensor, y: Tensor, prior: Tensor) -> Tensor:
    """Return Σ_c π_c log mean_x exp([y ≠ c] (z_c − log π_c − log C)), mean_x over the batch.

    A sample of class c itself adds exp 0 = 1. A class whose prior is zero has no weight.
    """
    share = prior / prior.sum()
    held = share > 0
    pi = share[held]
    own = functional.one_hot(y, len(share))[:, held].bool()
    spread = (z[:, held] - pi.log() - math.log(len(share))).masked_fill(own, 0.0)
    return (pi * (torch.logsumexp(spread, dim=0) - math.log(len(y)))).sum()
