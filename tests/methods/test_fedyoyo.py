"""FedYoYo: weak views teach strong ones, both under a prior."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from torch import nn
from torch.nn import functional

from fedtail import FedYoYo, run
from fedtail.methods.fedyoyo import FedYoYoState, Views, taught_by_itself
from fedtail.models import SplitModel
from fedtail.protocol import Payload, grouped

# Vectors have one view. Client 0: two samples of class 0, one of class 1, none of class 2.
DATA = tiny.federation([[1.0], [2.0], [3.0]], [0, 0, 1], [[0, 1, 2]], classes=3)


def model() -> SplitModel:
    torch.manual_seed(0)
    return SplitModel(nn.Linear(1, 3))


def started(method: FedYoYo, split: SplitModel, **fields: Any) -> Any:
    """Return the local run of client 0, told the effective numbers (1, 1, 2)."""
    told = {"effective/classes": torch.tensor([1.0, 1.0, 2.0])}
    payload = Payload({**grouped("model", split.tensors()), **told})
    return method.start(payload, tiny.client(DATA, 0, split, **fields))


class TestPrior:
    def shares(self, method: FedYoYo, step: int) -> list[float]:
        aux: Views = started(method, model()).aux
        return method.shares(aux, step).tolist()

    def test_the_code_mixes_at_every_batch(self) -> None:
        # π̂ = (1/4, 1/4, 1/2), π^k = (2/3, 1/3, 0); after t batches π̂ weighs 0.9^t.
        for t in (1, 2, 50):
            w = 0.9**t
            expected = [w / 4 + (1 - w) * 2 / 3, w / 4 + (1 - w) / 3, w / 2]
            assert self.shares(FedYoYo(), t) == pytest.approx(expected, rel=1e-5)

    def test_the_paper_mixes_once(self) -> None:
        for t in (1, 2, 50):
            expected = [0.9 / 4 + 0.1 * 2 / 3, 0.9 / 4 + 0.1 / 3, 0.45]
            assert self.shares(FedYoYo(mixture="paper"), t) == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize("mixture", ["code", "paper"])
    def test_one_or_the_other_alone(self, mixture: Any) -> None:
        for t in (1, 7):
            own = self.shares(FedYoYo(mixture=mixture, gamma=1), t)
            assert own == pytest.approx([2 / 3, 1 / 3, 0.0])
            told = self.shares(FedYoYo(mixture=mixture, gamma=0), t)
            assert told == pytest.approx([1 / 4, 1 / 4, 1 / 2])


def test_without_distillation_equal_views_are_the_balanced_softmax() -> None:
    # Of vectors both views are the same, so the loss of both is that of one.
    split, method = model(), FedYoYo(lam=0, gamma=1)
    local = started(method, split)
    x, y = DATA.client(0).batch(torch.tensor([0, 2]))
    local.index = torch.tensor([0, 2])
    shift = (torch.tensor([2 / 3, 1 / 3, 0.0]) ** 1.5 + 1e-9).log()
    expected = functional.cross_entropy(split(x) + shift, y)
    torch.testing.assert_close(method.batch_loss(local, x, y), expected)
    # A class that nobody holds is shifted by log 1e-9 = -20.7: as good as masked.
    assert float(shift[2]) == pytest.approx(-20.7233, abs=1e-3)


class TestSelfDistillation:
    def test_by_hand(self) -> None:
        # T = 2. Weak (2 ln 3, 0) is (3/4, 1/4), strong (0, 0) is (1/2, 1/2):
        # KL = 3/4 ln 3/2 + 1/4 ln 1/2 = 0.130812. The second sample is wrong, and does not count.
        weak = torch.tensor([[2 * math.log(3), 0.0], [5.0, 0.0]])
        strong = torch.zeros(2, 2)
        found = taught_by_itself(weak, strong, torch.tensor([0, 1]), 2.0)
        assert float(found) == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), rel=1e-5)

    def test_the_gradient_reaches_the_strong_view_alone(self) -> None:
        weak = torch.tensor([[1.0, 0.0], [3.0, 0.0]], requires_grad=True)
        strong = torch.zeros(2, 2, requires_grad=True)
        torch.autograd.backward(taught_by_itself(weak, strong, torch.tensor([0, 1]), 1.5))
        assert weak.grad is None
        assert strong.grad is not None
        assert float(strong.grad[0].abs().sum()) > 0
        assert strong.grad[1].tolist() == [0.0, 0.0]

    def test_nothing_right_is_nothing_to_learn(self) -> None:
        strong = torch.zeros(1, 2, requires_grad=True)
        found = taught_by_itself(torch.tensor([[1.0, 0.0]]), strong, torch.tensor([1]), 1.5)
        torch.autograd.backward(found)
        assert float(found.detach()) == 0.0
        assert strong.grad is not None
        assert strong.grad.tolist() == [[0.0, 0.0]]

    def test_its_weight_grows(self) -> None:
        # r counts from 0: rounds 1, 26 and 51 are 0, r_w/2 and r_w.
        method = FedYoYo()
        assert [method.ramp(r) for r in (1, 26, 51, 90)] == [0.0, 2.0, 4.0, 4.0]
        assert FedYoYo(warm_up=0).ramp(1) == 4.0

    def test_both_losses_add_up(self) -> None:
        split, x, y = model(), torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1])
        with_it, without = FedYoYo(warm_up=0), FedYoYo(lam=0)
        values = []
        for method in (with_it, without):
            local = started(method, split)
            local.index = torch.tensor([0, 2])
            values.append(float(method.batch_loss(local, x, y).detach()))
        assert values[0] == pytest.approx(values[1], rel=1e-6)  # equal views agree


def test_the_server_keeps_a_moving_average() -> None:
    method = FedYoYo()
    first = method.renewed(None, torch.tensor([3.0, 0.0]))
    assert first.tolist() == [4.0, 1.0]
    second = method.renewed(first, torch.tensor([13.0, 10.0]))
    assert second.tolist() == pytest.approx([0.9 * 4 + 1.4, 0.9 + 1.1])
    code = FedYoYo(effective="code")
    assert code.renewed(None, torch.tensor([1e6, 3.0])).tolist() == [4.0, 4.0]
    assert code.renewed(first, torch.tensor([3.0, 1e6])).tolist() == pytest.approx([4.0, 1.0])


def test_a_round_has_two_exchanges_and_c_numbers_more_each_way() -> None:
    result = run(tiny.experiment(FedYoYo(local=tiny.quick())))
    size = 4 * sum(t.numel() for t in result.tensors.values())
    for record in result.history:
        # Four clients: twice the model down, and four numbers of four bytes; up the model, samples
        # and steps, and four numbers.
        assert record["bytes_down"] == 4 * (2 * size + 16)
        assert record["bytes_up"] == 4 * (size + 16 + 16)
    assert isinstance(result.state, FedYoYoState)
    assert result.state.effective is not None
    assert bool((result.state.effective >= 1).all())


def test_the_strong_view_is_cut_and_changed() -> None:
    method, split = FedYoYo(), SplitModel(tiny.plain_model())
    from fedtail.setting import prepare

    federation = prepare(tiny.experiment()).federation
    data = federation.client(0)
    client = tiny.client(federation, 0, split)
    told = {"effective/classes": torch.ones(4)}
    payload = Payload({**grouped("model", split.tensors()), **told})
    aux: Views = method.start(payload, client).aux
    assert aux.strong.augment.auto
    assert aux.strong.augment.cutout == 4  # half of eight
    weak, _ = data.batch(torch.arange(12))
    strong, _ = aux.strong.batch(torch.arange(12), aux.generator)
    assert not torch.equal(weak, strong)
    assert FedYoYo(auto=False, cutout=0).start(payload, client).aux.strong.augment == data.augment
