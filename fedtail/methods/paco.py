"""PaCo.

Cui, Zhong, Liu, Yu, Jia, "Parametric Contrastive Learning", ICCV 2021.

FedAvg whose clients compare each image with the class centres (the classifier, with the log prior)
and with other images at once. Queries are projected features of one view; keys are those of a
second view, from a momentum encoder that follows the model, and earlier keys wait in a queue. The
encoder and the queue belong to the client and never leave it; the projection is averaged with the
model and left behind for testing. The loss is `PaCoLoss`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from fedtail.errors import FedtailError
from fedtail.losses import LocalLoss, PaCoLoss
from fedtail.methods.base import Method
from fedtail.methods.fedavg import FedAvg, LocalRun, ModelState
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Payload, Tensors, grouped
from fedtail.training import normalisable

PROJECTION = "projection"


@dataclass
class Memory:
    """What one task compares with.

    Attributes
    ----------
    encoder
        The momentum encoder, never trained itself.
    keys, labels
        The queue, newest first: unit vectors and their classes.
    generator
        The stream of the second view.
    """

    encoder: SplitModel
    keys: Tensor
    labels: Tensor
    generator: torch.Generator


@Method.register("paco")
class PaCo(FedAvg[ModelState]):
    """FedAvg with contrast of samples and class centres, over a queue that each client keeps."""

    family: ClassVar[str] = "local loss"
    paper: ClassVar[str] = "Cui et al., Parametric Contrastive Learning, ICCV 2021"
    needs: ClassVar[tuple[str, ...]] = (
        "augmentation or jitter, for two views of a sample",
        "a second model and a queue on each client",
    )
    traffic: ClassVar[str] = "the projection, both ways"

    loss: LocalLoss = Field(PaCoLoss(), description="the contrast with centres and samples")
    queue: int = Field(1024, ge=0, description="how many keys a client remembers")
    momentum: float = Field(
        0.999, ge=0, le=1, description="m: the encoder keeps this share of itself in each step"
    )
    width: int = Field(32, ge=1, description="width of queries and keys")
    keep: Literal["all", "queue", "nothing"] = Field(
        "all",
        description="what a client keeps until its next round: encoder and queue, the queue alone "
        "(the encoder starts from the received model), or nothing",
    )
    jitter: float = Field(
        0.0, ge=0, description="standard deviation of noise in the second view, beside augmentation"
    )

    @model_validator(mode="after")
    def _contrast(self) -> Self:
        if not isinstance(self.loss, PaCoLoss):
            raise FedtailError(f"method paco has the loss 'paco', not '{self.loss.name}'")
        return self

    def build_model(self, base: SplitModel) -> SplitModel:
        """Add the projection, two layers on the features."""
        d = base.feature_dim
        layers = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, self.width))
        return base.with_head(PROJECTION, layers)

    def changes_inputs(self) -> bool:
        """Whether there is noise in the second view."""
        return self.jitter > 0

    def eval_model(self, s: ModelState) -> Tensors:
        """Return the model without the projection."""
        return {name: t for name, t in s.model.items() if not name.startswith(f"{PROJECTION}.")}

    # Client half

    def prepare(self, run: LocalRun) -> Memory:
        """Take up the encoder and the queue where the client left them."""
        client = run.client
        kept = Payload({} if self.keep == "nothing" else dict(client.state))
        encoder = copy.deepcopy(run.model).requires_grad_(False).train()
        if self.keep == "all" and kept.group("key"):
            encoder.load(kept.group("key"))
        queue = kept.group("queue")
        return Memory(
            encoder=encoder,
            keys=queue.get("keys", torch.zeros(0, self.width)).to(client.device),
            labels=queue.get("labels", torch.zeros(0, dtype=torch.int64)).to(client.device),
            generator=client.generator("second view"),
        )

    def batch_loss(self, run: LocalRun, x: Tensor, y: Tensor) -> Tensor:
        """Compare with the centres, the batch, its keys and the queue; then queue the keys."""
        memory: Memory = run.aux
        output = run.model.output(x)
        keys = self.keys(run)
        queries = projected(run.model, output.features)
        keys, labels = torch.cat([keys, memory.keys]), torch.cat([y, memory.labels])
        memory.keys, memory.labels = keys[: self.queue], labels[: self.queue]
        contrast = cast(PaCoLoss, self.loss).contrast
        return contrast(output.logits, y, queries, keys, labels, run.context.prior)

    @torch.no_grad()
    def keys(self, run: LocalRun) -> Tensor:
        """θ_k ← m θ_k + (1 − m) θ_q, then the keys of the batch's second view."""
        memory: Memory = run.aux
        for slow, fast in zip(memory.encoder.parameters(), run.model.parameters(), strict=True):
            slow.lerp_(fast, 1 - self.momentum)
        x, _ = run.client.data.batch(run.index, memory.generator)
        if self.jitter:
            x = x + self.jitter * torch.randn(x.shape, generator=memory.generator).to(x.device)
        with normalisable(memory.encoder.batch_norms(), len(x)):
            return projected(memory.encoder, memory.encoder.features(x))

    def reply(self, run: LocalRun) -> Payload:
        """Keep what is to be kept, and send the model."""
        memory: Memory = run.aux
        if self.keep != "nothing":
            queue = {"keys": memory.keys.cpu(), "labels": memory.labels.cpu()}
            run.client.state.update(grouped("queue", queue))
        if self.keep == "all":
            run.client.state.update(grouped("key", memory.encoder.tensors()))
        return super().reply(run)


def projected(model: SplitModel, features: Tensor) -> Tensor:
    """Return unit vectors: queries or keys."""
    return functional.normalize(model.extra_heads[PROJECTION](features), dim=1)
