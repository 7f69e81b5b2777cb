"""Features from a head's change: exact where they must be, lost in noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch.nn import functional

from fedtail import Arrays, CReFF, Experiment, FedAvg, Method, Natural, run
from fedtail.folder import RunFolder
from fedtail.privacy.audit import View, audit
from fedtail.privacy.inversion import Inversion, inverted
from fedtail.privacy.views import CLIPPED, NOISY, NOTHING, SUM_NOISY, SUM_ONLY
from fedtail.setting import prepare


def test_one_sample_of_a_linear_softmax_head_is_known_exactly() -> None:
    # Whatever W and b are: row a of the gradient is (p_a − 1[a = y]) hᵀ, the bias p_a − 1[a = y].
    draw = torch.Generator().manual_seed(0)
    h = torch.rand(5, generator=draw, dtype=torch.float64)
    w = torch.randn(4, 5, generator=draw, dtype=torch.float64).requires_grad_()
    b = torch.randn(4, generator=draw, dtype=torch.float64).requires_grad_()
    loss = functional.cross_entropy((w @ h + b)[None], torch.tensor([2]))
    by_w, by_b = torch.autograd.grad(loss, (w, b))
    # Clipping and a learning rate are one factor, which the quotient does not see.
    for rate in (1.0, 0.003):
        found = inverted(-rate * by_w, -rate * by_b, 2, 1.0)
        assert found.tolist() == pytest.approx(h.tolist())
    # Without a bias the direction is known, and the norm is what features usually have.
    found = inverted(-by_w, None, 2, 7.0)
    assert found.tolist() == pytest.approx((7 * h / h.norm()).tolist())


def test_rows_of_classes_that_are_not_there_are_subtracted() -> None:
    # p = 1/4 for all; samples (4, 0) of class 0 twice, (0, 8) of class 1 once; 2 and 3 are absent.
    # Δb: 2 − 3/4, 1 − 3/4, −3/4, −3/4. Σ p h = (8, 8) / 4 = (2, 2).
    # ΔW: (8, 0) − (2, 2), (0, 8) − (2, 2), −(2, 2), −(2, 2).
    weight = torch.tensor([[6.0, -2.0], [-2.0, 6.0], [-2.0, -2.0], [-2.0, -2.0]])
    bias = torch.tensor([1.25, 0.25, -0.75, -0.75])
    # For class 1: ((−2, 6) − (−2, −2)) / (0.25 + 0.75) = (0, 8).
    assert inverted(weight, bias, 1, 1.0).tolist() == [0.0, 8.0]


def lonely() -> Arrays:
    """Six clients; client k has ten samples of class k mod 4 and one of the next class."""
    rng = np.random.default_rng(0)
    y = np.concatenate([[k % 4] * 10 + [(k + 1) % 4] for k in range(6)])
    owner = np.repeat(np.arange(6), 11)
    x = rng.integers(0, 256, (len(y), *tiny.IMAGE)).astype(np.uint8)
    return Arrays(**{**tiny.arrays(), "x_train": x, "y_train": y, "client_train": owner})


def attacked(method: Method[Any], path: Path, epsilon: float) -> dict[str, Inversion]:
    experiment = Experiment(
        method=method,
        data=lonely(),
        model=tiny.plain_model,
        partition=Natural(),
        rounds=1,
        device="cpu",
    )
    run(experiment, out=path)
    views: list[View] = audit(RunFolder(path), prepare(experiment), epsilon, shadows=0).views
    found = {view.protection: view.inversion for view in views}
    assert all(each is not None and each.samples == 6 for each in found.values())
    return {name: each for name, each in found.items() if each is not None}


def test_a_class_gradient_of_one_sample_is_the_sample(tmp_path: Path) -> None:
    method = CReFF(local=tiny.quick(), features=5, match_steps=2, head_epochs=2)
    found = attacked(method, tmp_path / "run", epsilon=0.5)
    # Sums of float32, divided by a bias that is nearly one.
    assert found[NOTHING].error < 1e-4 and found[NOTHING].cosine > 0.999
    # Clipping is a factor, and steps of a grid.
    assert found[CLIPPED].error < 0.01
    # The sum over clients mixes samples; noise hides them.
    assert found[SUM_ONLY].error > 0.1
    assert found[NOISY].error > 1 and abs(found[NOISY].cosine) < 0.6
    assert found[SUM_NOISY].error > 1


def test_the_change_of_a_classifier_tells_less(tmp_path: Path) -> None:
    found = attacked(FedAvg(local=tiny.quick()), tmp_path / "run", epsilon=0.5)
    assert found[NOTHING].cosine > found[NOTHING].blind_cosine
    assert found[NOTHING].error < found[SUM_ONLY].error
    assert found[NOISY].error > 1
