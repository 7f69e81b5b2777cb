"""What a method needs, beyond nothing, to take part in the conformance suite.

Most methods need no entry. One that needs server data, experts or shorter inner loops adds a line
to `NEEDS` under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tiny
from torch import nn

from fedtail import Experiment, Method

Models = Mapping[str, Callable[[], nn.Module]]

VECTOR = (6,)


def bare_model() -> nn.Module:
    """A classifier and nothing before it."""
    return nn.Linear(*VECTOR, tiny.CLASSES)


BARE = "bare linear"
MODELS: Models = {
    "plain": tiny.plain_model,
    "without bias": tiny.unbiased_model,
    "with BatchNorm": tiny.norm_model,
    "with BatchNorm and dropout": tiny.dropout_model,
    BARE: bare_model,
}
NO_TRUNK = "a Linear cannot be split into trunk and experts: give an nn.Sequential"


@dataclass(frozen=True)
class Needs:
    """One method's entry.

    Attributes
    ----------
    method
        Fields of the method; small numbers keep the suite fast.
    experiment
        Fields of the experiment, such as ``server_per_class``.
    models
        Models by the names of `MODELS`, for methods that cannot train those.
    refuses
        Models that the method cannot train, and the sentence that it says so with.
    personal
        Whether its clients have models of their own to be tested.
    ships_own_model
        Whether what is shipped has the names of the user's own module.
    file
        The name of its file, where two methods share one.
    """

    method: Mapping[str, Any] = field(default_factory=dict)
    experiment: Mapping[str, Any] = field(default_factory=dict)
    models: Models = field(default_factory=dict)
    refuses: Mapping[str, str] = field(default_factory=dict)
    personal: bool = False
    ships_own_model: bool = True
    file: str = ""


NEEDS: dict[str, Needs] = {
    "centralised-bsm": Needs(file="centralised"),
    "creff": Needs(method={"features": 5, "match_steps": 5, "head_epochs": 5}),
    "fedalign": Needs(
        refuses={BARE: "no block with weights before its classifier '' that could be slimmed"}
    ),
    "gbme": Needs(ships_own_model=False, refuses={BARE: NO_TRUNK}),
    "gbme-p": Needs(ships_own_model=False, refuses={BARE: NO_TRUNK}),
    "ride": Needs(ships_own_model=False, refuses={BARE: NO_TRUNK}),
    "local-only": Needs(personal=True),
    "per-fedavg": Needs(personal=True),
    "ldam": Needs(ships_own_model=False),
    # Eight samples of a class are more than any tiny client has.
    "redgrape": Needs(method={"per_class": 2}),
    "ccvr": Needs(method={"samples": 5, "head_epochs": 2}),
    # Three rounds: two of the first stage, one of the second.
    "crt-cb": Needs(method={"first_stage": 0.6}),
    "crt-ib": Needs(method={"first_stage": 0.6}),
    "fedbe": Needs(
        method={"models": 2, "distil_epochs": 3, "distil_batch": 2, "swa_every": 2},
        experiment={"server_per_class": 2},
    ),
    "feddf": Needs(
        method={"distil_steps": 4, "distil_batch": 4}, experiment={"server_per_class": 2}
    ),
    "ratio-loss": Needs(experiment={"server_per_class": 2}),
}


def needs(name: str) -> Needs:
    """Return a method's entry; most have none."""
    return NEEDS.get(name, Needs())


def make_method(name: str) -> Method[Any]:
    """Return a method with a short local training."""
    local = {"local": {"batch_size": 4, "lr": 0.05, "momentum": 0.9}}
    known = local if "local" in Method.registry[name].model_fields else {}
    return Method.model_validate({"name": name, **known, **needs(name).method})


def make_model(name: str, model: str) -> Callable[[], nn.Module]:
    """Return the function that makes a model of that kind for a method."""
    return {**MODELS, **needs(name).models}[model]


def input_shape(model: str) -> tuple[int, ...]:
    """Return the shape of one input of a model of that kind."""
    return VECTOR if model == BARE else tiny.IMAGE


def make_experiment(name: str, model: str = "plain", **fields: Any) -> Experiment:
    """Return three rounds of a method on the tiny federation."""
    chosen = {"data": tiny.source(input_shape(model)), **needs(name).experiment, **fields}
    return tiny.experiment(make_method(name), make_model(name, model), **chosen)
