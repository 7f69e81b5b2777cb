"""FedReLa.

"FedReLa: Imbalanced Federated Learning via Re-Labeling", ICML 2026 (arXiv:2606.26037).

FedAvg, or FedAvg with any loss, for most of the rounds. Then each client once, with the global
model it receives, gives some of its samples another label: those of a class it has many of that
look more than nearly all others like a class it has few of. From then on it trains on the new
labels, at a smaller rate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedtail.methods.base import Method, action
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Payload
from fedtail.training.classifier import second_stage

NEW_LABELS = "relabelled/labels"
VIEWS_AT_ONCE = 500


@Method.register("fedrela")
class FedReLa(FedAvg[ModelState]):
    """FedAvg; late in training clients give borderline samples the label of a rarer class."""

    family: ClassVar[str] = "re-labelling"
    paper: ClassVar[str] = "FedReLa: Imbalanced Federated Learning via Re-Labeling, ICML 2026"
    needs: ClassVar[tuple[str, ...]] = ("clients that keep a state",)

    begin: float = Field(
        0.85, gt=0, le=1, description="share of the rounds before labels change; 1 is FedAvg"
    )
    share: float = Field(
        0.05, ge=0, lt=1, description="share of a client's samples that may change to a class"
    )
    passes: int = Field(5, ge=1, description="views of a sample that predictions are averaged over")
    late_rate: float = Field(0.1, gt=0, le=1, description="factor of the rate from then on")

    @action
    def train(self, payload: Payload, client: Client) -> Payload:
        """Train on the client's labels, or on those that it gave its samples itself."""
        if not second_stage(client.round, client.rounds, self.begin):
            return super().train(payload, client)
        if NEW_LABELS not in client.state:
            self.load(payload, client)
            p = self.predicted(client.model, client)
            draw = client.generator("labels")
            client.state[NEW_LABELS] = relabelled(
                p, client.data.labels, client.num_classes, self.share, draw
            )
        labels = client.state[NEW_LABELS]
        counts = torch.bincount(labels, minlength=client.num_classes)
        own = replace(client, data=replace(client.data, labels=labels), counts=counts)
        later = self.but(local=self.local.but(lr=self.local.lr * self.late_rate))
        return FedAvg.train(later, payload, own)

    def predicted(self, model: SplitModel, client: Client) -> Tensor:
        """Return the mean probabilities of all local samples, over several views if they differ."""
        model.eval()
        draw = client.generator("views") if client.data.is_augmented else None
        times = 1 if draw is None else self.passes
        every = torch.arange(len(client.data))
        with torch.no_grad():
            return torch.stack(
                [
                    torch.cat(
                        [
                            model(client.data.batch(part, draw)[0]).softmax(dim=1).cpu()
                            for part in torch.split(every, VIEWS_AT_ONCE)
                        ]
                    )
                    for _ in range(times)
                ]
            ).mean(dim=0)


def relabelled(
    p: Tensor, y: Tensor, classes: int, share: float, generator: torch.Generator
) -> Tensor:
    """Return the labels after re-labelling.

    A sample of class y takes the label j with the probability tanh(z_j − t_j) (r_j − r_y), where
    both are positive: z_j says by how many standard deviations it looks more like j than other
    samples of y do, t_j is what all but `share` of the client's samples reach, and r is 1 for the
    rarest class and 0 for the most frequent one. Of several labels the most probable is taken.

    Parameters
    ----------
    p, y
        Probabilities (n, C) and labels (n,).
    classes, share
        C, and the share of samples above a threshold.
    generator
        Where draws come from.
    """
    if not len(y):
        return y
    counts = torch.bincount(y, minlength=classes).to(p.dtype)
    table = torch.zeros(classes, p.shape[1], dtype=p.dtype)
    each = counts.clamp(min=1)[:, None]
    mean = table.index_add(0, y, p) / each
    centred = p - mean[y]
    spread = (table.index_add(0, y, centred.square()) / each).sqrt().clamp(min=1e-6)
    z = centred / spread[y]
    above = int(share * len(y))
    threshold = z.topk(above + 1, dim=0).values[-1]
    rare = 1 - (counts - counts.min()) / (counts.max() - counts.min()).clamp(min=1)
    rate = torch.tanh(z - threshold) * (rare[None] - rare[y][:, None]).clamp(min=0)
    hit = rate > torch.rand(rate.shape, generator=generator)
    best = torch.where(hit, rate, -1.0).argmax(dim=1)
    return torch.where(hit.any(dim=1), best, y)
