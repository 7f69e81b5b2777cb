"""GBME-p: GBME, and noise in what is sent before round 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import tiny
import torch

from fedtail import run
from fedtail.engines.executor import Done, Job, Serial
from fedtail.methods.gbme import GBME
from fedtail.methods.gbme_p import GBMEp
from fedtail.models import build
from fedtail.protocol import Payload
from fedtail.totals import Sums
from fedtail.training import PrivateProxyPrior
from fedtail.volume import form_bytes


def method(**prior: Any) -> GBMEp:
    return GBMEp.model_validate({"name": "gbme-p", "local": tiny.quick(), "prior": prior})


def test_without_noise_it_is_gbme() -> None:
    found = run(tiny.experiment(method(epsilon=math.inf), tiny.norm_model))
    expected = run(tiny.experiment(GBME(local=tiny.quick()), tiny.norm_model))
    assert found.digest == expected.digest
    assert torch.equal(found.state.omega, expected.state.omega)
    assert found.state.groups == expected.state.groups


def test_noise_changes_the_prior() -> None:
    found = run(tiny.experiment(method(epsilon=1.0), tiny.norm_model, rounds=1))
    expected = run(tiny.experiment(GBME(local=tiny.quick()), tiny.norm_model, rounds=1))
    assert not torch.allclose(found.state.prior, expected.state.prior, rtol=0.05)


def test_one_release_a_client() -> None:
    # Only the preliminary exchange has a classifier's change in it, once a client.
    seen: list[tuple[int, int, str]] = []

    class Watched(Serial):
        def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
            done = list(super().perform(jobs))
            for job, answer in zip(jobs, done, strict=True):
                assert answer.payload is not None
                if {"layer/weight", "lpi/classes"} & set(answer.payload.tensors):
                    seen.append((job.clock.round, job.task.client, job.task.action))
                    # Nothing of the trained model goes with it.
                    assert set(answer.payload.tensors) == {"layer/weight"}
            return done

    tiny.run_with(tiny.experiment(method()), Watched)
    assert seen == [(0, k, "inform") for k in range(6)]


@pytest.mark.parametrize(
    ("fields", "trained", "size"),
    [
        ({}, True, 48),  # ten floats and the sample count
        ({"reads": "rows"}, True, 2568),  # 640 floats
        ({}, False, 2568),
        ({"reads": "rows", "upload": "index"}, True, 48),
    ],
)
def test_the_release_is_as_large_as_its_page_says(
    fields: dict[str, Any], trained: bool, size: int
) -> None:
    base = build("digits_cnn", (1, 8, 8), 10)
    base.classifier.get_parameter("bias").requires_grad_(trained)
    gbme = method(**fields)
    assert form_bytes(gbme.inform_form(Payload(), gbme.build_model(base), 10), 10) == size


def test_later_rounds_have_no_noise() -> None:
    # Given what the preliminary exchange found, training is GBME's bit by bit: with one expert the
    # groups play no part, and with the same Π the runs are the same.
    chosen = method().but(experts=1)
    model = tiny.plain_model
    noisy = run(tiny.experiment(chosen, model))

    class Told(PrivateProxyPrior):
        def estimate(self, gpi: torch.Tensor, samples: float) -> torch.Tensor:
            told: torch.Tensor = noisy.state.prior
            return told

    silent = run(tiny.experiment(chosen.but(prior=Told(epsilon=math.inf)), model))
    assert silent.digest == noisy.digest


def test_the_budget_is_reported_with_the_run() -> None:
    first = run(tiny.experiment(method(epsilon=20.0), rounds=1)).history[0]["method"]
    assert first["epsilon"] == 20.0
    assert first["delta"] == 0.03
    assert first["sigma"] == pytest.approx(0.20646, rel=1e-4)


def test_fields_of_the_prior_are_reached_by_name() -> None:
    chosen = method(epsilon=5, mechanism="paper").prior
    assert isinstance(chosen, PrivateProxyPrior)
    assert chosen.upload == "layer"
    assert chosen.sigma == pytest.approx(0.546, abs=1e-3)


def test_a_prior_without_noise_is_refused() -> None:
    with pytest.raises(ValueError, match="gbme-p has the prior 'private_proxy', not 'proxy'"):
        GBMEp.model_validate({"name": "gbme-p", "prior": "proxy"})
