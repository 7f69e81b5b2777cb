"""What leaves a client under differential privacy, and what the server makes of the sums."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from fedtail.forms import (
    SAMPLES,
    SMALL_TENSOR,
    ByClass,
    Form,
    How,
    Like,
    Mean,
    Number,
    Total,
    defect,
)
from fedtail.privacy.budget import Budget
from fedtail.privacy.client_side import ClientProtection
from fedtail.privacy.clipping import WITHIN, private_form, private_update, restored
from fedtail.privacy.config import Privacy
from fedtail.privacy.layout import Opened
from fedtail.privacy.noise import grid_step, seeded_bytes
from fedtail.privacy.server_side import ServerProtection
from fedtail.protocol import Payload, Task, Update
from fedtail.reduce import frames_for, within_frames
from fedtail.totals import Sums

FORM = (
    Form()
    .group("model", {"w": Like((2,)), "steps": Like((), torch.int64)})
    .numbers(samples=SAMPLES, loss=Number(), expert=Number(1, 1, whole=True))
)
SENT = Payload({"model/w": torch.tensor([1.0, 1.0]), "model/steps": torch.tensor(3)}, {"expert": 1})


def update(*values: float) -> Payload:
    tensors = {"model/w": torch.tensor(values), "model/steps": torch.tensor(7)}
    return Payload(tensors, {"samples": 50, "loss": 0.25, "expert": 1})


def test_the_change_is_clipped_and_not_the_model() -> None:
    # The change is (3, 4), of norm 5: to norm 1 it is (0.6, 0.8).
    safe = private_update(update(4.0, 5.0), FORM, SENT, clip=1.0)
    grid = 2 * grid_step(1.0)
    assert torch.allclose(safe.tensors["model/w"], torch.tensor([0.6, 0.8]), atol=grid)
    short = private_update(update(1.3, 1.4), FORM, SENT, clip=1.0)
    assert torch.allclose(short.tensors["model/w"], torch.tensor([0.3, 0.4]), atol=grid)


def test_a_clients_own_numbers_do_not_leave() -> None:
    safe = private_update(update(4.0, 5.0), FORM, SENT, clip=1.0)
    assert safe.scalars == {"samples": 1, "loss": 0, "expert": 1}
    assert set(safe.tensors) == {"model/w"}  # a step counter tells how many samples there are


def test_what_leaves_is_what_is_declared() -> None:
    form = private_form(FORM)
    safe = private_update(update(4.0, 5.0), FORM, SENT, clip=1.0)
    assert defect(safe, form, 1) == ""
    assert form.how == {"model/w": Mean(by="")}
    told = Payload(safe.tensors, {**safe.scalars, "loss": 0.25})
    assert "loss" in defect(told, form, 1)


def test_what_leaves_lies_on_the_grid_and_is_never_longer_than_promised() -> None:
    n, clip = 5000, 0.37
    form, sent = Form().group("model", {"w": Like((n,))}), Payload({"model/w": torch.zeros(n)})
    answer = Payload({"model/w": torch.randn(n, generator=torch.Generator().manual_seed(1))})
    safe = private_update(answer, form, sent, clip).tensors["model/w"].double()
    # 0.37 lies between 2^-2 and 2^-1: the grid is 2^-2 / 2^20.
    assert grid_step(clip) == 2.0**-22
    steps = safe * 2**22
    assert torch.equal(steps, steps.round())
    assert clip * (1 - 1e-3) < float(safe.norm()) <= clip


def test_a_client_tells_whether_it_was_clipped() -> None:
    form = private_form(FORM, adaptive=True)
    for values, told in (((4.0, 5.0), -0.5), ((1.3, 1.4), 0.5)):
        safe = private_update(update(*values), FORM, SENT, clip=1.0, adaptive=True)
        assert safe.tensors[WITHIN].tolist() == [told]
        assert defect(safe, form, 1) == ""


def test_the_clip_follows_the_share_that_is_not_clipped() -> None:
    # σ_b = max(m / 20, 2 z) = 2.6 and 1 / z² = 1 / 1.3² − 1 / 5.2² give z = 1.3427.
    budget = Budget(Privacy(quantile=0.5, simulated=True), 9, 9, noise=1.3, clip=2.0)
    assert budget.bit_noise == pytest.approx(2.6)
    assert budget.sigma == pytest.approx(2.0 * 1.3427, rel=1e-4)
    # Eight of ten were not clipped: S e^(−0.2 (0.8 − 0.5)).
    budget.follow(0.8, 0)
    assert budget.next_clip == 2.0  # not by what is asked before training
    budget.follow(0.8, 1)
    assert budget.next_clip == pytest.approx(2.0 * math.exp(-0.06))
    assert budget.clip == 2.0  # with which this round's updates were clipped


def test_no_rounding_makes_a_clipped_update_longer_in_the_sum() -> None:
    # A thousand clients of up to 50,000 samples, and a model with a 1 in it: integers that held the
    # model would be of steps of 2^-19, in which this update is none.
    size = SMALL_TENSOR
    form = Form().group("model", {"w": Like((size,))}).numbers(samples=SAMPLES)
    sent = Payload({"model/w": torch.cat([torch.ones(1), torch.zeros(size - 1)])})
    side = ClientProtection(None, Privacy(epsilon=8.0, clip=1e-5))
    tasks = [Task(k, "train", sent) for k in range(1000)]
    safe_form = side.form(form, sent)
    sums = Sums(safe_form, frames_for(safe_form, tasks, 50_000))
    w = sent.tensors["model/w"] + torch.linspace(-1, 1, size)
    safe = private_update(Payload({"model/w": w}, {"samples": 7}), form, sent, 1e-5)
    assert defect(safe, within_frames(safe_form, sums.frames), 7) == ""
    for k in (0, 1):
        sums.add(Update(k, safe))
    assert torch.equal(sums.total(("model/w", None)), 2 * safe.tensors["model/w"].double())


def test_groups_share_the_norm() -> None:
    form = (
        Form().group("model", {"w": Like((2,))}).group("grad", {"weight": Like((2,))}, ByClass(3))
    )
    both = Payload(
        {
            "model/w": torch.tensor([101.0, 1.0]),
            "grad/classes": torch.tensor([1]),
            "grad/weight": torch.tensor([[0.0, 70.0]]),
        },
    )
    safe = private_update(both, form, SENT, clip=2.0)
    assert safe.tensors["model/w"].norm() == pytest.approx(2 / math.sqrt(2))
    # Everybody sends rows of all classes.
    assert safe.tensors["grad/weight"].shape == (3, 2)
    assert safe.tensors["grad/weight"].norm() == pytest.approx(2 / math.sqrt(2))
    whole = torch.cat([t.flatten() for t in safe.tensors.values()])
    assert whole.norm() == pytest.approx(2.0)
    assert defect(safe, private_form(form), None) == ""


def test_local_noise_has_the_planned_size() -> None:
    # 40 000 numbers: the sample's standard deviation has a standard error of σ / √(2 n).
    n, sigma = 40_000, 0.7
    form, sent = Form().group("model", {"w": Like((n,))}), Payload({"model/w": torch.zeros(n)})
    source = seeded_bytes(0, "noise", 1)
    safe = private_update(sent, form, Payload(), 1.0, sigma, source).tensors["model/w"]
    assert abs(float(safe.std()) - sigma) < 3 * sigma / math.sqrt(2 * n)
    assert abs(float(safe.mean())) < 3 * sigma / math.sqrt(n)


def shown(total: torch.Tensor, how: How, form: Form, asked: int, **privacy: Any) -> Opened:
    """Return what a server with noise σ shows of one sum over clients."""
    promise = Privacy(clip=1.0, simulated=True, **privacy)
    side = ServerProtection(budget=Budget(promise, 9, 9, noise=1.3))
    opened = Opened(form, {("g/w", None): (total, 4.0)}, counts=Counter({None: 4}))
    return side.noised(opened, form, [Task(k, "train", Payload()) for k in range(asked)], 1)


def test_central_noise_has_the_planned_size_and_the_mean_is_over_all_asked() -> None:
    # One of five did not answer: the sum of four ones over five is 0.8.
    n, sigma, asked = 40_000, 1.3, 5
    form = Form().group("g", {"w": Like((n,))})
    total = torch.full((n,), 4.0, dtype=torch.float64)
    calm = shown(total, Mean(), form, asked, model="local").value(("g/w", None))
    assert calm is not None and float(calm[0]) == pytest.approx(0.8)
    mean = shown(total, Mean(), form, asked, model="central").value(("g/w", None))
    assert mean is not None
    assert abs(float(mean.mean()) - 0.8) < 3 * sigma / asked / math.sqrt(n)
    assert abs(float(mean.std()) - sigma / asked) < 3 * sigma / asked / math.sqrt(2 * n)


def test_gradients_and_counts_get_the_same_noise_as_models() -> None:
    n, sigma = 30_000, 1.3
    total = torch.full((n,), 10.0, dtype=torch.float64)
    counts = Form().group("g", {"w": Like((n,), torch.int64)}, Total())
    noisy = shown(total, Total(), counts, 1, model="central").value(("g/w", None))
    table = Form().group("g", {"w": Like((n,))}, ByClass(1))
    row = shown(total[None], ByClass(1), table, 1, model="central").value(("g/w", 0))
    for found in (noisy, row):
        assert found is not None
        assert found.dtype == torch.float32  # a noisy count is no whole number
        assert abs(float(found.double().std()) - sigma) < 3 * sigma / math.sqrt(2 * n)


def test_there_is_no_count_below_zero() -> None:
    total = torch.zeros(1000, dtype=torch.float64)
    form = Form().group("g", {"w": Like((1000,), torch.int64)}, Total())
    found = shown(total, Total(), form, 1, model="central").value(("g/w", None))
    assert found is not None and float(found.min()) == 0 and float(found.max()) > 1


def test_changes_are_put_back_on_what_was_sent() -> None:
    found = restored("model/w", torch.tensor([0.5, 0.0]), SENT)
    assert torch.equal(found, torch.tensor([1.5, 1.0]))
    assert torch.equal(restored("g/w", torch.ones(1), SENT), torch.ones(1))
    norm = Payload({"model/bn.running_var": torch.tensor([1.0, 1.0])})
    noisy = torch.tensor([-3.0, 0.5])
    assert restored("model/bn.running_var", noisy, norm).tolist() == [0.0, 1.5]
