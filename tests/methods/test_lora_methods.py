"""LoRA under every method: adapters and head travel, the rest stays home, what is shipped is plain.

What a method needs is in `method_needs.py`; one that cannot do it says so in a sentence.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from method_needs import FROZEN, case

from fedtail import Experiment, FedtailError, Method, load, run
from fedtail.setting import prepare
from fedtail.testing.federation import NORM, arrays, norm_model

NAMES = [n for n in Method.registry if Method.registry[n].__module__.startswith("fedtail.")]
TRAINING = [name for name in NAMES if "local" in Method.registry[name].model_fields]
"""Those that train by batches."""
every_method = pytest.mark.parametrize("name", [n for n in TRAINING if n not in FROZEN])


def experiment(name: str, train: str = "lora:r=2", **fields: object) -> Experiment:
    return case(name).on(NORM).experiment(train=train, **fields)


@every_method
def test_adapters_and_head_are_all_that_travels(name: str) -> None:
    setting = prepare(experiment(name))
    sent = setting.model.names()
    adapters = {key for key in sent if ".lora_" in f".{key}"}
    assert adapters
    # Nothing else is of the body: neither its convolution nor its BatchNorm with the statistics.
    body = {"0.weight", "0.bias", "0.base_layer.weight", "0.base_layer.bias"}
    norm = {f"1.{part}" for part in ("weight", "bias", "running_mean", "running_var")}
    assert not any(key.endswith(tuple(body | norm)) for key in sent - adapters if "lora" not in key)
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


@pytest.mark.parametrize("name", sorted(FROZEN))
def test_a_method_that_cannot_says_so(name: str) -> None:
    with pytest.raises(FedtailError, match="frozen"):
        prepare(experiment(name))
