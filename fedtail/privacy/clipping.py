"""What a client adds to a sum under differential privacy: bounded, and of no other shape.

McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models", ICLR
2018: the change against the received model, not the model itself, is clipped to norm S, and every
client weighs the same. With G groups in an update each is clipped to S / √G.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedtail.forms import CLASSES, ByClass, Form, How, Like, Mean, Number, Total
from fedtail.privacy.gaussian import add_noise, bounded
from fedtail.privacy.layout import own
from fedtail.protocol import Payload, Scalar, Tensors
from fedtail.totals import SAMPLES_NAME


def private_form(form: Form) -> Form:
    """Return what clients send in place of a form: changes, weighed alike, rows of all classes.

    Whole numbers are left out (step counters tell how many samples there are), except where counts
    are what is asked for. The client's own scalars are not protected, so they are not sent: 0.
    """
    tensors: dict[str, Like] = {}
    hows: dict[str, How] = {}
    for name, look in form.tensors.items():
        how = form.how[name]
        if isinstance(how, Mean):
            if look.dtype.is_floating_point:
                tensors[name], hows[name] = Like(look.shape), how._replace(by="")
        else:
            rows = (how.classes,) if isinstance(how, ByClass) else ()
            tensors[name], hows[name] = Like((*rows, *look.shape)), Total()
    numbers = {n: Number(0, 0) if own(form, n) else form.scalars[n] for n in form.scalars}
    if SAMPLES_NAME in numbers:
        numbers[SAMPLES_NAME] = Number(1, 1, whole=True)
    return replace(form, tensors=tensors, how=hows, scalars=numbers)


def private_update(
    answer: Payload,
    form: Form,
    task: Payload,
    clip: float,
    sigma: float = 0.0,
    generator: torch.Generator | None = None,
) -> Payload:
    """Return an update of which one client can change a sum by `clip` at most.

    Parameters
    ----------
    answer, form
        The update, and what the method declares of it.
    task
        What it answers: tensors that were received under the same name become their change.
    clip
        S.
    sigma, generator
        Noise that the client adds itself (the local model).
    """
    safe_form = private_form(form)
    groups = sorted({name.partition("/")[0] for name in form.tensors})
    tensors: dict[str, Tensor] = {}
    for group in groups:
        looks = {n: look for n, look in safe_form.tensors.items() if n.startswith(f"{group}/")}
        flat = flat_change(answer, task.tensors, looks, group in form.rows)
        safe = bounded(flat, clip / math.sqrt(max(1, len(groups))))
        if sigma and generator is not None:
            safe = add_noise(safe, sigma, generator)
        names = sorted(looks)
        pieces = torch.split(safe, [math.prod(looks[name].shape) for name in names])
        tensors |= {n: p.reshape(looks[n].shape) for n, p in zip(names, pieces, strict=True)}
    scalars: dict[str, Scalar] = {
        name: 1 if name == SAMPLES_NAME else 0 if own(form, name) else answer.scalars[name]
        for name in form.scalars
    }
    return Payload(tensors, scalars)


def flat_change(
    answer: Payload, received: Tensors, looks: Mapping[str, Like], rows: bool
) -> Tensor:
    """Return a group's numbers as one vector in the order of names, minus what was received."""
    changes = [torch.zeros(0)]
    for name in sorted(looks):
        t = answer.tensors[name].detach().cpu().float()
        if rows:
            index = answer.tensors[f"{name.partition('/')[0]}/{CLASSES}"].cpu()
            t = torch.zeros(looks[name].shape).index_add_(0, index, t)
        old = received.get(name)
        changes.append((t if old is None else t - old.cpu().float()).reshape(-1))
    return torch.cat(changes)


def restored(name: str, change: Tensor, task: Payload) -> Tensor:
    """Return a tensor as the method expects it: a change is added to what was sent out."""
    old = task.tensors.get(name)
    found = change if old is None else (old.double() + change.double()).to(old.dtype)
    # Noise knows nothing of BatchNorm, which takes the root of its variances.
    return found.clamp(min=0) if name.endswith("running_var") else found
