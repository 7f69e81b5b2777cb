"""The doctor on Flower nodes, without processes: the same diagnosis."""

from __future__ import annotations

from typing import Any

import local_federation
import pytest
import tiny

from fedtail import Diagnosis, Experiment, Result, doctor


def on_nodes(experiment: Experiment, **_: Any) -> Result:
    return local_federation.federation(experiment, 3).run()


def told(diagnosis: Diagnosis) -> dict[str, Any]:
    plain = diagnosis.to_json()
    del plain["seconds"], plain["probe"]["seconds"]
    return plain


@pytest.mark.parametrize("model", [tiny.norm_model, tiny.plain_model])
def test_the_diagnosis_is_that_of_the_embedded_engine(model: Any) -> None:
    planned = tiny.experiment(model=model, per_round=4, rounds=9)
    here = doctor(planned, rounds=2)
    there = doctor(planned, rounds=2, start=on_nodes)
    assert told(there) == told(here)
    assert here.probe["clients"] == 6
    # Class 3 is nobody's: of the others the smallest has 8 or fewer left in training.
    assert here.signals["tail"].estimate.value is not None
