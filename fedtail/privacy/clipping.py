"""What a client adds to a sum under differential privacy: bounded, and of no other shape.

McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models", ICLR
2018: the change against the received model, not the model itself, is clipped to norm S, and every
client weighs the same. With G groups in an update each is clipped to S / √G.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedtail.privacy.additive import SAMPLES, check_summable, dense_rows
from fedtail.privacy.gaussian import add_noise, bounded
from fedtail.protocol import Payload, Scalar, Sum, Tensors


def private_update(
    answer: Payload,
    task: Payload,
    num_classes: int,
    clip: float,
    sigma: float = 0.0,
    generator: torch.Generator | None = None,
) -> Payload:
    """Return an update of which one client can change a sum by `clip` at most.

    Tensors that were received under the same name become their change, tables rows of all classes,
    and the client's own numbers 0: they are not protected, so they are not sent.

    Parameters
    ----------
    answer, task
        The update, and what it answers.
    num_classes
        How many rows a table has.
    clip
        S.
    sigma, generator
        Noise that the client adds itself (the local model).
    """
    check_summable(answer, task.scalars)
    own = clip / math.sqrt(max(1, len(answer.summable)))
    tensors: dict[str, Tensor] = {}
    for group in sorted(answer.summable):
        sum_ = answer.sums.get(group, Sum())
        sent = answer.group(group)
        if sum_.how == "classes":
            sent = dense_rows(sent, num_classes)
            tensors[f"{group}/classes"] = torch.arange(num_classes)
            del sent["classes"]
        names, flat = flat_change(group, sent, task.tensors, counted=sum_.how == "sum")
        safe = bounded(flat, own)
        if sigma and generator is not None:
            safe = add_noise(safe, sigma, generator)
        pieces = torch.split(safe, [sent[name].numel() for name in names])
        for name, piece in zip(names, pieces, strict=True):
            tensors[f"{group}/{name}"] = piece.reshape(sent[name].shape)
    scalars: dict[str, Scalar] = {
        name: value if task.scalars.get(name) == value else 0
        for name, value in answer.scalars.items()
    }
    if SAMPLES in scalars:
        scalars[SAMPLES] = 1
    return Payload(tensors, scalars, answer.summable, answer.sums)


def flat_change(
    group: str, sent: Tensors, received: Tensors, counted: bool
) -> tuple[list[str], Tensor]:
    """Return a group's numbers as one vector, minus what was received, and its names in order.

    Whole numbers are left out (step counters tell how many samples there are), except where counts
    are what is asked for.
    """
    names = sorted(name for name, t in sent.items() if counted or t.is_floating_point())
    changes = []
    for name in names:
        t = sent[name].detach().cpu().float()
        old = received.get(f"{group}/{name}")
        changes.append((t if old is None else t - old.cpu().float()).reshape(-1))
    return names, torch.cat([torch.zeros(0), *changes])


def restored(tensors: Tensors, task: Payload) -> dict[str, Tensor]:
    """Return tensors as the method expects them: a change is added to what was sent out.

    What was not sent back (step counters) is not there: the server half keeps what it has.
    """
    found: dict[str, Tensor] = {}
    for name, t in tensors.items():
        old = task.tensors.get(name)
        found[name] = t if old is None else (old.double() + t.double()).to(old.dtype)
        if name.endswith("running_var"):
            found[name].clamp_(min=0)  # noise knows nothing of BatchNorm, which takes its root
    return found
