"""Distillation on the server: the resident model learns what others predict, without labels.

With targets q_i (rows of probabilities) and logits z_i, a step lowers the mean over a batch of
T² KL(q_i ‖ softmax(z_i / T)).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtail.data.federation import ServerData
from fedtail.errors import FedtailError
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Server, Tensors
from fedtail.rng import contained
from fedtail.training.local import LocalTraining, normalisable
from fedtail.training.samplers import Shuffled

DISTILLATION_BATCH = 500


def held(server: Server) -> ServerData:
    """Return the samples that the server holds, or say how it gets some."""
    if server.data is None:
        raise FedtailError("the server holds no samples: give it some, with server_per_class")
    return server.data


def predictions(model: SplitModel, x: Tensor, tensors: Tensors | None = None) -> Tensor:
    """Return logits of all samples in evaluation mode, of other tensors if they are given."""
    if tensors is not None:
        model.load(tensors)
    model.eval()
    with torch.no_grad():
        return torch.cat([model(part) for part in torch.split(x, DISTILLATION_BATCH)])


def divergence(z: Tensor, target: Tensor, temperature: float = 1.0) -> Tensor:
    """T² KL(q ‖ softmax(z / T)), the mean over samples."""
    log_p = functional.log_softmax(z / temperature, dim=1)
    return functional.kl_div(log_p, target, reduction="batchmean") * temperature**2


def distil(
    server: Server,
    x: Tensor,
    target: Tensor,
    training: LocalTraining,
    *,
    temperature: float = 1.0,
    cosine: bool = False,
    after_step: Callable[[int], bool] | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> None:
    """Train the server's resident model, from what it holds, to predict `target` on `x`.

    Parameters
    ----------
    server
        Its model is trained, in training mode, as a client's is.
    x, target
        Samples and the probabilities to learn, on the server's device.
    training
        Optimiser, rate, batch size, how many steps or epochs, and the largest gradient norm.
    temperature
        T; the targets are of the same temperature.
    cosine
        Whether the rate falls to zero along half a cosine, over the steps of `training`.
    after_step
        Is told how many steps are done, and says whether to stop.
    loss
        Another loss, of the logits of a batch and which samples it has.
    """
    model = server.model
    norms = model.batch_norms()
    optimizer = training.make_optimizer(model.trainable().values(), server.round, server.rounds)
    rate = float(optimizer.param_groups[0]["lr"])
    order = server.generator("distillation batches")
    labels = torch.zeros(len(x), dtype=torch.int64)
    model.train()
    with contained(server.generator("distillation dropout").initial_seed(), server.device):
        for step, index in enumerate(training.batches(Shuffled(), labels, order, bool(norms))):
            if cosine and training.steps:
                done = step / training.steps
                optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * done)) / 2
            at = index.to(x.device)
            optimizer.zero_grad(set_to_none=True)
            with normalisable(norms, len(at)):
                z = model(x[at])
            found = divergence(z, target[at], temperature) if loss is None else loss(z, at)
            torch.autograd.backward(found)
            if training.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), training.clip)
            optimizer.step()
            if after_step is not None and after_step(step + 1):
                break
    optimizer.zero_grad(set_to_none=True)
