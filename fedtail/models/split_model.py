"""A model seen as features and classifier, for any `nn.Module` that ends in a classifier."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedtail.errors import FedtailError
from fedtail.models.inventory import Inventory
from fedtail.models.probe import (
    frozen_layers,
    frozen_names,
    last_registered,
    passing_buffers,
    put_back,
    reset,
    trial,
)
from fedtail.protocol import Tensors


class Output(NamedTuple):
    """What one forward pass gives.

    Attributes
    ----------
    logits
        (batch, classes); for a model of several experts the mean of theirs.
    features
        (batch, width): what went into the classifier.
    experts
        (experts, batch, classes), or nothing for an ordinary model.
    """

    logits: Tensor
    features: Tensor
    experts: Tensor | None = None


NO_FEATURES = torch.empty(0)
"""What stands in the place of features that nobody reads."""


class SplitModel(nn.Module):
    """Any module whose last operation is a classifier, with that layer named.

    The names of the module's tensors stay as they are, so what is trained here loads into the
    user's own model. Parameters that need no gradient when the model is seen first, and the buffers
    of layers that hold no others, are a part of the architecture: they are neither sent nor
    averaged, and such layers stay in evaluation mode. The module itself is not changed: features
    are read by a function that stands before the classifier's for one forward pass, so a copy or a
    pickle of the model carries nothing of the original.

    Parameters
    ----------
    module
        Any module from a batch to logits.
    classifier
        The dotted name of the last layer (default: the `nn.Linear` that was registered last).

    Attributes
    ----------
    extra_heads
        Further heads by name (see `with_head`); `forward` does not use them.
    precision
        What the body computes in while it trains. Weights, classifier and losses are always in
        float32, and so is all of a model in evaluation mode: what is tested is what is shipped.
    """

    precision: torch.dtype = torch.float32

    def __init__(self, module: nn.Module, classifier: str | None = None) -> None:
        super().__init__()
        self.module = module
        self.extra_heads = nn.ModuleDict()
        self.classifier_name = last_registered(module) if classifier is None else classifier
        try:
            module.get_submodule(self.classifier_name)
        except AttributeError:
            names = ", ".join(name for name, _ in module.named_modules() if name)
            raise FedtailError(
                f"the model has no layer '{self.classifier_name}' to be its classifier"
                f" (it has: {names})"
            ) from None
        self.note_frozen()

    def note_frozen(self) -> None:
        """Remember, once, what does not move; a method may freeze more for a while."""
        self._passing = passing_buffers(self.module)
        self._still = frozen_layers(self.module)
        self._fixed = frozen_names(self.module, self._still)
        self._known: Inventory | None = None

    @property
    def _found(self) -> Inventory:
        """What the model is made of."""
        if self._known is None or not self._known.stands:
            still = map(self.module.get_submodule, self._still)
            self._known = Inventory(self, (self.module, self.extra_heads), self._fixed, still)
        return self._known

    def __getstate__(self) -> dict[str, Any]:
        """Forget what it is made of: a copy finds out for itself."""
        return {**self.__dict__, "_known": None}

    @property
    def classifier(self) -> nn.Module:
        """The last layer."""
        return self.module.get_submodule(self.classifier_name)

    @property
    def heads(self) -> Sequence[nn.Module]:
        """All classifiers: one, or one an expert."""
        return [self.classifier]

    @property
    def head_names(self) -> Sequence[str]:
        """The dotted names of `heads`, in the same order."""
        return [self.classifier_name]

    @property
    def num_classes(self) -> int:
        """How many logits the classifier gives."""
        return self._classifier_size("out_features")

    @property
    def feature_dim(self) -> int:
        """How wide the features are."""
        return self._classifier_size("in_features")

    def compute_in(self, precision: torch.dtype) -> None:
        """Set what the body computes in while it trains."""
        self.precision = precision

    @property
    def halved(self) -> bool:
        """Whether the body computes in less than float32 now."""
        return self.module.training and self.precision != torch.float32

    def body(self) -> AbstractContextManager[Any]:
        """Return what the body is run in."""
        if not self.halved:
            return nullcontext()
        device = next(self.module.parameters()).device.type
        return torch.autocast(device, self.precision)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.output(x, features=False).logits if self.halved else logits_of(self.module(x))

    def train(self, mode: bool = True) -> Self:
        """Set the mode; frozen layers stay in evaluation mode."""
        found = self._found
        if found.own_modes:
            super().train(mode)
            for layer in found.still:
                layer.eval()
            return self
        for layers, wanted in ((found.layers, mode), (found.still, False)):
            for layer in layers:
                if layer.training is not wanted:
                    layer.training = wanted
        return self

    def output(self, x: Tensor, features: bool = True) -> Output:
        """Return logits and the features they were made from, or none if they are not read."""
        if not features and not self.halved:
            return Output(logits_of(self.module(x)), NO_FEATURES)
        seen: list[Tensor] = []
        classifier = self.classifier
        own = vars(classifier)
        before, forward = own.get("forward"), classifier.forward

        def see(*args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else next(iter(kwargs.values()))
            if not self.halved:
                seen.append(given)
                return forward(*args, **kwargs)
            seen.append(given.float())
            with torch.autocast(given.device.type, enabled=False):
                return forward(seen[-1])

        # A hook would do, but to enter and remove one takes longer than a small layer computes.
        own["forward"] = see
        try:
            with self.body():
                logits = logits_of(self.module(x))
        finally:
            own.pop("forward")
            if before is not None:
                own["forward"] = before
        if not seen:
            raise FedtailError(f"the model ran without calling its '{self.classifier_name}'")
        return Output(logits, seen[-1])

    def features(self, x: Tensor) -> Tensor:
        """Return what the classifier would be given."""
        return self.output(x).features

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of what moves in training, on the CPU, under the module's own names."""
        return _copies(self.live())

    def whole(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return these tensors with those of the frozen layers: all that the module has."""
        return {**_copies((n, t) for n, t in self.everything() if n in self._fixed), **tensors}

    def names(self) -> frozenset[str]:
        """Return the names of what moves in training."""
        return frozenset(self._found.live)

    def fits(self, tensors: Tensors) -> bool:
        """Whether these are the names of what moves in training, or of everything."""
        found = self._found
        return tensors.keys() in (found.live.keys(), found.everything.keys())

    def load(self, tensors: Tensors) -> None:
        """Copy tensors into the resident model: what moves in training, or everything."""
        live = self._found.live
        if self._fixed and self._fixed <= tensors.keys():
            live = self._found.everything
        if live.keys() != tensors.keys():
            odd = sorted(live.keys() ^ tensors.keys())
            raise FedtailError(f"these tensors and this model do not match in {', '.join(odd[:3])}")
        given = [tensors[name] for name in live]
        for (name, tensor), new in zip(live.items(), given, strict=True):
            if tensor.shape != new.shape:
                raise FedtailError(
                    f"'{name}' has the shape {tuple(tensor.shape)} in this model,"
                    f" not {tuple(new.shape)}"
                )
        with torch.no_grad():
            torch._foreach_copy_(list(live.values()), given)
        put_back(self.module, self._passing)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the live parameters that are trained; a tied one stands under its first name."""
        return {n: p for n, p in self._found.parameters.items() if p.requires_grad}

    def parameter_names(self) -> frozenset[str]:
        """Names of what is trained; every other tensor is a buffer or frozen.

        A tied parameter is in `tensors` under each of its names, and so it is here.
        """
        every = self._found.everything
        return frozenset(n for n, t in every.items() if t.requires_grad)

    def buffer_names(self) -> list[str]:
        """Names of what moves in training, but not by gradients."""
        trained = self.parameter_names()
        return [name for name in self._found.live if name not in trained]

    def batch_norms(self) -> list[_BatchNorm]:
        """Return the BatchNorm layers: those whose running statistics move in training."""
        return self._found.norms

    def with_head(self, name: str, head: nn.Module | None = None) -> Self:
        """Return a copy with a second head: a freshly initialised classifier of the same shape.

        Its tensors stand beside the module's as ``<name>.weight`` and ``<name>.bias``; it is called
        as ``model.extra_heads[name](features)``. A head of another kind can be given.
        """
        taken = {*self.extra_heads, *(child for child, _ in self.module.named_children())}
        if name in taken or not name.isidentifier() or hasattr(self.extra_heads, name):
            raise FedtailError(f"a second head cannot be called '{name}': take a new, plain name")
        model = copy.deepcopy(self)
        model.extra_heads[name] = reset(copy.deepcopy(model.classifier)) if head is None else head
        return model

    def check(self, x: Tensor, num_classes: int) -> None:
        """Run one batch in evaluation mode and refuse a model that cannot be used.

        Raises
        ------
        FedtailError
            If the output is not (batch, num_classes), the features are not (batch, width), or
            something still happens to the output of the classifier.
        """
        if not self.trainable():
            raise FedtailError(
                "no parameter of the model requires gradients: nothing can be trained"
            )
        logits, features, again = trial(self, x, self._twice)
        name = self.classifier_name
        wanted = (len(x), num_classes)
        if logits.shape != wanted:
            raise FedtailError(
                f"the model gives an output of shape {tuple(logits.shape)} where {wanted} is needed"
            )
        if features.ndim != 2:
            raise FedtailError(
                f"the classifier '{name}' is given features of shape {tuple(features.shape)},"
                " not (batch, width); flatten them first"
            )
        if again.shape != logits.shape or not torch.allclose(
            again, logits, 1e-3, 1e-5, equal_nan=True
        ):
            raise FedtailError(
                f"the classifier '{name}' is not the last operation of the model: its output is not"
                " what the model returns (return plain logits, or name another layer as classifier)"
            )

    def _twice(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out = self.output(x)
        if not isinstance(out.logits, Tensor):
            raise FedtailError(
                f"the model returns a {type(out.logits).__name__}, not a tensor of logits"
            )
        return out.logits, out.features, self.classifier(out.features)

    def _classifier_size(self, attribute: str) -> int:
        size = getattr(self.classifier, attribute, None)
        if not isinstance(size, int):
            raise FedtailError(f"the classifier '{self.classifier_name}' has no '{attribute}'")
        return size

    def live(self) -> Iterator[tuple[str, Tensor]]:
        """Give what moves in training, as it is, under the module's own names."""
        return iter(self._found.live.items())

    def everything(self) -> Iterator[tuple[str, Tensor]]:
        """Give all parameters and buffers, frozen or not."""
        return iter(self._found.everything.items())


def load_tested(tensors: Tensors, model: SplitModel, base: SplitModel) -> SplitModel:
    """Put a tested model into the one that has its names, and return that, ready for a test.

    Parameters
    ----------
    tensors
        The tested model.
    model, base
        The model that a method trains, and the user's own.
    """
    from fedtail.models.lora import merged_model  # it knows models

    # A method's own head may have the names of the user's, and another meaning.
    tested = model if model.fits(tensors) else base
    if not tested.fits(tensors):  # as they are shipped: updates of low rank are merged
        tested = next((m for m in map(merged_model, (model, base)) if m.fits(tensors)), base)
    tested.load(tensors)
    tested.eval()
    return tested


def as_shipped(tested: SplitModel, tensors: Tensors) -> tuple[SplitModel, dict[str, Tensor]]:
    """Return the plain network of a tested model, and all of its tensors."""
    from fedtail.models.lora import merged_model

    plain = merged_model(tested)
    return plain, plain.whole(tensors if plain is tested else plain.tensors())


def logits_of(answer: Any) -> Tensor:
    """Return what a network answers, or the ``logits`` inside it."""
    logits: Tensor = answer if isinstance(answer, Tensor) else getattr(answer, "logits", answer)
    return logits


def _copies(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    plain = torch.contiguous_format
    with torch.no_grad():
        return {
            name: (t if t.is_cpu else t.to("cpu")).clone(memory_format=plain) for name, t in named
        }
