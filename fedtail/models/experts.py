"""One trunk, several experts: the multi-expert models of GBME, from any model that is a chain."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Self, cast

import torch
from torch import Tensor, nn

from fedtail.errors import FedtailError
from fedtail.models.heads import CosineHead, refuse_frozen
from fedtail.models.probe import last_registered, reset
from fedtail.models.split_model import Output, SplitModel, logits_of


class MeanHeads(nn.ModuleList):
    """One head an expert; the classifier of an `ExpertModel`.

    It takes the experts' features side by side, (batch, M·width), and gives the mean logits.
    """

    @property
    def in_features(self) -> int:
        """Width of all experts' features together."""
        return sum(self.widths())

    @property
    def out_features(self) -> int:
        """Number of classes."""
        return int(cast(nn.Linear, self[0]).out_features)

    def each(self, features: Tensor) -> Tensor:
        """Return every expert's logits, (experts, batch, classes)."""
        parts = features.split_with_sizes(self.widths(), dim=1)
        return torch.stack([head(part) for head, part in zip(self, parts, strict=True)])

    def forward(self, features: Tensor) -> Tensor:
        """Return the mean logits."""
        return self.each(features).mean(0)

    def widths(self) -> list[int]:
        """Return the width of each expert's features."""
        return [int(cast(nn.Linear, head).in_features) for head in self]


class ExpertNet(nn.Module):
    """The plain module inside an `ExpertModel`: ``trunk``, ``experts.0…``, ``heads.0…``."""

    def __init__(
        self, trunk: nn.Module, experts: Iterable[nn.Module], heads: Iterable[nn.Module]
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.experts = nn.ModuleList(experts)
        self.heads = MeanHeads(heads)

    def features(self, x: Tensor) -> Tensor:
        """Return the experts' features side by side."""
        shared = self.trunk(x)
        return torch.cat([expert(shared) for expert in self.experts], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean logits."""
        mean: Tensor = self.heads(self.features(x))
        return mean


class Body(nn.Module):
    """A network up to its classifier: the trunk of experts that are nothing but heads."""

    def __init__(self, model: SplitModel) -> None:
        super().__init__()
        body = copy.deepcopy(model.module)
        bare = not model.classifier_name  # a classifier and nothing else
        self.body = nn.Identity() if bare else _cut_off(body, model.classifier_name)[0]

    def forward(self, x: Tensor) -> Tensor:
        """Return features."""
        return logits_of(self.body(x))


class ExpertModel(SplitModel):
    """A shared trunk and M experts, each with its own later layers and head.

    The logits are the mean of the experts'. The features are the experts' features side by side,
    (batch, M·width): nothing is lost, and ``classifier(features)`` is the logits as for any model.

    Parameters
    ----------
    trunk
        What the experts share.
    experts
        For each expert, its part between trunk and head.
    heads
        For each expert, its classifier.
    """

    def __init__(
        self, trunk: nn.Module, experts: Sequence[nn.Module], heads: Sequence[nn.Module]
    ) -> None:
        super().__init__(ExpertNet(trunk, experts, heads), "heads")
        self._only: int | None = None

    def note_frozen(self) -> None:
        """Remember, once, what does not move, and what `train_only` may free again."""
        super().note_frozen()
        self._trained = self.parameter_names()

    @property
    def count(self) -> int:
        """The number of experts, M."""
        return len(self._net.experts)

    @property
    def heads(self) -> Sequence[nn.Module]:
        """The experts' classifiers."""
        return list(self._net.heads)

    @property
    def head_names(self) -> Sequence[str]:
        """The dotted names of the experts' classifiers."""
        return [f"heads.{i}" for i in range(self.count)]

    def output(self, x: Tensor, features: bool = True) -> Output:
        """Return mean logits, features side by side, and each expert's logits."""
        with self.body():
            found = self._net.features(x)
        found = found.float() if self.halved else found
        each = self._net.heads.each(found)
        return Output(each.mean(0), found, each)

    def output_of(self, index: int, x: Tensor) -> Output:
        """Return one expert's logits and features; the others are not computed."""
        with self.body():
            features: Tensor = self._net.experts[index](self._net.trunk(x))
        features = features.float() if self.halved else features
        return Output(self._net.heads[index](features), features)

    def buffer_names(self) -> list[str]:
        """Names of what moves but not by gradients; what `train_only` freezes is none of it."""
        return [name for name, _ in self.live() if name not in self._trained]

    def expert_names(self, index: int) -> frozenset[str]:
        """Names of all tensors (parameters and buffers) that belong to one expert alone."""
        self._check_index(index)
        own = (f"experts.{index}.", f"heads.{index}.")
        return frozenset(name for name, _ in self.live() if name.startswith(own))

    def train_only(self, index: int | None) -> Self:
        """Freeze every expert but one; the trunk stays trained. `None` frees them all.

        A frozen expert takes part in the forward pass, but neither its parameters nor its buffers
        move: it stays in evaluation mode even after ``model.train()``.
        """
        if index is not None:
            self._check_index(index)
        self._only = index
        frozen = {name for i in self._frozen() for name in self.expert_names(i)}
        for name, parameter in self.module.named_parameters():
            parameter.requires_grad_(name in self._trained and name not in frozen)
            if name in frozen:
                parameter.grad = None  # an optimiser would step along what an earlier task left
        return self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Set the training mode of all but the frozen experts."""
        super().train(mode)
        for index in self._frozen():
            self._net.experts[index].eval()
            self._net.heads[index].eval()
        return self

    @property
    def _net(self) -> ExpertNet:
        return cast(ExpertNet, self.module)

    def _frozen(self) -> list[int]:
        return [i for i in range(self.count) if self._only is not None and i != self._only]

    def _check_index(self, index: int) -> None:
        if not 0 <= index < self.count:
            raise FedtailError(f"there is no expert {index}: the model has {self.count}, from 0")


def experts(
    model: nn.Module,
    split_at: str,
    count: int,
    *,
    cosine: bool = False,
    scale: float = 30.0,
    fresh: bool = True,
) -> ExpertModel:
    """Make a multi-expert model of one that runs its children in order.

    Parameters
    ----------
    model
        An `nn.Sequential`, as all ResNets and CNNs of this package are, or a `SplitModel` of one.
    split_at
        The child the experts begin with. What comes before it is the shared trunk; it and the rest,
        with the classifier, is copied for each expert.
    count
        How many experts.
    cosine, scale
        Give each expert a `CosineHead` of this scale instead of a copy of the model's classifier.
    fresh
        Initialise the copies again, each by itself; otherwise all begin as the model is.
    """
    chain = model.module if isinstance(model, SplitModel) else model
    if not isinstance(chain, nn.Sequential):
        raise FedtailError(
            f"experts are made from an nn.Sequential, which runs its children in order;"
            f" {type(chain).__name__} is none"
        )
    name = model.classifier_name if isinstance(model, SplitModel) else last_registered(chain)
    children = list(chain.named_children())
    names = [child for child, _ in children]
    if split_at not in names or names.index(split_at) > names.index(name.partition(".")[0]):
        raise FedtailError(f"'{split_at}' is no place to split: the model runs {', '.join(names)}")
    if count < 1:
        raise FedtailError(f"the number of experts is at least 1, not {count}")
    cut = names.index(split_at)
    trunk = nn.Sequential(OrderedDict(copy.deepcopy(children[:cut])))
    rest = nn.Sequential(OrderedDict(children[cut:]))
    pairs = [_cut_off(copy.deepcopy(rest), name) for _ in range(count)]
    if cosine:
        pairs = [(body, _cosine(head, name, scale)) for body, head in pairs]
    if fresh:
        pairs = [(reset(body), reset(head)) for body, head in pairs]
    return ExpertModel(trunk, [body for body, _ in pairs], [head for _, head in pairs])


def with_experts(
    model: SplitModel, count: int, split_at: str = "", *, cosine: bool = False
) -> SplitModel:
    """Return a model of so many experts: the model itself if it has them, or if they are one.

    Parameters
    ----------
    model
        A model that runs its children in order, an `ExpertModel`, or any model of which only the
        classifier is trained: then the experts are heads on the same features.
    count
        How many experts.
    split_at
        The child that they begin with (default: the middle one of those with trained weights).
    cosine
        Give experts that are made here cosine heads.
    """
    if isinstance(model, ExpertModel) and model.count != count:
        raise FedtailError(f"the model has {model.count} experts, the method {count}")
    if isinstance(model, ExpertModel) or count == 1:
        return model
    if split_at or not only_head(model):
        return experts(model, split_at or middle(model), count, cosine=cosine)
    heads = [copy.deepcopy(model.classifier) for _ in range(count)]
    if cosine:
        heads = [_cosine(head, model.classifier_name, 30.0) for head in heads]
    return ExpertModel(Body(model), [nn.Identity() for _ in heads], [reset(h) for h in heads])


def only_head(model: SplitModel) -> bool:
    """Whether nothing but the classifier is trained."""
    trained = {p for p in model.module.parameters() if p.requires_grad}
    return trained <= set(model.classifier.parameters())


def with_cosine_heads(model: SplitModel, scale: float = 30.0) -> SplitModel:
    """Return a copy whose heads are cosine heads of this scale; those that are stay as they are."""
    return with_new_heads(model, lambda head, name: _cosine(head, name, scale))


def with_new_heads(model: SplitModel, make: Callable[[nn.Module, str], nn.Module]) -> SplitModel:
    """Return a copy with other heads in the places of its own, made of each and its name."""
    made = copy.deepcopy(model)
    for name, head in zip(made.head_names, made.heads, strict=True):
        new = make(head, name)
        parent, _, leaf = name.rpartition(".")
        if leaf:
            setattr(made.module.get_submodule(parent), leaf, new)
        else:
            made.module = new
    made.note_frozen()
    return made


def middle(model: SplitModel) -> str:
    """Return the child that experts begin with if nobody says: ``layer2`` of a small ResNet.

    It is the middle one of the children with weights that are trained, normalisation not counted.
    """
    if not isinstance(model.module, nn.Sequential):
        raise FedtailError(
            f"a {type(model.module).__name__} cannot be split into trunk and experts: give an"
            " nn.Sequential, where split_at names the child that the experts begin with"
        )
    names = [
        name
        for name, child in model.module.named_children()
        if any(p.ndim > 1 and p.requires_grad for p in child.parameters())
    ]
    return names[len(names) // 2]


def _cut_off(module: nn.Module, classifier: str) -> tuple[nn.Module, nn.Module]:
    head = module.get_submodule(classifier)
    parent, _, leaf = classifier.rpartition(".")
    setattr(module.get_submodule(parent), leaf, nn.Identity())
    return module, head


def _cosine(head: nn.Module, name: str, scale: float) -> nn.Module:
    if isinstance(head, CosineHead):
        return head
    if not isinstance(head, nn.Linear):
        raise FedtailError(
            f"a cosine head can take the place of an nn.Linear; the classifier '{name}' is"
            f" {type(head).__name__}"
        )
    refuse_frozen(head)
    return CosineHead(head.in_features, head.out_features, scale)
