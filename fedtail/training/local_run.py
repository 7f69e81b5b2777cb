"""What the hooks of a client half see of one client's training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedtail.losses import LossContext
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Payload
from fedtail.training.sgd import LocalOptimizer

NO_SAMPLES = torch.zeros(0, dtype=torch.int64)
"""Which of a client's samples are in a batch before the first one."""


@dataclass
class LocalRun:
    """One client's training, as the hooks see it.

    Attributes
    ----------
    aux
        Whatever `prepare` of the method made.
    steps
        Batches done so far.
    index
        Which of the client's samples are in the batch.
    """

    client: Client
    payload: Payload
    model: SplitModel
    context: LossContext
    optimizer: LocalOptimizer
    aux: Any = None
    steps: int = 0
    index: Tensor = NO_SAMPLES
