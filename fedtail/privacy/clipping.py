"""What a client adds to a sum under differential privacy: bounded, and of no other shape.

McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models", ICLR
2018: the change against the received model, not the model itself, is clipped to norm S, and every
client weighs the same. With G groups in an update each is clipped to S / √G. What is left is a
whole number of steps of a grid, so that noise can be one, too (`fedtail.privacy.noise`).

S may follow a quantile of the norms (Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private
Learning with Adaptive Clipping", NeurIPS 2021): each client adds ½ to a sum if its update was not
clipped and −½ if it was, and the server moves S by the noisy share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedtail.forms import CLASSES, LARGEST, ByClass, Form, How, Like, Mean, Number, Total
from fedtail.privacy.layout import own
from fedtail.privacy.noise import RandomBytes, discrete_gaussian, grid_step, noise_in_steps, on_grid
from fedtail.protocol import Payload, Scalar, Tensors
from fedtail.totals import SAMPLES_NAME

WITHIN = "norms/within"
"""The sum that says how many updates were not clipped, where S follows a quantile."""
CLIP = "clip"
"""The scalar of a task that says S, where it is not the same in every round."""


def private_form(form: Form, adaptive: bool = False, bound: float = LARGEST) -> Form:
    """Return what clients send in place of a form: changes, weighed alike, rows of all classes.

    Whole numbers are left out (step counters tell how many samples there are), except where counts
    are what is asked for. The client's own scalars are not protected, so they are not sent: 0.

    Parameters
    ----------
    form
        What the method declares.
    adaptive
        Whether clients also tell if their update was clipped.
    bound
        The largest number of an update: S, so that sums are added up on its grid; with noise of the
        client's own there is none.
    """
    tensors: dict[str, Like] = {}
    hows: dict[str, How] = {}
    for name, look in form.tensors.items():
        how = form.how[name]
        if isinstance(how, Mean):
            if look.dtype.is_floating_point:
                tensors[name], hows[name] = (
                    Like(look.shape, low=-bound, high=bound),
                    how._replace(by=""),
                )
        else:
            rows = (how.classes,) if isinstance(how, ByClass) else ()
            shape = (*rows, *look.shape)
            tensors[name], hows[name] = Like(shape, low=-bound, high=bound), Total()
    if adaptive:
        tensors[WITHIN], hows[WITHIN] = Like((1,), low=-0.5, high=0.5), Total()
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
    source: RandomBytes | None = None,
    adaptive: bool = False,
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
    sigma, source
        Noise that the client adds itself (the local model), and where it comes from.
    adaptive
        Whether to tell if the update was clipped.
    """
    safe_form, step = private_form(form), grid_step(clip)
    groups = sorted({name.partition("/")[0] for name in form.tensors})
    tensors: dict[str, Tensor] = {}
    short = clip / math.sqrt(max(1, len(groups)))
    longest = 0.0
    for group in groups:
        looks = {n: look for n, look in safe_form.tensors.items() if n.startswith(f"{group}/")}
        flat = flat_change(answer, task.tensors, looks, group in form.rows)
        longest = max(longest, float(flat.double().norm()))
        steps = on_grid(flat, short, step)
        if sigma and source is not None:
            noise = discrete_gaussian(noise_in_steps(sigma, step), len(steps), source)
            steps = steps + torch.from_numpy(noise)
        safe = (steps.double() * step).float()
        names = sorted(looks)
        pieces = torch.split(safe, [math.prod(looks[name].shape) for name in names])
        tensors |= {n: p.reshape(looks[n].shape) for n, p in zip(names, pieces, strict=True)}
    if adaptive:
        tensors[WITHIN] = torch.tensor([0.5 if longest <= short else -0.5])
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
