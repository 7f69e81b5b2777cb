"""The client half for people who have a Flower app: their model, their data, any method.

The method and its hyper-parameters come with each message, as a registered name and checked fields.
A message can start nothing but the marked actions of a registered method.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from torch import Tensor, nn

from fedtail.data.augment import Augment
from fedtail.data.dataset import Dataset, Samples, checked_samples
from fedtail.data.federation import Federation
from fedtail.data.formats.pairs import size_of, stacked
from fedtail.data.held_out import held_out
from fedtail.device import choose_device, runs_on_images, to_device
from fedtail.engines.flower.records import Content
from fedtail.engines.flower.relay import object_named
from fedtail.engines.flower.scrubbing import PublicError
from fedtail.engines.flower.worker import Notes, answer_content, answer_message, introduction
from fedtail.engines.runtime import Runtime
from fedtail.errors import FedtailError
from fedtail.methods import Method
from fedtail.models.split_model import SplitModel
from fedtail.models.trained import with_trained
from fedtail.rng import contained, derive
from fedtail.setting import takes_whole

ModelMaker = nn.Module | Callable[[], nn.Module]


def handle(
    message: Message,
    context: Context,
    model: ModelMaker,
    dataset: Any,
    augment: Augment | None = None,
    device: str = "auto",
) -> Message:
    """Answer a ``train`` message of `as_strategy` inside an existing client app.

    Parameters
    ----------
    message, context
        What Flower gives the function.
    model
        The network, or what makes it.
    dataset
        A pair of tensors or arrays (inputs, labels); a `Dataset` of pairs, or of dictionaries with
        one input and one label; or a `DataLoader` of such a dataset.
    augment
        Random changes of training images.
    device
        Where to train.
    """
    return answer_message(
        message,
        context,
        lambda n: runtime(n, context, model, dataset, augment, device),
        samples=lambda: size_of(dataset),
    )


def answer_named(
    content: Content, context: Context, model: str, data: str, augment: str | None, device: str
) -> Content:
    """Return the answer of a client app whose parts are named.

    Data and model are kept from one message to the next; one node's, because a process of Flower's
    simulation serves many.
    """
    node = (context.run_id, context.node_id, data)

    def local() -> Any:
        return kept("data", node, lambda: object_named(data)(context))

    def place(notes: Notes) -> Runtime:
        told = {name: held for name, held in notes.items() if name not in ("jobs", "frames")}
        given = (model, augment, device, json.dumps(told, sort_keys=True))
        changes = None if augment is None else object_named(augment)
        made: Runtime = kept(
            "place",
            (node, given),
            lambda: runtime(notes, context, object_named(model), local(), changes, device),
        )
        return made

    return answer_content(content, context, place, samples=lambda: size_of(local()))


_KEPT: dict[str, tuple[Any, Any]] = {}


def kept(kind: str, name: Any, make: Callable[[], Any]) -> Any:
    """Return what was last made of a kind, if it has this name; else make it."""
    if kind not in _KEPT or _KEPT[kind][0] != name:
        _KEPT.pop(kind, None)
        _KEPT[kind] = name, make()
    return _KEPT[kind][1]


def runtime(
    notes: Notes,
    context: Context,
    model: ModelMaker,
    local: Any,
    augment: Augment | None,
    device: str,
) -> Runtime:
    """Return the place where this node's tasks are done."""
    if "method" not in notes:
        raise PublicError("was sent no method: the server is not one of as_strategy or serve")
    method: Method[Any] = Method.model_validate(notes["method"])
    x, y = tensors_of(local)
    samples = checked_samples(x, y, int(notes["classes"]), "the local data")
    where = choose_device(device)
    told = str(notes.get("train", "all")), str(notes.get("precision", "float32"))
    base, trained = networks(model, method, int(notes["seed"]), where, *told)
    client = introduction(context)["partition"]
    share, seed = float(notes.get("validation", 0.0)), int(notes["seed"])
    apart = held_out(samples.y.numpy(), share, seed, client) if share else np.empty(0, np.int64)
    before = [np.empty(0, np.int64)] * client
    parts = [*before, np.delete(np.arange(len(samples)), apart)]
    names = tuple(str(c) for c in range(int(notes["classes"])))
    images = runs_on_images(trained, where)
    some = samples.x[torch.arange(min(2, len(samples)))]
    tokens = takes_whole(base, some, len(names))
    dataset, held = Dataset(samples, nothing(samples), names), [*before, apart]
    federation = Federation(dataset, parts, augment, where, images, held, tokens)
    return Runtime(federation, method, base, trained, int(notes["seed"]), where)


def networks(
    model: ModelMaker,
    method: Method[Any],
    seed: int,
    device: torch.device,
    train: str,
    precision: str = "float32",
) -> tuple[SplitModel, SplitModel]:
    """Return the user's network and the one that the method trains, on the device."""
    with contained(derive(seed, "model")):
        module = model if isinstance(model, nn.Module) else model()
        base = module if isinstance(module, SplitModel) else SplitModel(module)
        base = with_trained(base, train)
        trained = method.build_model(base)
    method.check_model(trained)
    to_device((base, trained), device, runs_on_images(trained, device), precision)
    return base, trained


def nothing(like: Samples) -> Samples:
    """Return no samples of the same shape."""
    return Samples(torch.empty(0, *like.x.shape[1:]), torch.empty(0, dtype=torch.int64))


def tensors_of(dataset: Any) -> tuple[Tensor, Any]:
    """Return inputs and labels of whatever holds the local data."""
    try:
        return stacked(dataset)
    except FedtailError as error:  # it says nothing about the data
        raise PublicError(str(error)) from None
