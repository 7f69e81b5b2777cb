from __future__ import annotations

import math
from typing import Literal

import pytest
import torch

from fedtail.privacy.additive import WHOLE, NotASum, Total, addends
from fedtail.privacy.clipping import private_update, restored
from fedtail.protocol import Payload, Sum


def update(*values: float) -> Payload:
    return Payload(
        {"model/w": torch.tensor(values), "model/steps": torch.tensor(7)},
        {"samples": 50, "loss": 0.25, "expert": 1},
        summable=frozenset({"model"}),
    )


SENT = Payload({"model/w": torch.tensor([1.0, 1.0]), "model/steps": torch.tensor(3)}, {"expert": 1})


def test_the_change_is_clipped_and_not_the_model() -> None:
    # The change is (3, 4), of norm 5: to norm 1 it is (0.6, 0.8).
    safe = private_update(update(4.0, 5.0), SENT, 2, clip=1.0)
    assert torch.allclose(safe.tensors["model/w"], torch.tensor([0.6, 0.8]))
    short = private_update(update(1.3, 1.4), SENT, 2, clip=1.0)
    assert torch.allclose(short.tensors["model/w"], torch.tensor([0.3, 0.4]))


def test_a_clients_own_numbers_do_not_leave() -> None:
    safe = private_update(update(4.0, 5.0), SENT, 2, clip=1.0)
    assert safe.scalars == {"samples": 1, "loss": 0, "expert": 1}
    assert set(safe.tensors) == {"model/w"}  # a step counter tells how many samples there are


def test_groups_share_the_norm() -> None:
    both = Payload(
        {
            "model/w": torch.tensor([101.0, 1.0]),
            "grad/classes": torch.tensor([1]),
            "grad/weight": torch.tensor([[0.0, 70.0]]),
        },
        summable=frozenset({"model", "grad"}),
        sums={"grad": Sum("classes")},
    )
    safe = private_update(both, SENT, 3, clip=2.0)
    assert safe.tensors["model/w"].norm() == pytest.approx(2 / math.sqrt(2))
    # Everybody sends rows of all classes.
    assert torch.equal(safe.tensors["grad/classes"], torch.arange(3))
    assert safe.tensors["grad/weight"].shape == (3, 2)
    assert safe.tensors["grad/weight"].norm() == pytest.approx(2 / math.sqrt(2))
    whole = torch.cat([t.flatten() for n, t in safe.tensors.items() if "classes" not in n])
    assert whole.norm() == pytest.approx(2.0)


def test_what_is_no_sum_is_kept_back() -> None:
    with pytest.raises(NotASum):
        private_update(Payload({"extra/w": torch.ones(1)}), SENT, 2, clip=1.0)


def test_local_noise_has_the_planned_size() -> None:
    # 40 000 numbers: the sample's standard deviation has a standard error of σ / √(2 n).
    n, sigma = 40_000, 0.7
    sent = Payload({"model/w": torch.zeros(n)}, summable=frozenset({"model"}))
    draw = torch.Generator().manual_seed(0)
    safe = private_update(sent, Payload(), 2, 1.0, sigma, draw).tensors["model/w"]
    assert abs(float(safe.std()) - sigma) < 3 * sigma / math.sqrt(2 * n)
    assert abs(float(safe.mean())) < 3 * sigma / math.sqrt(n)


def test_central_noise_has_the_planned_size_and_the_mean_is_over_all_asked() -> None:
    n, sigma, asked = 40_000, 1.3, 5
    sent = Payload({"model/w": torch.ones(n)}, {"samples": 1}, frozenset({"model"}))
    addend = addends(sent, {}, 2)[WHOLE]
    total = Total.of(addend.form, 4 * addend.numbers, count=4)  # one of five did not answer
    draw = torch.Generator().manual_seed(0)
    mean = total.noised(asked, sigma, draw).tensors(first=True)["model/w"].double()
    assert float(total.noised(asked, 0.0, draw).tensors(True)["model/w"][0]) == pytest.approx(0.8)
    assert abs(float(mean.mean()) - 0.8) < 3 * sigma / asked / math.sqrt(n)
    assert abs(float(mean.std()) - sigma / asked) < 3 * sigma / asked / math.sqrt(2 * n)


def test_gradients_and_counts_get_the_same_noise_as_models() -> None:
    n, sigma = 30_000, 0.5
    kinds: tuple[Literal["classes", "sum"], ...] = ("classes", "sum")
    for how in kinds:
        group = {"g/classes": torch.tensor([0])} if how == "classes" else {}
        value = torch.full((1, n), 10.0) if how == "classes" else torch.full((n,), 10.0)
        sent = Payload({**group, "g/w": value}, summable=frozenset({"g"}), sums={"g": Sum(how)})
        addend = addends(sent, {}, 1)[WHOLE]
        noisy = Total.of(addend.form, addend.numbers, 1).noised(
            1, sigma, torch.Generator().manual_seed(1)
        )
        found = noisy.tensors(first=True)["g/w"].double()
        assert abs(float(found.std()) - sigma) < 3 * sigma / math.sqrt(2 * n)


def test_changes_are_put_back_on_what_was_sent() -> None:
    found = restored({"model/w": torch.tensor([0.5, 0.0]), "g/w": torch.ones(1)}, SENT)
    assert torch.equal(found["model/w"], torch.tensor([1.5, 1.0]))
    assert torch.equal(found["g/w"], torch.ones(1))
    norm = Payload({"model/bn.running_var": torch.tensor([1.0, 1.0])})
    noisy = {"model/bn.running_var": torch.tensor([-3.0, 0.5])}
    assert restored(noisy, norm)["model/bn.running_var"].tolist() == [0.0, 1.5]
