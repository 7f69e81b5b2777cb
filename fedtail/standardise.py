"""Mean and deviation of the inputs of a federation, from sums over clients.

Nobody may look at all training data at once, so a run asks every client, once and before anything
else, for its number of samples and the sum of their values and squares, channel by channel (of
images: of the mean over pixels). They are added up like everything else that clients send
(`fedtail.forms`): masked, if updates are. What comes of it goes along with every task.

Squares of large numbers lose what is small. So clients add up (x - a) / b, where a and b are mean
and deviation of the test set, which the server has: these numbers are about 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedtail.data.augment import channel_axis
from fedtail.data.federation import ClientData, Federation
from fedtail.forms import Form, Like, Total
from fedtail.protocol import Client, Exchange, Payload, Server, Task, Tensors

TOLD = "inputs"
"""The group of a task with the constants that its client normalises inputs with."""
SUMS = "sums"
AT_ONCE = 4096
"""Samples that are added up at a time."""
CONSTANT = 1e-7
"""A deviation below this part of the mean is rounding: such values are only shifted."""


def ask_constants(federation: Federation, server: Server) -> Exchange[tuple[Tensor, Tensor]]:
    """Hold the exchange, and return mean and deviation of each channel, in float64."""
    channels = federation.channels
    samples = federation.test
    whole = ClientData(
        samples=samples,
        positions=torch.arange(len(samples)),
        labels=samples.y,
        mean=federation.mean,
        std=federation.std,
        augment=federation.augment,
        device=federation.device,
    )
    nothing = {"shift": torch.zeros(channels).double(), "scale": torch.ones(channels).double()}
    shift, scale = constants_of(added_up(whole, nothing), nothing)
    question = Payload({"frame/shift": shift, "frame/scale": scale})
    found = yield [Task(client, "input_sums", question) for client in server.clients]
    return constants_of(found[SUMS], question.group("frame"))


def report_sums(payload: Payload, client: Client) -> Payload:
    """Answer on the client: samples, sum and sum of squares of (x - shift) / scale."""
    sums = added_up(client.data, payload.group("frame"))
    return Payload({f"{SUMS}/{name}": tensor for name, tensor in sums.items()})


def sums_form(task: Payload) -> Form:
    """Declare the answer."""
    each = (task.tensors["frame/shift"].numel(),)
    looks = {
        "count": Like((1,), torch.float64, low=0, counted=True),
        "sum": Like(each, torch.float64),
        "square": Like(each, torch.float64, low=0),
    }
    return Form().group(SUMS, looks, Total())


def added_up(data: ClientData, frame: Tensors) -> dict[str, Tensor]:
    """Return samples, sum and sum of squares of a client's values in this frame."""
    shift, scale = frame["shift"], frame["scale"]
    total, square = torch.zeros_like(shift), torch.zeros_like(shift)
    for start in range(0, len(data), AT_ONCE):
        values = data.values(start, start + AT_ONCE)
        # Channels last, and everything else before: one column a channel.
        axis = channel_axis(values.shape[1:])
        columns = values.movedim(axis, -1) if len(shift) > 1 else values
        columns = (columns.reshape(-1, len(shift)) - shift) / scale
        total = total + columns.mean(0) * len(values)
        square = square + columns.square().mean(0) * len(values)
    return {"count": torch.tensor([len(data)]).double(), "sum": total, "square": square}


def constants_of(sums: Tensors, frame: Tensors) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each channel; what does not vary has the deviation 1."""
    count = sums["count"].double().clamp_min(1)
    centre = sums["sum"].double() / count
    spread = (sums["square"].double() / count - centre.square()).clamp_min(0).sqrt()
    mean = frame["shift"] + frame["scale"] * centre
    std = frame["scale"] * spread
    # Of the mean alone: in which unit something is measured makes no difference.
    return mean, torch.where(std > CONSTANT * (mean.abs() + frame["shift"].abs()), std, 1.0)


def with_constants(tasks: Sequence[Task], federation: Federation) -> Sequence[Task]:
    """Tell each client what to normalise with; a payload that tasks share stays one object."""
    if federation.asks == "none" or not federation.known:
        return tasks
    told = {f"{TOLD}/{n}": getattr(federation, n).flatten().cpu() for n in ("mean", "std")}
    new: dict[int, Payload] = {}
    for task in tasks:
        tensors = {**task.payload.tensors, **told}
        new.setdefault(id(task.payload), replace(task.payload, tensors=tensors))
    return [replace(task, payload=new[id(task.payload)]) for task in tasks]


def without_constants(payload: Payload) -> tuple[Payload, dict[str, Tensor]]:
    """Return what the method sent, and the constants beside it."""
    told = payload.group(TOLD)
    if not told:
        return payload, told
    own = {n: t for n, t in payload.tensors.items() if not n.startswith(f"{TOLD}/")}
    return replace(payload, tensors=own), told
