"""What the trackers share, and how each is missed."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
from tracked import SETTINGS, info, record

from fedtail.callbacks import trackers
from fedtail.callbacks.tracking import (
    LOGGED,
    SPREAD,
    dotted,
    recall,
    remember,
    require,
    scalars,
)
from fedtail.errors import FedtailError
from fedtail.metrics import personal_scores


def test_only_finite_numbers_are_logged() -> None:
    method = {"norm": np.float32(2.0), "flag": True, "lost": math.nan, "note": "text"}

    found = scalars(record(2, loss=math.inf, method=method))

    assert found["accuracy"] == 0.2
    assert found["method/norm"] == 2.0
    assert found["method/flag"] == 1.0
    assert not {"medium", "loss", "per_class", "method/lost", "method/note"} & set(found)
    assert set(found) - {"method/norm", "method/flag"} == set(LOGGED) - {"medium", "loss"}


def test_a_record_without_method_or_evaluation() -> None:
    assert scalars({"round": 1, "accuracy": None}) == {}


def test_the_spread_of_the_clients_models_is_logged() -> None:
    each = [{"accuracy": a, "balanced_accuracy": a, "few": None} for a in (0.5, 0.1, 0.3)]

    found = scalars({"personal": personal_scores(each, own=False)})

    spread = [found[f"personal/accuracy_{at}"] for at in SPREAD]
    assert spread == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert found["personal/balanced_accuracy_mean"] == pytest.approx(0.3)
    assert not [key for key in found if "few" in key or "models" in key]


def test_validation_and_the_spread_over_clients_are_logged() -> None:
    validation = {"few": 0.5, "loss": None, "per_class": [0.5], "kept": 3}
    clients_test = {"worst": "232", "spread": [0.0, 0.1, 0.2, 0.3, 0.4], "accuracy": {"232": 0.0}}

    found = scalars({"validation": validation, "clients_test": clients_test})

    spread = {f"clients_test/accuracy_{at}": k / 10 for k, at in enumerate(SPREAD)}
    assert found == pytest.approx({"validation/few": 0.5, "validation/kept": 3.0, **spread})


def test_settings_are_flat_and_dotted() -> None:
    assert dotted(SETTINGS) == {
        "seed": 7,
        "rounds": 4,
        "augment": True,
        "method.name": "fedlc",
        "method.loss.name": "logit-calibration",
        "method.loss.tau": 0.5,
        "steps": "[100, 200]",
    }


def test_only_a_resumed_run_recalls_its_id(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    remember(info(folder), "wandb", "abc")

    assert recall(info(folder, done=2), "wandb") == "abc"
    assert recall(info(folder, done=0), "wandb") is None
    assert recall(info(folder, done=2), "mlflow") is None
    remember(info(None), "wandb", "abc")
    assert recall(info(None, done=2), "wandb") is None


def test_a_missing_library_names_its_extra() -> None:
    with pytest.raises(FedtailError) as caught:
        require("a_library_nobody_has", "TensorBoard", "tensorboard")

    assert str(caught.value) == (
        "tracking needs TensorBoard, which is not installed: "
        "run pip install '.[tensorboard]' in a clone of fedtail"
    )


@pytest.mark.parametrize("name", sorted(trackers))
def test_each_tracker_says_at_once_that_it_is_missing(name: str) -> None:
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(FedtailError, match=rf"not installed: run pip install '\.\[{name}\]' in"):
        trackers[name]()
