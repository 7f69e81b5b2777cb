"""FEDIC.

Shang, Lu, Cheung, Wang, "FEDIC: Federated Learning on Non-IID and Long-Tailed Data via Calibrated
Distillation", ICME 2022.

The server holds labelled samples, as many of each class. Each round it fine-tunes the average on
them; it trains a small calibration of the uploads' logits on them, which weighs the uploads sample
by sample, scales and shifts classes, and for each sample decides between the uploads and the
fine-tuned model; and it distils what comes of that into the average. Clients notice nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedtail.data.federation import ServerData
from fedtail.forms import Form
from fedtail.methods.base import Asks, Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Payload, Server, Tensors
from fedtail.reduce import Reduced
from fedtail.training import LocalTraining, Shuffled
from fedtail.training.distillation import DISTILLATION_BATCH, distil, held, predictions

UPLOADS = "every client's own model is calibrated"


class Calibration(nn.Module):
    """Makes one teacher of the uploads and the fine-tuned model.

    The logits z_k of upload k weigh σ(z_k · a + a_0), over the sum of these; their mean is scaled
    and shifted class by class; σ(g · h + g_0), with h the mean of the uploads' features, is its
    part of the teacher, and the rest is the fine-tuned model's.

    Parameters
    ----------
    classes, width
        C, and the number of features.
    """

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        # From zero, which draws no numbers: all uploads weigh the same, the gate is half open.
        self.voice = nn.ParameterList([torch.zeros(classes), torch.zeros(1)])
        self.scale = nn.Parameter(torch.ones(classes))
        self.shift = nn.Parameter(torch.zeros(classes))
        self.gate = nn.ParameterList([torch.zeros(width), torch.zeros(1)])

    def forward(self, z: Tensor, h: Tensor, tuned: Tensor) -> Tensor:
        """Return the teacher's logits.

        Parameters
        ----------
        z, h
            The uploads' logits (S, n, C) and features (S, n, d).
        tuned
            The logits of the fine-tuned model, (n, C).
        """
        together = self.scale * (self.weights(z) * z).sum(dim=0) + self.shift
        open_to_uploads = (h.mean(dim=0) @ self.gate[0] + self.gate[1]).sigmoid()[:, None]
        mixed: Tensor = open_to_uploads * together + (1 - open_to_uploads) * tuned
        return mixed

    def weights(self, z: Tensor) -> Tensor:
        """Return what each upload weighs for each sample, (S, n, 1)."""
        heard = (z @ self.voice[0] + self.voice[1]).sigmoid()[..., None]
        shares: Tensor = heard / heard.sum(dim=0)
        return shares


@Method.register("fedic")
class FEDIC(FedAvg[ModelState]):
    """Distils calibrated uploads and a fine-tuned average, on labelled server data."""

    family: ClassVar[str] = "server data"
    paper: ClassVar[str] = (
        "Shang et al., FEDIC: Federated Learning on Non-IID and Long-Tailed Data via Calibrated "
        "Distillation, ICME 2022"
    )
    needs: ClassVar[tuple[str, ...]] = ("labelled server data",)
    server_data: ClassVar[Literal["none", "labelled", "unlabelled"]] = "labelled"

    tune_steps: int = Field(100, ge=0, description="steps that fine-tune the average")
    calibrate_steps: int = Field(100, ge=0, description="steps of the calibration")
    distil_steps: int = Field(100, ge=0, description="steps of distillation a round; 0 is FedAvg")
    distil_lr: float = Field(1e-3, gt=0, description="rate of all three, by Adam")
    distil_decay: float = Field(2e-4, ge=0, description="their weight decay")
    distil_batch: int = Field(20, ge=1, description="their batch size")
    temperature: float = Field(2.0, gt=0, description="T of the distillation")
    lam: float = Field(
        0.5, ge=0, le=1, description="part of the distillation; the rest is cross-entropy"
    )

    def asks(self) -> Asks:
        """Need every client's own model."""
        return super().asks()._replace(single=UPLOADS)

    def aggregate(self, s: ModelState, found: Reduced, server: Server) -> ModelState:
        """Average, then distil calibrated uploads into the average."""
        new = super().aggregate(s, found, server)
        voices = [u.payload.group("model") for u in found.each if u.payload.scalars["samples"]]
        if not self.distil_steps or not voices:
            return new
        data = held(server)
        teacher = self.teacher(new.model, voices, data, server) if self.lam else data.x.new_zeros(0)
        return replace(new, model=self.student(new.model, teacher, data, server))

    def teacher(
        self, average: Tensors, voices: Sequence[Tensors], data: ServerData, server: Server
    ) -> Tensor:
        """Return the teacher's logits on the server's samples."""
        tuned = self.tuned(average, data, server)
        each = [seen(server.model, data.x, voice) for voice in voices]
        z, h = torch.stack([one[0] for one in each]), torch.stack([one[1] for one in each])
        calibration = Calibration(z.shape[2], h.shape[2]).to(z.device)
        optimizer = torch.optim.Adam(
            calibration.parameters(), lr=self.distil_lr, weight_decay=self.distil_decay
        )
        order = server.generator("calibration batches")
        plan = self.training(self.calibrate_steps or 1)
        batches = plan.batches(Shuffled(), data.y.cpu(), order, pairs=False)
        for at in (batch.to(z.device) for batch in batches if self.calibrate_steps):
            optimizer.zero_grad()
            logits = calibration(z[:, at], h[:, at], tuned[at])
            torch.autograd.backward(functional.cross_entropy(logits, data.y[at]))
            optimizer.step()
        with torch.no_grad():
            found: Tensor = calibration(z, h, tuned)
        server.log("teacher_right", float((found.argmax(dim=1) == data.y).float().mean()))
        return found

    def tuned(self, average: Tensors, data: ServerData, server: Server) -> Tensor:
        """Return the logits of the average after fine-tuning on the server's samples."""
        server.model.load(average)
        if self.tune_steps:
            truth = functional.one_hot(data.y, server.num_classes).to(data.x.dtype)
            # The divergence from one-hot targets is the cross-entropy.
            distil(server, data.x, truth, self.training(self.tune_steps))
        return predictions(server.model, data.x)

    def student(
        self, average: Tensors, teacher: Tensor, data: ServerData, server: Server
    ) -> dict[str, Tensor]:
        """Return the average after λ KL(teacher ‖ student) + (1 − λ) CE, both at each batch."""
        server.model.load(average)
        target = (teacher / self.temperature).softmax(dim=1) if self.lam else teacher

        def loss(z: Tensor, at: Tensor) -> Tensor:
            truth = functional.cross_entropy(z, data.y[at])
            if not self.lam:
                return truth
            log_p = (z / self.temperature).log_softmax(dim=1)
            taught = functional.kl_div(log_p, target[at], reduction="batchmean")
            return self.lam * taught + (1 - self.lam) * truth

        distil(server, data.x, target, self.training(self.distil_steps), loss=loss)
        return server.model.tensors()

    def training(self, steps: int) -> LocalTraining:
        """Return how the server trains."""
        return LocalTraining(
            optimizer="adam",
            lr=self.distil_lr,
            weight_decay=self.distil_decay,
            steps=steps,
            batch_size=self.distil_batch,
        )

    # Client half

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare the model, of every client its own."""
        return super().train_form(task, model, classes).singly(UPLOADS)


def seen(model: SplitModel, x: Tensor, tensors: Tensors) -> tuple[Tensor, Tensor]:
    """Return logits and features of all samples in evaluation mode, of these tensors."""
    model.load(tensors)
    model.eval()
    with torch.no_grad():
        parts = [model.output(part) for part in torch.split(x, DISTILLATION_BATCH)]
    return torch.cat([p.logits for p in parts]), torch.cat([p.features for p in parts])
