"""What is planned: every combination, under the words that were typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedtail import BSM, Experiment, FedAvg, FedtailError, GlobalPrior
from fedtail.config import fields_of
from fedtail.study.plan import chosen, make_plan, words_of
from fedtail.study.spec import apply_method, field_meant


def labels(plain: dict[str, Any], choices: dict[str, Any]) -> list[str]:
    return list(chosen(plain, choices))


def test_a_grid_is_every_combination_in_the_order_typed() -> None:
    found = chosen({}, {"method": ["fedlc"], "tau": ["0.5", "1"], "local.lr": ["0.1", "1e-3"]})
    assert list(found) == [
        "fedlc,tau=0.5,local.lr=0.1",
        "fedlc,tau=0.5,local.lr=1e-3",
        "fedlc,tau=1,local.lr=0.1",
        "fedlc,tau=1,local.lr=1e-3",
    ]
    last: Any = found["fedlc,tau=1,local.lr=1e-3"](4)
    assert (last.method.loss.tau, last.method.local.lr, last.seed) == (1.0, 0.001, 4)
    assert last.name == "fedlc,tau=1,local.lr=1e-3 seed 4"


def test_a_field_of_a_method_is_for_those_that_have_it() -> None:
    assert labels({}, {"method": ["fedavg", "fedlc"], "method.tau": ["1", "2"]}) == [
        "fedavg",
        "fedlc,tau=1",
        "fedlc,tau=2",
    ]
    with pytest.raises(FedtailError, match="none of the methods has a field 'tau'"):
        chosen({}, {"method": ["fedavg"], "tau": ["1"]})
    with pytest.raises(FedtailError, match=r"field 'lr'; did you mean 'local\.lr'"):
        chosen({}, {"method": ["fedavg"], "lr": ["1"]})


def test_a_field_of_the_protocol_is_for_all() -> None:
    found = chosen({}, {"method": ["fedavg", "bsm"], "partition.alpha": [0.1]})
    assert list(found) == ["fedavg,partition.alpha=0.1", "bsm,partition.alpha=0.1"]
    alphas = [variant(0).describe()["partition"]["alpha"] for variant in found.values()]
    assert alphas == [0.1, 0.1]


@pytest.mark.parametrize("values", ["fedavg", 3])
def test_values_are_a_list(values: Any) -> None:
    with pytest.raises(FedtailError, match=r"'method' = .* is refused: give a list of values"):
        chosen({}, {"method": values})
    with pytest.raises(FedtailError, match=r"'method' = .* is refused: give a name, or a table"):
        chosen({}, {"method": [FedAvg]})


def test_an_experiment_made_in_python_keeps_its_objects() -> None:
    base = Experiment(method=FedAvg(local={"lr": 0.25, "epochs": 3}))
    plain = {**fields_of(base), "method": fields_of(base.method)}
    found = chosen(plain, {"method": ["bsm", BSM(prior=GlobalPrior())], "local.lr": [0.5]})
    assert list(found) == ["bsm,local.lr=0.5", "bsm,prior=global,local.lr=0.5"]
    first: Any = found["bsm,local.lr=0.5"](0)
    assert (first.method.local.lr, first.method.local.epochs) == (0.5, 3)
    assert first.data is base.data


def test_a_method_in_words() -> None:
    assert words_of(FedAvg()) == "fedavg"
    assert words_of(BSM(prior=GlobalPrior(), local={"lr": 0.1})) == "bsm,local.lr=0.1,prior=global"


def test_all_is_checked_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match=r"^fedavg,buffers=odd: "):
        make_plan(chosen({}, {"method": ["fedavg", "fedavg,buffers=odd"]}), [0], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lr", "method.local.lr"),
        ("method.lr", "method.local.lr"),
        ("local.lr", "method.local.lr"),
        ("sampler", "method.sampler"),
        ("tau", "method.tau"),
        ("rounds", ""),
        ("method.tau", ""),
        ("method.local.lr", ""),
        ("nonsense", ""),
    ],
)
def test_a_slip_leads_to_the_right_key(typed: str, meant: str) -> None:
    assert field_meant(typed, {"method": "fedlc"}) == meant


def test_a_slip_in_a_spec_is_a_sentence() -> None:
    with pytest.raises(FedtailError) as refused:
        apply_method({}, "fedavg,lr=0.1")
    said = "--method fedavg,lr=0.1: unknown key 'lr'; did you mean 'local.lr'?"
    assert str(refused.value) == said
