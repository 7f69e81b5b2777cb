"""How well a model does on a client's own data."""

from __future__ import annotations

import torch

from fedtail.data.federation import ClientData
from fedtail.losses import LocalLoss, LossContext
from fedtail.models.split_model import SplitModel

LOSS_BATCH = 500


def mean_loss(model: SplitModel, data: ClientData, loss: LocalLoss, context: LossContext) -> float:
    """Return the mean loss of the model as it is, on samples as they are; 0 if there are none.

    The model is left in evaluation mode.
    """
    total = 0.0
    model.eval()
    with torch.no_grad():
        for start in range(0, len(data), LOSS_BATCH):
            x, y = data.batch(torch.arange(start, min(start + LOSS_BATCH, len(data))))
            total += len(y) * float(loss(model.output(x), y, context))
    return total / max(len(data), 1)
