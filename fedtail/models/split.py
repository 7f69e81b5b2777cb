"""A model seen as features and classifier, for any `nn.Module` that ends in a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedtail.errors import FedtailError
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


class SplitModel(nn.Module):
    """Any module whose last layer is a classifier, with that layer named.

    The names of the module's tensors stay as they are, so what is trained here loads into the
    user's own model. `classifier` is the dotted name of the last layer; it is found by itself where
    the module has exactly one last `nn.Linear` child.
    """

    def __init__(self, module: nn.Module, classifier: str | None = None) -> None:
        super().__init__()
        self.module = module
        self.classifier_name = classifier or _last_linear(module)
        try:
            layer = module.get_submodule(self.classifier_name)
        except AttributeError:
            names = ", ".join(name for name, _ in module.named_modules() if name)
            raise FedtailError(
                f"the model has no layer '{self.classifier_name}' to be its classifier (it has: {names})"
            ) from None
        self._features: list[Tensor] = []
        layer.register_forward_pre_hook(self._capture)

    @property
    def classifier(self) -> nn.Module:
        """The last layer."""
        return self.module.get_submodule(self.classifier_name)

    @property
    def heads(self) -> Sequence[nn.Module]:
        """All classifiers: one, or one an expert."""
        return [self.classifier]

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.output(x).logits

    def output(self, x: Tensor) -> Output:
        """Return logits and the features they were made from."""
        logits = self.module(x)
        return Output(logits, self._features.pop())

    def features(self, x: Tensor) -> Tensor:
        """Return what the classifier would be given."""
        return self.output(x).features

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of all parameters and buffers, under the module's own names."""
        return {name: t.detach().clone() for name, t in self._live().items()}

    def load(self, tensors: Tensors) -> None:
        """Copy tensors into the resident model, which must have exactly these names."""
        live = self._live()
        if live.keys() != tensors.keys():
            odd = sorted(live.keys() ^ tensors.keys())
            raise FedtailError(f"these tensors and this model do not match in {', '.join(odd[:3])}")
        with torch.no_grad():
            for name, tensor in live.items():
                tensor.copy_(tensors[name])

    def parameter_names(self) -> frozenset[str]:
        """Names of what is trained; every other tensor is a buffer or frozen."""
        return frozenset(name for name, p in self.module.named_parameters() if p.requires_grad)

    def _live(self) -> dict[str, Tensor]:
        return dict(self.module.state_dict())

    def _capture(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features[:] = [inputs[0]]


def _last_linear(module: nn.Module) -> str:
    names = [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]
    if not names:
        raise FedtailError(
            "the model has no nn.Linear; name its classifier: SplitModel(model, classifier=...)"
        )
    return names[-1]
