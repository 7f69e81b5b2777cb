"""``model.json``: all that a model's tensors need to predict, beside them in the run folder.

It holds plain data only. A network of the user's own is named by module and class or function; it
is looked for where the caller has imported it, and imported only if the caller says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from fedtail.errors import FedtailError
from fedtail.version import __version__

if TYPE_CHECKING:
    from fedtail.config import Component
    from fedtail.models import ModelSpec
    from fedtail.models.split_model import SplitModel
    from fedtail.setting import Setting

FORMAT = 1
Kind = Literal["bytes", "numbers", "tokens"]


@dataclass(frozen=True)
class ModelFile:
    """What is known of a model beside its tensors.

    Attributes
    ----------
    model
        The description of a built-in network, or ``python``, the name of the user's own.
    structure
        A digest of the user's network as it prints itself; empty for a built-in one.
    classifier
        The name of the network's last layer.
    head
        Whether that layer was replaced, as in the experiment.
    method
        The method, if it trains another network than that: a second head, experts.
    shape
        Of one input as the network takes it.
    kind
        ``bytes`` count 0 to 1, ``numbers`` are taken as they are, ``tokens`` stay whole.
    given_shape, scale, transform, named, labels, columns
        How inputs and labels were given (`fedtail.data.dataset.Given`).
    mean, std
        What inputs are normalised with, channel by channel.
    classes, counts
        The names of the classes, and how many training samples all clients hold of each.
    plugins
        Files and modules that know the model or the method.
    train
        What was trained of the network, as in the experiment: a method may split it there.
    rate
        Of sound: how many samples a second raw waveforms have.
    """

    model: Mapping[str, Any]
    structure: str
    classifier: str
    head: str
    method: Mapping[str, Any] | None
    shape: tuple[int, ...]
    kind: Kind
    given_shape: tuple[int, ...]
    scale: tuple[float, ...]
    transform: str
    named: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    plugins: tuple[str, ...] = ()
    train: str = "all"
    rate: int | None = None
    labels: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, setting: Setting) -> ModelFile:
        """Return it for the model of a run."""
        from fedtail.models import ModelSpec
        from fedtail.models.lora import merged_model

        experiment, dataset = setting.experiment, setting.dataset
        given, model = dataset.given, setting.architecture
        mean, std = setting.federation.constants
        plain = merged_model(setting.base).module
        described, structure = {"python": place_of(model)}, structure_of(plain)
        if isinstance(model, ModelSpec):
            described, structure = model.but(weights=None).describe(), ""
        return cls(
            model=described,
            structure=structure,
            classifier=setting.base.classifier_name,
            head=experiment.head,
            method=None if setting.model is setting.base else _described(experiment.method),
            shape=dataset.input_shape,
            kind=_kind(setting),
            given_shape=given.shape or dataset.input_shape,
            scale=given.scale,
            transform="" if given.transform is None else place_of(given.transform),
            named=given.named,
            mean=tuple(mean),
            std=tuple(std),
            classes=dataset.classes,
            counts=setting.class_counts,
            plugins=tuple(experiment.plugins),
            train=experiment.train,
            rate=given.rate,
            labels=given.labels,
            columns=given.columns,
        )

    def to_json(self) -> str:
        """Return it as JSON text."""
        versions = {"format": FORMAT, "fedtail": __version__, "torch": torch.__version__}
        return json.dumps({**versions, **asdict(self)}, indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> ModelFile:
        """Return what `to_json` wrote, or say what is wrong with it."""
        try:
            plain = dict(json.loads(text))
            version = plain.pop("format")
            if version != FORMAT:
                raise FedtailError(f"'{where}' has format {version!r}; this version reads {FORMAT}")
            fields: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value
                for key, value in plain.items()
                if key in cls.__dataclass_fields__
            }
            return cls(**fields)
        except (ValueError, KeyError, TypeError) as error:
            raise FedtailError(f"'{where}' is damaged: {error}") from None


def network_of(
    file: ModelFile, tensors: Mapping[str, Tensor], network: Any, trust: bool, where: str
) -> SplitModel:
    """Return the network with these tensors, ready to predict.

    Parameters
    ----------
    file, tensors
        What the run folder holds.
    network
        The user's own network, or what makes it, where it cannot be found by its name.
    trust
        Whether a module that the file names may be imported.
    where
        The folder, for messages.
    """
    from fedtail.methods import Method
    from fedtail.models import SplitModel, made, with_cosine_heads
    from fedtail.models.lora import merged_model
    from fedtail.models.split_model import load_tested
    from fedtail.models.trained import with_trained
    from fedtail.rng import contained

    model: Any = network
    python = file.model.get("python")
    if model is None:
        model = spec_of(file, where) or found(str(python), where, "network", trust)
    with contained(0):  # first weights are drawn, and then replaced
        try:
            module = made(model, file.shape, len(file.classes))
            base = module if isinstance(module, SplitModel) else SplitModel(module, file.classifier)
            base = with_cosine_heads(base) if file.head == "cosine" else base
            changed = python is not None and structure_of(base.module) != file.structure
        except Exception:  # what a name stands for now may be anything
            if python is None or network is not None:
                raise
            changed = True
        if changed and network is None:
            raise FedtailError(
                f"the network that '{python}' makes now is not the one that was trained: "
                f"give the network itself, fedtail.load('{where}', network=...)"
            )
        built = base
        if file.method is not None:
            method: Method[Any] = Method.model_validate(file.method)
            built = merged_model(method.build_model(with_trained(base, file.train)))
    try:
        return load_tested(tensors, built, base)
    except FedtailError as error:
        raise FedtailError(f"the network does not fit what '{where}' holds: {error}") from None


def spec_of(file: ModelFile, where: str) -> ModelSpec | None:
    """Return the description of a named network, from its run folder; nothing for other ones."""
    from fedtail.models import ModelSpec

    return (
        None if "python" in file.model else ModelSpec.model_validate(file.model).kept(Path(where))
    )


def place_of(thing: Any) -> str:
    """Return module and name of a function, or of the class of an object."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"


def found(place: str, where: str, argument: str, trust: bool) -> Callable[..., Any]:
    """Return the class or function of that name; its module is imported only if it may be."""
    name, _, path = place.partition(":")
    if trust and name not in sys.modules:
        with contextlib.suppress(ImportError):  # said below
            importlib.import_module(name)
    thing: Any = sys.modules.get(name)
    for part in path.split("."):
        thing = getattr(thing, part, None)
    if not callable(thing):
        raise FedtailError(
            f"'{where}' was trained with '{place}', which is not here: import '{name}' first, or "
            f"give it: fedtail.load('{where}', {argument}=...)"
        )
    factory: Callable[..., Any] = thing
    return factory


def structure_of(module: nn.Module) -> str:
    """Return a digest of a network as it prints itself: layers and their settings."""
    return hashlib.sha256(repr(module).encode()).hexdigest()[:16]


def _described(method: Component) -> dict[str, Any]:
    """Return a method as plain data, without a loss of the user's own: it makes no network."""
    plain = method.describe()
    if "function" in plain.get("loss", {}):
        del plain["loss"]
    return plain


def _kind(setting: Setting) -> Kind:
    if setting.federation.tokens:
        return "tokens"
    return "bytes" if setting.dataset.test.x.dtype == torch.uint8 else "numbers"
