"""CLIP2FL.

Shi, Zheng, Yin, Lu, Xie, Qu, "CLIP-guided Federated Learning on Heterogeneous and Long-Tailed
Data", AAAI 2024.

CReFF with a teacher on both sides: CLIP, pretrained and frozen, which knows the classes by their
names. Clients learn beside their labels what it says of their images. On the server, federated
features are drawn towards what it makes of the name of their class. CLIP is on every machine and is
never sent; what it says of a client's images is computed once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedtail.data.dataset import Dataset
from fedtail.data.feature_store import ENCODED_AT_ONCE
from fedtail.errors import FedtailError
from fedtail.methods.base import Method
from fedtail.methods.creff import CReFF, CReFFState
from fedtail.methods.fedavg import LocalRun
from fedtail.models.clip import load_clip, text_directions
from fedtail.models.hf import from_0_to_1
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Server
from fedtail.reduce import Reduced
from fedtail.training.distillation import divergence
from fedtail.training.federated_features import Head, Pull, pull_features

SAID = "clip/logits"
"""Where a client keeps what CLIP says of its images."""


@Method.register("clip2fl")
class CLIP2FL(CReFF):
    """CReFF with CLIP as a teacher: of the clients' models, and of the federated features."""

    paper: ClassVar[str] = (
        "Shi et al., CLIP-guided Federated Learning on Heterogeneous and Long-Tailed Data, AAAI "
        "2024"
    )
    needs: ClassVar[tuple[str, ...]] = (
        *CReFF.needs,
        "CLIP on every machine (extra pretrained), images, names of the classes",
    )

    clip: str = Field(
        "hf:openai/clip-vit-base-patch32",
        description="the CLIP: hf:NAME on the hub, or hf:FOLDER that save_pretrained wrote",
    )
    prompt: str = Field(
        "a photo of a {}", pattern=r"\{\}", description="what CLIP is told, {} being the class"
    )
    names: tuple[str, ...] = Field(
        (), description="what the classes are called; by default as the data says"
    )
    alpha: float = Field(1.0, ge=0, description="α, weight of what CLIP says at the clients")
    temperature: float = Field(3.0, gt=0, description="T of CLIP and client")
    contrast: float = Field(
        0.001, ge=0, description="weight of the texts that features are drawn to; 0 switches it off"
    )
    contrast_temperature: float = Field(0.1, gt=0, description="τ of this contrast")

    @property
    def needs_clip(self) -> bool:
        """Whether CLIP has anything to say."""
        return bool(self.alpha or (self.contrast and self.features))

    def check_data(self, dataset: Dataset) -> None:
        """Refuse what is no image or has no names, and a CLIP that is not there."""
        if not self.needs_clip:
            return
        self.prompts(dataset.classes)
        x, shape = dataset.train.x, dataset.input_shape
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise FedtailError(
                f"method '{self.name}' shows CLIP images of 1 or 3 channels, not inputs of shape "
                f"{shape}"
            )
        if len(x) and x.dtype != torch.uint8 and not from_0_to_1(x):
            raise FedtailError(
                f"method '{self.name}' shows CLIP images of bytes, or of numbers from 0 to 1: let "
                "the data be that, and data.mean and data.std normalise it for the network"
            )
        load_clip(self.clip)

    def prompts(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        """Return a sentence for each class."""
        names = self.names or classes
        if not self.names and classes == tuple(str(c) for c in range(len(classes))):
            raise FedtailError(
                f"method '{self.name}' tells CLIP what the classes are called, and the data has no "
                'names for them: give them as method.names=["cat", "dog", ...]'
            )
        if classes and len(names) != len(classes):
            raise FedtailError(f"method.names has {len(names)} names for {len(classes)} classes")
        return tuple(self.prompt.replace("{}", name) for name in names)

    # Server half

    def init(self, model: SplitModel, server: Server) -> CReFFState:
        """Start as CReFF does; the classes must have names."""
        if self.needs_clip:
            self.prompts(server.classes)
        return super().init(model, server)

    def pull(self, server: Server) -> Pull | None:
        """Draw features to the text t_c of their class: −log softmax(s·t/τ)_c, mean over all."""
        if not self.contrast:
            return None
        texts = text_directions(self.clip, self.prompts(server.classes))
        rows = as_wide(texts, server.model.feature_dim) / self.contrast_temperature
        weight = self.contrast / (len(rows) * self.features)
        return Pull(Head(rows.to(server.device), None), weight)

    def aggregate(self, s: CReFFState, found: Reduced, server: Server) -> CReFFState:
        """Go on as CReFF; features of classes that nobody reported are drawn to texts alone."""
        pull = None if s.features is None else self.pull(server)
        if pull is None or s.features is None:
            return super().aggregate(s, found, server)
        every = torch.arange(len(s.features))
        rest = every[~torch.isin(every, found["grad"]["classes"])]
        features, device = s.features.clone(), server.device
        features[rest] = pull_features(
            features[rest].to(device), rest.to(device), pull, self.match_steps, self.match_lr
        ).cpu()
        new = super().aggregate(replace(s, features=features), found, server)
        assert new.features is not None
        z = new.features.flatten(0, 1) @ pull.head.weight.cpu().T
        labels = every.repeat_interleave(self.features)
        server.log("contrast_loss", float(functional.cross_entropy(z, labels)))
        return new

    # Client half

    def prepare(self, run: LocalRun) -> Any:
        """Have CLIP look at the client's images, once; the rest is CReFF's."""
        if self.alpha and SAID not in run.client.state:
            run.client.state[SAID] = self.said(run.client)
        return super().prepare(run)

    def said(self, client: Client) -> Tensor:
        """Return CLIP's logits of all local samples, without augmentation, (n, C)."""
        texts = text_directions(self.clip, self.prompts(client.classes))
        parts = [
            load_clip(self.clip).logits(
                client.data.values(start, start + ENCODED_AT_ONCE).float().to(client.device), texts
            )
            for start in range(0, len(client.data), ENCODED_AT_ONCE)
        ]
        return torch.cat([texts.new_empty(0, len(texts)), *(part.cpu() for part in parts)])

    def batch_loss(self, run: LocalRun, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss, and α T² KL(softmax(CLIP / T) ‖ softmax(z / T))."""
        if not self.alpha:
            return super().batch_loss(run, x, y)
        output = run.model.output(x)
        z = run.client.state[SAID][run.index].to(output.logits)
        taught = divergence(output.logits, (z / self.temperature).softmax(1), self.temperature)
        return self.loss(output, y, run.context) + self.alpha * taught


def as_wide(rows: Tensor, width: int) -> Tensor:
    """Return unit rows of another width with the same angles between them, as far as they fit in.

    Their principal coordinates, with zeros behind: exact where there are no more rows than columns.
    """
    if rows.shape[1] == width:
        return rows
    u, s, _ = torch.linalg.svd(rows, full_matrices=False)
    shown = (u * s)[:, :width]
    return functional.normalize(functional.pad(shown, (0, width - shown.shape[1])))
