"""FedAvg by hand: two clients, a linear model, one step each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import FedAvg, GlobalPrior, LocalTraining, ServerSGD
from fedtail.data.federation import Federation
from fedtail.losses import BalancedSoftmax, LocalLoss, LossContext
from fedtail.methods import ModelState
from fedtail.models import Output, SplitModel
from fedtail.protocol import Payload, Update, grouped

Avg = FedAvg[ModelState]

# Client 0 has one sample of class 0, client 1 three of class 1; x = 1 throughout.
DATA = tiny.federation([[1.0]] * 4, [0, 1, 1, 1], [[0], [1, 2, 3]])
STEP = LocalTraining(lr=1.0, batch_size=10)


def linear() -> SplitModel:
    """Return softmax regression without bias, starting from zero."""
    model = SplitModel(nn.Sequential(nn.Linear(1, 2, bias=False)))
    nn.init.zeros_(model.module.get_parameter("0.weight"))
    return model


def one_round(
    method: Avg, model: SplitModel, data: Federation = DATA, state: ModelState | None = None
) -> tuple[ModelState, list[Update]]:
    """Carry one round through by hand."""
    server = tiny.server(model, len(data))
    old = method.init(model, server) if state is None else state
    exchange = method.round(old, server)
    tasks = next(exchange)
    assert [(task.client, task.action) for task in tasks] == [
        (k, "train") for k in range(len(data))
    ]
    updates = [
        Update(t.client, method.train(t.payload, tiny.client(data, t.client, model))) for t in tasks
    ]
    with pytest.raises(StopIteration) as end:
        exchange.send(tiny.added(method, updates, server))
    new: ModelState = end.value.value
    return new, updates


def test_one_round_by_hand() -> None:
    # From w = 0 the softmax is (1/2, 1/2), so the gradient of the mean loss is p - e_y:
    # client 0 (y = 0): (-1/2, 1/2), client 1 (y = 1): (1/2, -1/2). With lr = 1:
    # w_0 = (1/2, -1/2), w_1 = (-1/2, 1/2). n = (1, 3): w = (1 · 1/2 - 3 · 1/2) / 4 = -1/4, and 1/4.
    # A softmax is exp(log_softmax), and exp(-log 2) is 1/2 only up to rounding.
    state, updates = one_round(FedAvg(local=STEP), linear())
    sent = [u.payload.tensors["model/0.weight"].flatten().tolist() for u in updates]
    assert sent[0] == pytest.approx([0.5, -0.5])
    assert sent[1] == pytest.approx([-0.5, 0.5])
    assert [dict(u.payload.scalars) for u in updates] == [
        {"samples": 1, "steps": 1},
        {"samples": 3, "steps": 1},
    ]
    assert state.model["0.weight"].flatten().tolist() == pytest.approx([-0.25, 0.25])


@pytest.mark.parametrize(("server_lr", "weight"), [(1.0, -0.25), (0.5, -0.125), (2.0, -0.5)])
def test_the_server_goes_part_of_the_way(server_lr: float, weight: float) -> None:
    # w + η_s (mean - w) from w = 0.
    method: Avg = FedAvg(local=STEP, server_optimizer=ServerSGD(lr=server_lr))
    state, _ = one_round(method, linear())
    assert state.model["0.weight"].flatten().tolist() == pytest.approx([weight, -weight])


def test_the_server_starts_from_the_old_model() -> None:
    model = linear()
    method: Avg = FedAvg(local=STEP, server_optimizer=ServerSGD(lr=0.5))
    server = tiny.server(model, 1)
    old = ModelState({"0.weight": torch.tensor([[4.0], [0.0]])})
    update = Update(0, Payload({"model/0.weight": torch.tensor([[8.0], [2.0]])}, {"samples": 1}))
    # 4 + (8 - 4) / 2 and 0 + (2 - 0) / 2
    assert tiny.after(method, old, [update], server).model["0.weight"].flatten().tolist() == [6, 1]


def test_two_steps_use_momentum() -> None:
    # One client, y = 0, lr 1, momentum 1/2. Step 1 from w = 0: g = (-1/2, 1/2), v = g,
    # w = (1/2, -1/2). Step 2: p_1 = 1 / (1 + e), g = (-p_1, p_1), v = g + v / 2, so that
    # w_0 = 1/2 + p_1 + 1/4.
    data = tiny.federation([[1.0]], [0], [[0]])
    state, _ = one_round(FedAvg(local=STEP.but(epochs=2, momentum=0.5)), linear(), data)
    p = 1 / (1 + torch.e)
    assert state.model["0.weight"].flatten().tolist() == pytest.approx([0.75 + p, -0.75 - p])


class Sloped(LocalLoss):
    """3 z_0 + 4 z_1: a gradient of (3, 4) with norm 5."""

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        return (output.logits * torch.tensor([3.0, 4.0])).sum()


@pytest.mark.parametrize(("clip", "step"), [(1.0, (-0.6, -0.8)), (5.5, (-3, -4)), (None, (-3, -4))])
def test_gradients_are_clipped_to_the_norm(clip: float | None, step: Sequence[float]) -> None:
    data = tiny.federation([[1.0]], [0], [[0]])
    state, _ = one_round(FedAvg(local=STEP.but(clip=clip), loss=Sloped()), linear(), data)
    assert state.model["0.weight"].flatten().tolist() == pytest.approx(step, rel=1e-5)


def test_a_cohort_without_samples_keeps_the_state() -> None:
    model, method = linear(), FedAvg[ModelState](local=STEP)
    server = tiny.server(model, 1)
    old = method.init(model, server)
    update = Update(0, Payload({"model/0.weight": torch.ones(2, 1)}, {"samples": 0}))
    assert tiny.after(method, old, [update], server) is old


def test_a_client_without_samples_sends_the_model_back() -> None:
    data = tiny.federation([[1.0]], [0], [[0], []])
    state, updates = one_round(FedAvg(local=STEP), linear(), data)
    assert updates[1].payload.tensors["model/0.weight"].tolist() == [[0.0], [0.0]]
    assert dict(updates[1].payload.scalars) == {"samples": 0, "steps": 0}
    # It weighs nothing: the mean is client 0's.
    assert state.model["0.weight"].flatten().tolist() == pytest.approx([0.5, -0.5])


# BatchNorm: each client's inputs have one mean and one variance, and the statistics follow.
# Client 0: x = 0, 2 (mean 1, unbiased variance 2). Client 1: x = 4, 8, 4, 8 (mean 6, variance
# 16 / 3). With momentum 0.1 from (0, 1): mean 0.1 and 0.6, variance 0.9 + 0.1 var.
BATCHES = tiny.federation(
    [[0.0], [2.0], [4.0], [8.0], [4.0], [8.0]], [0, 1, 0, 1, 0, 1], [[0, 1], [2, 3, 4, 5]]
)
MEANS = (0.1, 0.6)


def normed() -> SplitModel:
    torch.manual_seed(0)
    return SplitModel(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)))


@pytest.fixture
def one_seed() -> Any:
    """Give initial weights that repeat, and leave the global stream as it was."""
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


@pytest.mark.usefixtures("one_seed")
class TestBuffers:
    def test_average(self) -> None:
        # n = (2, 4): (2 · 0.1 + 4 · 0.6) / 6, and the larger of the counters (1, 1).
        state, _ = one_round(FedAvg(local=STEP), normed(), BATCHES)
        assert float(state.model["0.running_mean"]) == pytest.approx(2.6 / 6)
        assert float(state.model["0.running_var"]) == pytest.approx(
            0.9 + 0.1 * (2 * 2 + 4 * 16 / 3) / 6
        )
        assert int(state.model["0.num_batches_tracked"]) == 1

    def test_first(self) -> None:
        state, updates = one_round(FedAvg(local=STEP, buffers="first"), normed(), BATCHES)
        assert float(state.model["0.running_mean"]) == pytest.approx(MEANS[0])
        # The weights are averaged all the same.
        by_hand = sum(
            n * u.payload.tensors["model/1.weight"] / 6
            for n, u in zip((2, 4), updates, strict=True)
        )
        assert torch.allclose(state.model["1.weight"], torch.as_tensor(by_hand))

    def test_the_server_rate_does_not_touch_buffers(self) -> None:
        method: Avg = FedAvg(local=STEP, server_optimizer=ServerSGD(lr=0.5))
        state, _ = one_round(method, normed(), BATCHES)
        assert float(state.model["0.running_mean"]) == pytest.approx(2.6 / 6)

    def test_local(self) -> None:
        # Prepare
        method: Avg = FedAvg(local=STEP, buffers="local")
        model, own = normed(), {k: dict[str, Tensor]() for k in (0, 1)}
        payload = Payload(grouped("model", model.tensors()))

        # Execute: two rounds with the same sent model.
        for number in (1, 2):
            for k in (0, 1):
                method.train(payload, tiny.client(BATCHES, k, model, own[k], round=number))

        # Assert: each goes on from its own, 0.9 · 0.1 + 0.1 · 1 and 0.9 · 0.6 + 0.1 · 6, though the
        # sent model says 0 both times; nothing else is remembered.
        found = [float(own[k]["buffer/0.running_mean"]) for k in (0, 1)]
        assert found == pytest.approx([0.19, 1.14])
        assert set(own[0]) == {
            "buffer/0.running_mean",
            "buffer/0.running_var",
            "buffer/0.num_batches_tracked",
        }
        assert int(own[0]["buffer/0.num_batches_tracked"]) == 2

    def test_local_statistics_are_averaged_for_testing(self) -> None:
        state, _ = one_round(FedAvg(local=STEP, buffers="local"), normed(), BATCHES)
        assert float(state.model["0.running_mean"]) == pytest.approx(2.6 / 6)

    def test_one_sample_leaves_the_statistics_alone(self) -> None:
        alone = tiny.federation([[5.0]], [0], [[0]])
        state, updates = one_round(FedAvg(local=STEP), normed(), alone)
        assert float(state.model["0.running_mean"]) == 0.0
        assert bool(torch.isfinite(updates[0].payload.tensors["model/1.weight"]).all())


def test_the_prior_is_told_with_the_model() -> None:
    method: Avg = FedAvg(local=STEP, prior=GlobalPrior(), loss=BalancedSoftmax())
    state = ModelState(linear().tensors(), torch.tensor([1.0, 3.0]))
    payload = method.broadcast(state, tiny.server(linear(), 2))
    assert payload.tensors["prior/counts"].tolist() == [1.0, 3.0]
    # Client 0 (y = 0) from w = 0 under π = (1, 3): p = (1/4, 3/4), so w_0 = 0 + 1 - 1/4.
    reply = method.train(payload, tiny.client(DATA, 0, linear()))
    assert reply.tensors["model/0.weight"].flatten().tolist() == pytest.approx([0.75, -0.75])


def test_what_a_task_may_name() -> None:
    features = {"class_totals", "feature_sums", "feature_products", "compare_heads"}
    asked_by_runs = {"assess", "input_sums", *features}
    asked_by_runs |= {"count_deviation"}
    assert FedAvg.actions() == {"train", "inform"} | asked_by_runs


def test_hooks_see_every_step() -> None:
    seen: list[str] = []

    class Hooked(FedAvg[ModelState]):
        def prepare(self, run: Any) -> Any:
            seen.append("prepare")
            return "aux"

        def after_backward(self, run: Any) -> None:
            assert run.aux == "aux"
            seen.append(f"backward {run.steps}")

        def after_step(self, run: Any) -> None:
            seen.append(f"step {run.steps}")

    method = Hooked(local=STEP.but(batch_size=2))
    payload = Payload(grouped("model", linear().tensors()))
    reply = method.train(payload, tiny.client(DATA, 1, linear()))
    assert seen == ["prepare", "backward 0", "step 0", "backward 1", "step 1"]
    assert reply.scalars["steps"] == 2


def test_frozen_parameters_stay() -> None:
    model = SplitModel(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)))
    model.module.get_parameter("0.weight").requires_grad_(False)
    before = model.tensors()
    state, _ = one_round(FedAvg(local=STEP), model)
    assert torch.equal(state.model["0.weight"], before["0.weight"])
    assert not torch.equal(state.model["1.weight"], before["1.weight"])
