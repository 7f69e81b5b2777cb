"""Descriptions: refused by name, frozen, and rebuilt from what they write."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
import tomli_w
from pydantic import Field

from fedtail import SLAC, Experiment, FedAvg, FedAvgM, LocalTraining, Source
from fedtail.config import Component, Config, Registry
from fedtail.data.longtail import Exponential, NoTail, Tail
from fedtail.data.partitions import Dirichlet, Partition
from fedtail.errors import FedtailError
from fedtail.losses import BalancedSoftmax, LocalLoss
from fedtail.methods import Method
from fedtail.metrics import ShotGroups
from fedtail.models import ModelSpec
from fedtail.training import BatchSampler, ClassPrior, Cosine, Schedule, ServerSGD

ROOTS: tuple[type[Component], ...] = (
    Method,
    LocalLoss,
    BatchSampler,
    ClassPrior,
    Schedule,
    Source,
    Tail,
    Partition,
    ModelSpec,
    ShotGroups,
)

# What a component cannot do without.
REQUIRED: dict[tuple[str, str], dict[str, Any]] = {
    ("groups", "index"): {"many_until": 2, "medium_until": 5},
    ("data source", "npz"): {"path": "mine.npz"},
    ("data source", "folder"): {"path": "images"},
    ("data source", "table"): {"path": "mine.csv"},
    ("data source", "hf"): {"path": "someone/something"},
    ("model", "hf"): {"path": "someone/something"},
}

# Made in Python only: a description holds shapes, and says so.
PYTHON_ONLY = {("data source", "arrays"), ("data source", "torch")}

EVERY = [
    pytest.param(root, name, id=f"{root.registry.kind}-{name}")
    for root in ROOTS
    for name in root.registry
    if (root.registry.kind, name) not in PYTHON_ONLY
]


class Inner(Config):
    depth: int = Field(1, ge=1, description="how deep")


class Outer(Config):
    inner: Inner = Field(Inner(), description="what is inside")
    loss: LocalLoss = Field(BalancedSoftmax(), description="a component")
    rate: float = Field(0.1, gt=0, description="a number")


@pytest.mark.parametrize(("root", "name"), EVERY)
def test_every_component_is_rebuilt_from_its_description(root: type[Component], name: str) -> None:
    # Prepare
    made = root.model_validate({"name": name, **REQUIRED.get((root.registry.kind, name), {})})

    # Execute: through the two files that descriptions are written to.
    through_json = root.model_validate(json.loads(json.dumps(made.describe())))
    through_toml = root.model_validate(tomllib.loads(tomli_w.dumps(made.describe())))

    # Assert
    assert type(made) is root.registry[name]
    assert made.describe()["name"] == name
    assert through_json == made == through_toml
    assert through_json.describe() == made.describe()


@pytest.mark.parametrize(("root", "name"), EVERY)
def test_every_component_refuses_an_unknown_key(root: type[Component], name: str) -> None:
    fields = {"name": name, **REQUIRED.get((root.registry.kind, name), {}), "no_such_field": 1}
    with pytest.raises(FedtailError, match="no_such_field"):
        root.model_validate(fields)


@pytest.mark.parametrize(("root", "name"), EVERY)
def test_every_component_is_frozen(root: type[Component], name: str) -> None:
    made = root.model_validate({"name": name, **REQUIRED.get((root.registry.kind, name), {})})
    for field in type(made).model_fields:
        with pytest.raises(FedtailError, match="frozen"):
            setattr(made, field, getattr(made, field))
        with pytest.raises(FedtailError, match="frozen"):
            delattr(made, field)


@pytest.mark.parametrize(("root", "name"), EVERY)
def test_every_field_says_what_it_is(root: type[Component], name: str) -> None:
    cls = root.registry[name]
    assert (cls.__doc__ or "").strip()
    undescribed = [n for n, field in cls.model_fields.items() if not field.description]
    assert undescribed == []


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(FedtailError) as refused:
        Method.registry["fedavgg"]
    assert str(refused.value).startswith("unknown method 'fedavgg'; did you mean 'fedavg'?")


def test_an_unknown_name_lists_what_is_known() -> None:
    with pytest.raises(FedtailError, match=r"known: .*exponential.*none.*step"):
        Tail.registry["zzzzzzzz"]


def test_an_unknown_key_suggests_the_nearest() -> None:
    with pytest.raises(FedtailError) as refused:
        Experiment.model_validate({"method": {"name": "fedavg", "local": {"epoch": 2}}})
    assert str(refused.value) == (
        "method.local: unknown key 'epoch'; did you mean 'epochs'? "
        f"(known: {', '.join(sorted(LocalTraining.model_fields))})"
    )


def test_a_wrong_value_is_named_with_what_is_allowed() -> None:
    with pytest.raises(FedtailError) as refused:
        Experiment.model_validate({"method": {"name": "fedavg", "local": {"lr": -1}}})
    assert str(refused.value) == (
        "'method.local.lr' = -1 is refused: input should be greater than 0"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_are_finite(value: float) -> None:
    with pytest.raises(FedtailError, match="finite"):
        LocalTraining(lr=value)


def test_a_table_without_a_name_stands_for_the_default_component() -> None:
    tables = {"partition": {"alpha": 0.1}, "method": {"server_optimizer": {"lr": 0.5}}}
    made = Experiment.model_validate(tables)
    assert made.partition == Dirichlet(alpha=0.1)
    assert made.method == SLAC(server_optimizer=ServerSGD(lr=0.5))


def test_a_table_without_a_name_deep_inside_stands_for_the_default_component() -> None:
    made = Outer.model_validate({"inner": {"depth": 3}, "loss": {}})
    assert made == Outer(inner=Inner(depth=3), loss=BalancedSoftmax())


def test_a_table_without_a_name_keeps_the_other_fields_of_the_default() -> None:
    # FedAvgM's default is sgd with momentum 0.9: to change its rate is not to lose its momentum.
    made: Method[Any] = Method.model_validate({"name": "fedavgm", "server_optimizer": {"lr": 0.5}})
    assert made == FedAvgM(server_optimizer=ServerSGD(lr=0.5, momentum=0.9))
    named = {"name": "fedavgm", "server_optimizer": {"name": "sgd", "lr": 0.5}}
    assert Method.model_validate(named) == FedAvgM(server_optimizer=ServerSGD(lr=0.5))


def test_a_name_alone_stands_for_the_component() -> None:
    made = Experiment.model_validate({"method": "fedavg", "tail": "exponential"})
    assert made.method == FedAvg()
    assert made.tail == Exponential()


def test_a_component_of_another_family_is_refused() -> None:
    with pytest.raises(FedtailError, match="exponential"):
        Experiment.model_validate({"partition": "exponential"})
    with pytest.raises(FedtailError):
        Experiment(partition=NoTail())


def test_but_changes_some_fields_and_checks_them_again() -> None:
    local = LocalTraining(lr=0.5, schedule=Cosine(floor=0.1))
    assert local.but(epochs=3) == LocalTraining(lr=0.5, epochs=3, schedule=Cosine(floor=0.1))
    with pytest.raises(FedtailError, match="greater than 0"):
        local.but(lr=0)


def test_none_is_left_out_of_a_description() -> None:
    described = LocalTraining().describe()
    assert "clip" not in described
    assert described["schedule"] == {"name": "constant"}


def test_two_classes_may_not_share_a_name() -> None:
    registry: Registry[object] = Registry("thing")
    registry.add("one", int)
    with pytest.raises(FedtailError, match="thing 'one' is registered twice"):
        registry.add("one", str)
    assert list(registry) == ["one"]
    assert "one" in registry


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"nesterov": True}, "nesterov needs momentum above 0"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum is for sgd; adam has its own"),
        ({"optimizer": "adagrad"}, "'sgd', 'adam' or 'adamw'"),
        ({"steps": 0}, "steps"),
        ({"momentum": 1.0}, "momentum"),
    ],
)
def test_local_training_refuses_what_does_not_agree(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(FedtailError, match=says):
        LocalTraining(**fields)
