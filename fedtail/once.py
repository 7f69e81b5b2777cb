"""Features once: where the body of a network is frozen, every client computes its features once.

What clients train is then the head alone, a network on features whose tensors have the names that
they have in the whole network. No method can tell the difference: it sends, averages and keeps the
same tensors. The body is put back for what is shipped.

It is done where it changes nothing but the time: if only the classifier is trained, if nothing
random happens to inputs or in the body, and if the method makes of the head what it makes of the
whole network. That is tried on a few samples, in training and in evaluation mode.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from fedtail.data.augment import Augment
from fedtail.data.feature_store import FeatureStore
from fedtail.data.federation import Federation
from fedtail.data.memory import memory
from fedtail.errors import FedtailError
from fedtail.methods import Method
from fedtail.metrics.traffic import human_bytes
from fedtail.models.split_model import Output, SplitModel
from fedtail.rng import contained
from fedtail.state import digest

Where = Literal["memory", "disk", "anew"]
PROBED = 8
"""How many samples the head is tried on."""
DRAWS = 4
"""How often, with random numbers of its own each time: what is rarely dropped is seen once."""
SHARE = 0.5
"""The part of this machine's memory that features may take."""


class Unsuited(FedtailError):
    """Why features are computed every time, in a clause."""


@dataclass(frozen=True)
class Encoder:
    """From inputs to what the classifier is given, without gradients and in evaluation mode."""

    body: SplitModel

    def __call__(self, x: Tensor) -> Tensor:
        """Return features."""
        with torch.no_grad():
            return self.body.eval().features(x)


@dataclass(frozen=True)
class Heads:
    """What clients train in the place of the whole network.

    Attributes
    ----------
    base, model
        The user's classifier, and what the method makes of it.
    """

    base: SplitModel
    model: SplitModel


def heads_on_features(
    method: Method[Any], base: SplitModel, model: SplitModel, federation: Federation
) -> tuple[Heads, Tensor]:
    """Return what clients train instead, and features of a few samples, which tell networks apart.

    Parameters
    ----------
    method, base, model
        The method, the user's network and what the method makes of it.
    federation
        The samples as inputs.

    Raises
    ------
    Unsuited
        If it would not be the same.
    """
    if len(federation.dataset.input_shape) == 3 and federation.augment != Augment():
        raise Unsuited("images are changed at random (augment)")
    if method.changes_inputs():
        raise Unsuited(f"method '{method.name}' changes inputs itself")
    x = federation.example(PROBED)
    head = head_alone(base, x).to(federation.device)
    try:
        with contained(0):  # first weights are replaced by those of the whole network
            trained = method.build_model(head).to(federation.device)
        trained.load(model.tensors())
    except FedtailError as error:
        raise Unsuited(f"method '{method.name}' needs the whole network ({error})") from None
    features = Encoder(base)(x)
    if not _alike(base, head, x, features):
        raise Unsuited("the network's features are not the same in training")
    if (model is base) != (trained is head) or not _alike(model, trained, x, features):
        raise Unsuited(f"method '{method.name}' makes something else of a head alone")
    return Heads(head, trained), features


def frozen_body(base: SplitModel) -> bool:
    """Whether there are frozen weights before the classifier, and none that move."""
    if type(base) is not SplitModel or not base.classifier_name:
        return False
    start = f"{base.classifier_name}."
    frozen = any(not name.startswith(start) for name in base.whole({}))
    return frozen and all(name.startswith(start) for name in base.names())


def head_alone(base: SplitModel, x: Tensor) -> SplitModel:
    """Return a copy of the classifier as a network of its own, with the dropout right before it.

    Parameters
    ----------
    base
        The network.
    x
        A batch of its inputs.
    """
    *parents, leaf = base.classifier_name.split(".")
    dropouts = [(f"dropout{i}", copy.deepcopy(d)) for i, d in enumerate(_dropout_before(base, x))]
    layers: list[tuple[str, nn.Module]] = [*dropouts, (leaf, copy.deepcopy(base.classifier))]
    module = nn.Sequential(OrderedDict(layers))
    for parent in reversed(parents):
        module = nn.Sequential(OrderedDict([(parent, module)]))
    return SplitModel(module, base.classifier_name)


def _dropout_before(base: SplitModel, x: Tensor) -> list[nn.Module]:
    """Return the layers of dropout whose output, in training, is what the classifier is given."""
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []

    def see(layer: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        seen.append((layer, args[0], out))

    base.train()
    dropping = (m for m in base.module.modules() if isinstance(m, _DropoutNd) and m.training)
    hooks = [layer.register_forward_hook(see) for layer in dropping]
    try:
        with torch.no_grad(), contained(0, x.device):
            given = base.features(x)
    finally:
        for hook in hooks:
            hook.remove()
    found: list[nn.Module] = []
    for layer, taken, out in reversed(seen):
        if out is given:
            found.insert(0, layer)
            given = taken
    return found


def _alike(whole: SplitModel, alone: SplitModel, x: Tensor, features: Tensor) -> bool:
    """Whether a head gives on features what the network gives on inputs; weights stay as they are.

    In training both draw the same numbers.
    """
    before = whole.tensors()
    try:
        return all(
            _close(one, other)
            for training, seed in ((False, 0), *((True, seed) for seed in range(DRAWS)))
            for one, other in zip(
                _answers(whole.train(training), x, seed),
                _answers(alone.train(training), features, seed),
                strict=True,
            )
        )
    except (RuntimeError, ValueError):  # such as a BatchNorm that wants more than one sample
        return False
    finally:
        whole.load(before)
        alone.load(before)


def _answers(model: SplitModel, x: Tensor, seed: int) -> list[Tensor]:
    with torch.no_grad(), contained(seed, x.device):
        out: Output = model.output(x)
        more = [head(out.features) for head in model.extra_heads.values()]
    return [part for part in (*out, *more) if part is not None]


def _close(one: Tensor, other: Tensor) -> bool:
    scale = float(one.abs().max()) if one.numel() else 0.0
    return one.shape == other.shape and torch.allclose(one, other, 1e-4, 1e-5 * scale)


def feature_stores(
    base: SplitModel, federation: Federation, server: Tensor, key: str
) -> tuple[FeatureStore, FeatureStore]:
    """Return places for the features of training and of test samples.

    Parameters
    ----------
    base
        The network that computes them.
    federation
        The samples as inputs.
    server
        The positions of training samples that the server holds.
    key
        Names data and network, if features are kept on disk; see `features_key`.

    Raises
    ------
    Unsuited
        If there is not enough memory.
    """
    held, tested = torch.cat([federation.held(), server]), torch.arange(len(federation.test))
    width, room = base.feature_dim, memory()
    size = 4 * width * (len(held) + len(tested))
    if not key and size > SHARE * room:
        raise Unsuited(
            f"they would take {human_bytes(size)} of {human_bytes(room)}, and features=disk keeps "
            "them in files"
        )
    encode, device = Encoder(base), federation.device
    keys = [f"{part} {key}" if key else "" for part in ("train", "test")]
    return (
        FeatureStore(encode, width, held, len(federation.train), device, keys[0]),
        FeatureStore(encode, width, tested, len(federation.test), device, keys[1]),
    )


def features_key(base: SplitModel, seen: Tensor, data: str) -> str:
    """Return a word for all that decides the bits of features.

    Parameters
    ----------
    base
        The network.
    seen
        Features of a few samples: not all that a network does is in its layers and weights.
    data
        A digest of the data, and of how it is computed with.
    """
    start = f"{base.classifier_name}."
    body = {name: t for name, t in base.everything() if not name.startswith(start)}
    return f"{data} {digest({**body, repr(base.module): seen})}"
