"""The method closed-form: one round, any partition, everything else as it was."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from summing import far

from fedtail import Arrays, ClosedForm, Dirichlet, Experiment, FedtailError, run
from fedtail.setting import prepare
from fedtail.testing.executors import Spoiler, lost, run_with

HEADS = ("ridge", "lda", "ncm")


def samples(d: int = 12) -> dict[str, Any]:
    """Return a long tail of features, five classes of which nobody trains on the last."""
    draw = np.random.default_rng(0)
    centres = 2 * draw.normal(size=(5, d))
    y, y_test = np.repeat(np.arange(4), [120, 40, 12, 6]), np.repeat(np.arange(4), 25)
    made = {
        name: (draw.normal(size=(len(labels), d)) + centres[labels]).astype(np.float32)
        for name, labels in (("x_train", y), ("x_test", y_test))
    }
    return {**made, "y_train": y, "y_test": y_test, "classes": tuple("abcde")}


def experiment(head: str = "ridge", **fields: Any) -> Experiment:
    """Return one round on features, with a linear classifier."""
    chosen: dict[str, Any] = {
        "method": ClosedForm.model_validate({"head": head}),
        "data": Arrays(**samples(), normalisation="none"),
        "model": {"name": "mlp", "hidden": []},
        "clients": 6,
        "rounds": 1,
        "device": "cpu",
        **fields,
    }
    return Experiment(**chosen)


@pytest.mark.parametrize("head", HEADS)
def test_one_round_finds_the_rare_classes(head: str) -> None:
    result = run(experiment(head))
    assert result.metrics["balanced_accuracy"] > 0.9
    # Log-likelihood ratios: probabilities mean something.
    assert result.metrics["loss"] < 0.4
    assert [name for name in result.tensors if name.endswith("weight")]
    assert result.history[0]["method"] == {"samples": 178}


@pytest.mark.parametrize("head", HEADS)
def test_however_samples_are_shared_out_the_model_is_the_same(head: str) -> None:
    one = run(experiment(head, clients=2, partition="iid"))
    other = run(experiment(head, clients=15, partition=Dirichlet(alpha=0.1, min_size=1), seed=3))
    for name, tensor in one.tensors.items():
        # Both are solved in float64 and shipped in float32.
        assert torch.allclose(tensor, other.tensors[name], rtol=1e-6, atol=1e-7)


def test_rounds_after_the_first_ask_nobody() -> None:
    result = run(experiment(rounds=3, min_clients=6))
    assert [len(record["clients"]) for record in result.history] == [6, 0, 0]
    assert [record["bytes_up"] > 0 for record in result.history] == [True, False, False]


def test_what_travels() -> None:
    # Down: nothing, and then five counts and three numbers: there is nothing below the classifier.
    # Up: five counts twice, and 5·12 + 2·12 + 12·13/2 float64.
    record = run(experiment()).history[0]
    assert record["bytes_down"] == 6 * (5 * 8 + 3 * 8)
    assert record["bytes_up"] == 6 * (2 * 5 * 8 + (60 + 24 + 78) * 8)
    # Without products; and with a sketch of four columns, which goes down as float32.
    assert run(experiment("ncm")).history[0]["bytes_up"] == 6 * (80 + 84 * 8)
    sketched = ClosedForm.model_validate({"head": {"name": "ridge", "rank": 4}})
    record = run(experiment(method=sketched)).history[0]
    assert record["bytes_up"] == 6 * (80 + (84 + 12 * 4) * 8)
    assert record["bytes_down"] == 6 * (64 + 12 * 4 * 4)


def test_a_client_that_was_lost_is_asked_again() -> None:
    def once(job: Any) -> bool:
        return bool(job.clock.round == 1 and job.task.client == 2)

    whole = run(experiment(rounds=2, partition="iid"))
    made = run_with(experiment(rounds=2, partition="iid"), partial(Spoiler, spoil=lost, which=once))
    assert [len(record["clients"]) for record in made.history] == [5, 6]
    assert made.digest == whole.digest


def test_the_body_stays_as_it_is() -> None:
    made = tiny.experiment(ClosedForm(), tiny.norm_model, rounds=1)
    begun = prepare(made).model.tensors()
    found = run(made).tensors
    differ = {name for name, tensor in found.items() if not torch.equal(tensor, begun[name])}
    assert differ == {"4.weight", "4.bias"}


@pytest.mark.parametrize("head", HEADS)
def test_secure_sums_give_the_same(head: str) -> None:
    plain, found = (run(experiment(head, secure=secure)) for secure in (False, True))
    assert not any(record["dropped"] for record in found.history)
    assert far(found, plain) < 1e-5


def test_what_cannot_be_done_is_refused_before_work_starts() -> None:
    with pytest.raises(FedtailError, match=r"closed-form.* second moments .* not clipped"):
        experiment(privacy={"epsilon": 1.0})
    with pytest.raises(FedtailError, match=r"linear classifier .*, not CosineHead"):
        prepare(experiment(head="ncm").but(head="cosine"))
    with pytest.raises(FedtailError, match="unknown closed-form head 'svm'"):
        experiment("svm")
    with pytest.raises(FedtailError, match="rho"):
        experiment().but(method={"name": "closed-form", "head": {"name": "ridge", "rho": 0}})
