"""LoRA under every method: adapters and head travel, the rest stays home, what is shipped is plain.

All methods can. What one needs is in `method_needs.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from method_needs import FROZEN, case

from fedtail import Experiment, Method, load, run
from fedtail.setting import prepare
from fedtail.testing.federation import NORM, arrays, norm_model

NAMES = [n for n in Method.registry if Method.registry[n].__module__.startswith("fedtail.")]
TRAINING = [name for name in NAMES if "local" in Method.registry[name].model_fields]
"""Those that train by batches."""
FIRST_STEP = [
    "balancefl",
    "bsm",
    "centralised",
    "centralised-bsm",
    "climb",
    "creff",
    "crt-cb",
    "crt-ib",
    "fed-focal",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavgm",
    "fedlc",
    "fednova",
    "fedprox",
    "fedrod",
    "fedrs",
    "fedvls",
    "fedyogi",
    "lade",
    "local-only",
    "paco",
    "ratio-loss",
    "scaffold",
    "tau-norm",
]
"""Those that take the user's head, and leave it as its first step has made it.

Others draw heads of their own, or go on with it when features have moved.
"""
every_method = pytest.mark.parametrize("name", TRAINING)


def experiment(name: str, train: str = "lora:r=2", **fields: object) -> Experiment:
    return case(name).on(NORM).experiment(train=train, **fields)


@every_method
def test_adapters_and_head_are_all_that_travels(name: str) -> None:
    setting = prepare(experiment(name))
    sent = setting.model.names()
    adapters = {key for key in sent if ".lora_" in f".{key}"}
    assert adapters
    # Nothing else is of the body: neither its convolution nor its BatchNorm with the statistics.
    of_head = frozenset({"4.weight", "4.bias"})
    if name not in FROZEN:
        of_head = prepare(experiment(name, "head")).model.names()
    assert sent - adapters == of_head
    frozen = setting.model.whole({})
    assert sum(".base_layer." in key for key in frozen) >= 2


@every_method
def test_it_resumes_ships_the_plain_network_and_predicts(name: str, tmp_path: Path) -> None:
    whole = run(experiment(name, rounds=2))
    run(experiment(name, rounds=1), out=tmp_path / "run")
    result = run(experiment(name, rounds=2), out=tmp_path / "run", resume=True)
    assert result.digest == whole.digest
    assert not any("lora" in key or "base_layer" in key for key in result.tensors)
    held = arrays()
    again = load(tmp_path / "run", network=norm_model)
    confusion = whole.model.numbers(held["x_test"])
    assert (again.numbers(held["x_test"]) == confusion).all()
    again.export(tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    logits = program(torch.from_numpy(held["x_test"]))[0]
    assert (logits.argmax(1).numpy() == confusion).all()


@pytest.mark.parametrize("name", FIRST_STEP)
def test_the_first_step_of_the_head_is_that_of_a_head_alone(name: str) -> None:
    # B is zero at first, so features and with them the gradient of the head are those of the body.
    local = {"batch_size": 4, "lr": 0.05, "steps": 1}
    once = replace(case(name), fields={**case(name).fields, "local": local}, shared={}).on(NORM)
    lora, head = (
        run(once.experiment(train=train, rounds=1, features="anew")).tensors
        for train in ("lora:r=2", "head")
    )
    shared = {"4.weight", "4.bias"}
    assert shared <= head.keys()
    for key in shared:
        torch.testing.assert_close(lora[key], head[key], rtol=1e-5, atol=1e-6)
    # And the convolution has moved, which is frozen in the other.
    (moved,) = {key for key in head if key.endswith("0.weight")} & lora.keys()
    assert not torch.equal(lora[moved], head[moved])
