"""FedAlign: a narrow last block by hand, and what is left without it."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import FedAlign, FedAvg, FedtailError, LocalTraining, run
from fedtail.losses import LocalLoss, LossContext
from fedtail.models import Output, ResNet8, SplitModel
from fedtail.protocol import Payload, grouped


class First(LocalLoss):
    """z_0."""

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        return output.logits[:, 0].sum()


def chain() -> SplitModel:
    """h = diag(2, 1) x, z = (h_0, h_1)."""
    model = SplitModel(nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)))
    model.load({"0.weight": torch.diag(torch.tensor([2.0, 1.0])), "1.weight": torch.eye(2)})
    return model


DATA = tiny.federation([[3.0, 4.0]], [0], [[0]])


def test_one_step_by_hand() -> None:
    # x = (3, 4), h = (6, 4), L = z_0 = 6. The block has the matrix x hᵀ with σ_t = 5 √52; half of
    # it is h_0 = w x_0 = 6 with σ_s = 3 · 6 = 18 = 9 w, w = 2. D = (18 - 5 √52)².
    # The term is μ (6 / D) D: its gradient for w is μ (6 / D) 2 (18 - 5 √52) 9
    # = 108 μ / (18 - 5 √52). L itself gives w_00 x_0 = 3, w_01 x_1 = 4, and the head h = (6, 4).
    method = FedAlign(local=LocalTraining(lr=1.0), loss=First(), mu=0.5, width=0.5)
    payload = Payload(grouped("model", chain().tensors()))
    reply = method.train(payload, tiny.client(DATA, 0, chain()))
    term = 108 * 0.5 / (18 - 5 * 52**0.5)
    first = reply.tensors["model/0.weight"].flatten().tolist()
    assert first == pytest.approx([2 - 3 - term, -4, 0, 1], rel=1e-5)
    assert reply.tensors["model/1.weight"].flatten().tolist() == [-5, -4, 0, 1]
    assert reply.scalars["lipschitz_gap"] == pytest.approx((18 - 5 * 52**0.5) ** 2, rel=1e-5)


def test_the_term_is_mu_times_the_loss() -> None:
    method = FedAlign(local=LocalTraining(lr=1.0), loss=First(), mu=0.5, width=0.5)
    run_ = method.start(Payload(grouped("model", chain().tensors())), tiny.client(DATA, 0, chain()))
    loss = method.batch_loss(run_, torch.tensor([[3.0, 4.0]]), torch.tensor([0]))
    assert loss.item() == pytest.approx(6 * 1.5)


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model])
def test_without_the_term_it_is_fedavg_to_the_last_bit(model: Any) -> None:
    local = tiny.quick(momentum=0.9, clip=10.0)
    plain = run(tiny.experiment(FedAvg(local=local), model))
    assert run(tiny.experiment(FedAlign(local=local, mu=0.0), model)).digest == plain.digest
    assert run(tiny.experiment(FedAlign(local=local), model)).digest != plain.digest


def residual() -> nn.Module:
    """Return a small residual network with BatchNorm."""
    return ResNet8(width=8).build(tiny.IMAGE, tiny.CLASSES).module


def test_at_full_width_nothing_is_left_to_align() -> None:
    # Without BatchNorm the full block and its copy give the same bits, D = 0, and no NaN.
    local = tiny.quick()
    plain = run(tiny.experiment(FedAvg(local=local)))
    full = run(tiny.experiment(FedAlign(local=local, width=1.0)))
    assert full.digest == plain.digest
    assert full.history[-1]["method"]["lipschitz_gap"] == 0.0


def test_a_residual_network_with_batch_norm() -> None:
    # One-sample and one-class clients are among them.
    method = FedAlign(local=tiny.quick(momentum=0.9, nesterov=True, weight_decay=1e-4, clip=10.0))
    result = run(tiny.experiment(method, residual))
    assert all(not record["dropped"] for record in result.history)
    assert all(bool(torch.isfinite(t).all()) for t in result.tensors.values())
    assert result.history[-1]["method"]["lipschitz_gap"] > 0


def test_running_statistics_are_those_of_the_full_width() -> None:
    # The first batch of one step: what BatchNorm remembers does not depend on the term.
    rows = [[0.0, 1.0, 4.0, 2.0], [2.0, 1.0, 0.0, 3.0], [5.0, 2.0, 2.0, 1.0]]
    data = tiny.federation(rows, [0, 1, 0], [[0, 1, 2]])

    def model() -> SplitModel:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
            return SplitModel(nn.Sequential(block, nn.Linear(4, 2)))

    payload = Payload(grouped("model", model().tensors()))
    one, other = (
        FedAlign(local=LocalTraining(lr=0.1, steps=1), mu=mu).train(
            payload, tiny.client(data, 0, model())
        )
        for mu in (0.0, 0.45)
    )
    for name in ("0.1.running_mean", "0.1.running_var", "0.1.num_batches_tracked"):
        assert torch.equal(one.tensors[f"model/{name}"], other.tensors[f"model/{name}"])
    assert not torch.equal(one.tensors["model/0.0.weight"], other.tensors["model/0.0.weight"])


def test_dead_features_give_no_nan() -> None:
    # x = 0: both Lipschitz estimates are 0, and the term is nothing.
    data = tiny.federation([[0.0, 0.0]], [0], [[0]])
    payload = Payload(grouped("model", chain().tensors()))
    reply = FedAlign(local=LocalTraining(lr=1.0)).train(payload, tiny.client(data, 0, chain()))
    assert all(bool(torch.isfinite(t).all()) for t in reply.tensors.values())
    assert reply.scalars["lipschitz_gap"] == 0.0


def test_another_block_can_be_named() -> None:
    named = FedAlign(block="layer2", local=tiny.quick())
    last = FedAlign(local=tiny.quick())
    digests = {run(tiny.experiment(m, residual, rounds=1)).digest for m in (named, last)}
    assert len(digests) == 2


def test_a_block_that_is_not_there_is_refused_before_work_starts() -> None:
    with pytest.raises(FedtailError, match=r"method.block = 'layer9' is no part of the model"):
        run(tiny.experiment(FedAlign(block="layer9"), residual))


def test_a_model_without_a_block_is_refused_before_work_starts() -> None:
    def regression() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(192, tiny.CLASSES))

    with pytest.raises(FedtailError, match="no block with weights before its classifier '1'"):
        run(tiny.experiment(FedAlign(), regression))
    run(tiny.experiment(FedAlign(mu=0.0), regression, rounds=1))


def test_the_hooks_do_not_stay() -> None:
    model = chain()
    payload = Payload(grouped("model", model.tensors()))
    FedAlign(local=LocalTraining(lr=1.0)).train(payload, tiny.client(DATA, 0, model))
    block = model.module.get_submodule("0")
    assert not block._forward_hooks and not block._forward_pre_hooks


def test_what_is_logged_is_the_mean_over_steps() -> None:
    # With hardly a rate each of three steps has the D of the first test.
    method = FedAlign(local=LocalTraining(lr=1e-7, steps=3), loss=First(), mu=0.5, width=0.5)
    payload = Payload(grouped("model", chain().tensors()))
    reply = method.train(payload, tiny.client(DATA, 0, chain()))
    assert reply.scalars["lipschitz_gap"] == pytest.approx((18 - 5 * 52**0.5) ** 2, rel=1e-3)


def test_the_model_is_refused_when_it_is_built() -> None:
    model = SplitModel(nn.Sequential(nn.Identity(), nn.Linear(2, 2)))
    with pytest.raises(FedtailError, match="no block with weights"):
        FedAlign().build_model(model)
    assert FedAlign(mu=0.0).build_model(model) is model
