"""SLAC: smoothed-prior logit adjustment, class-wise aggregation, closed-form head.

A method of this library's own, made of parts that each pay by themselves:

- clients minimise the balanced softmax of their own class counts and a few samples more of every
  class (`SmoothedPrior`): under label skew p(x|y) is shared, so that all of them look for the same
  logits;
- they draw rare classes more often, by the root of their counts. What the loss knows stays the
  counts: where a model can separate its samples, draws change nothing in the end and margins do;
  where it cannot yet, draws are faster;
- the row of a class in the classifier is averaged over the clients by how many samples of the class
  they hold, and not by all their samples: who has never seen a class has no say in it;
- at the end a class-balanced head is computed from sums of features, and mixed with the trained one
  as does best on what clients hold out (`ClosedFormFinish`). What that sends is saved before: the
  last rounds are not trained, so that no more is sent than FedAvg sends in as many rounds.

The first is after Menon et al., "Long-tail Learning via Logit Adjustment", ICLR 2021.

Whatever clients send is added up and never looked at singly. With all parts switched off this is
FedAvg, bit by bit.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedtail.errors import FedtailError
from fedtail.finish import ClosedFormFinish, Finish
from fedtail.forms import HELD, ROWS, Form, Like
from fedtail.losses import BalancedSoftmax, LocalLoss, LossContext
from fedtail.methods.base import Asks, Method
from fedtail.methods.fedavg import FedAvg, ModelState
from fedtail.models.heads import class_axis
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Exchange, Payload, Server, Tensors, grouped
from fedtail.reduce import Reduced
from fedtail.training import BatchSampler, ClassBalanced, ClassPrior, SmoothedPrior
from fedtail.training.classifier import prefix
from fedtail.training.closed_heads import LDA, BalancedRidge
from fedtail.volume import model_bytes


@Method.register("slac")
class SLAC(FedAvg[ModelState]):
    """Adjusted logits, balanced batches, class-wise rows and a head in closed form."""

    family: ClassVar[str] = "our own"
    paper: ClassVar[str] = "none: a combination of known parts, measured here"
    needs: ClassVar[tuple[str, ...]] = ("class counts and feature sums, over all clients",)
    traffic: ClassVar[str] = (
        "the share of each class up; once, at the end, what `closed-form` sends, in place of as "
        "many rounds as that costs"
    )

    loss: LocalLoss = Field(
        BalancedSoftmax(), description="the loss that clients minimise; with tau=0 cross-entropy"
    )
    prior: ClassPrior = Field(
        SmoothedPrior(), description="the class prior of the loss; local is that of BSM"
    )
    sampler: BatchSampler = Field(
        ClassBalanced(gamma=0.5),
        description="how clients draw their batches; shuffled is that of FedAvg",
    )
    rows: Literal["classes", "samples"] = Field(
        "classes",
        description="how clients weigh in a class's row of the classifier: by their samples of the "
        "class, or by all of them, as in FedAvg",
    )
    finish: Finish = Field(
        ClosedFormFinish(head=LDA(blocks=3), without_bias=BalancedRidge(blocks=3), required=False),
        description="the last step, where the experiment names none; none ships what was trained",
    )
    pays: bool = Field(
        True,
        description="train so many of the rounds fewer as the last step costs in bytes, but at "
        "least a third of them",
    )

    def build_model(self, base: SplitModel) -> SplitModel:
        """Return the model as it is; one without a row for each class is refused."""
        if self.rows == "classes":
            for name, tensor in classifier_rows(base).items():
                if tensor.shape[axis_of(base, tensor)] != base.classifier.out_features:
                    raise FedtailError(
                        f"slac averages the classifier class by class, and '{name}' has no row for "
                        "each class: take method.rows=samples"
                    )
        return base

    def last_step(self) -> Finish:
        """Return what is done to the model before it is shipped."""
        return self.finish

    def asks(self) -> Asks:
        """Ask what FedAvg asks, and after training what the last step asks."""
        return super().asks()._replace(after=self.finish.asks)

    # Server half

    def round(self, s: ModelState, server: Server) -> Exchange[ModelState]:
        """One exchange with one cohort, unless the last step is paid for by this round."""
        if server.round > self.trained_rounds(server):
            yield from ()
            return s
        return (yield from super().round(s, server))

    def trained_rounds(self, server: Server) -> int:
        """Return after how many rounds training ends."""
        # Whether anybody holds samples out is not known here: as if somebody did.
        last = self.finish.volume(server.model, server.num_classes, judged=True)
        if last is None or not self.pays:
            return server.rounds
        each = 2 * model_bytes(server.model) * min(server.per_round, len(server.clients))
        saved = math.ceil(last.once * len(server.clients) / each)
        return max(server.rounds - saved, math.ceil(server.rounds / 3))

    def aggregate(self, s: ModelState, found: Reduced, server: Server) -> ModelState:
        """Average by samples; rows of the classifier by samples of their class."""
        if self.rows == "samples":
            return super().aggregate(s, found, server)
        rows = found[ROWS]
        if not rows:
            return s
        held, mean = rows.pop(HELD), dict(found["model"])
        for name, change in rows.items():
            # Σ_k n_c^k Δ_c^k / Σ_k n_c^k: both sums come divided by Σ_k n_k.
            share = along(held, change, axis_of(server.model, change))
            step = torch.where(share > 0, change / share, 0.0)
            mean[name] = s.model[name] + step
        return self.server_step(s, mean, server)

    # Client half

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare the model, with the classifier's change apart, class by class."""
        form = super().train_form(task, model, classes)
        if self.rows == "samples":
            return form
        rows = classifier_rows(model)
        own = {f"model/{name}" for name in rows}
        kept = [name for name in form.tensors if name not in own]
        form = replace(
            form,
            tensors={name: form.tensors[name] for name in kept},
            how={name: form.how[name] for name in kept},
        )
        looks = {name: Like(tuple(t.shape), t.dtype) for name, t in rows.items()}
        return form.group(ROWS, {**looks, HELD: Like((classes,), low=0, high=1)})

    def at_start(self, payload: Payload, client: Client, context: LossContext) -> Tensors:
        """Keep the classifier that was received."""
        if self.rows == "samples":
            return {}
        return {name: t.detach().clone() for name, t in classifier_rows(client.model).items()}

    def sent(self, payload: Payload, model: SplitModel, names: Any) -> dict[str, str]:
        """Send all but the classifier as it is."""
        apart = classifier_rows(model) if self.rows == "classes" else {}
        return {f"model/{name}": name for name in names if name not in apart}

    def extras(self, client: Client, steps: int, tensors: Tensors, aux: Tensors) -> Payload:
        """Send n_c / n (v_c − v_c,received) of each row, and n_c / n: their means give the rows."""
        sent = super().extras(client, steps, tensors, aux)
        if self.rows == "samples":
            return sent
        held = client.counts / max(len(client.data), 1)
        rows = {HELD: held}
        for name, start in aux.items():
            change = tensors[name] - start.cpu()
            rows[name] = change * along(held, change, axis_of(client.model, change))
        return replace(sent, tensors={**sent.tensors, **grouped(ROWS, rows)})


def classifier_rows(model: SplitModel) -> dict[str, Tensor]:
    """Return the trained tensors of the classifier, by their names in the model."""
    start = prefix(model)
    named = model.classifier.named_parameters()
    return {start + name: t for name, t in named if t.requires_grad}


def axis_of(model: SplitModel, tensor: Tensor) -> int:
    """Return which dimension of a classifier's tensor is that of classes."""
    return class_axis(model.classifier) if tensor.ndim == 2 else 0


def along(numbers: Tensor, tensor: Tensor, axis: int) -> Tensor:
    """Return one number a class in a shape that goes with a tensor."""
    shape = [1] * tensor.ndim
    shape[axis] = -1
    return numbers.view(shape)
