"""SCAFFOLD by hand: two clients, two rounds, two steps each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import FedAvg, FedtailError, LocalTraining, LogitCalibration, Scaffold, ServerSGD, run
from fedtail.callbacks import Callback, Snapshot
from fedtail.data.federation import Federation
from fedtail.engines.executor import Done, Job, Serial
from fedtail.forms import Form, Mean
from fedtail.losses import LocalLoss, LossContext
from fedtail.methods import ModelState
from fedtail.methods.scaffold import ScaffoldState
from fedtail.models import Output, SplitModel
from fedtail.protocol import Payload, Update
from fedtail.totals import Sums

# Client 0 has one sample of class 0, client 1 one of class 1; x = 1 throughout.
DATA = tiny.federation([[1.0], [1.0]], [0, 1], [[0], [1]])
WEIGHT, CONTROL = "model/0.weight", "control/0.weight"
States = dict[int, dict[str, Tensor]]


class Quadratic(LocalLoss):
    """(z_0 - 4)² / 2 for class 0, (z_0 + 2)² / 4 for class 1: gradients z - 4 and (z + 2) / 2."""

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        z = output.logits[:, 0]
        return torch.where(y == 0, (z - 4) ** 2 / 2, (z + 2) ** 2 / 4).mean()


class Sloped(LocalLoss):
    """3 z_0 + 4 z_1: a gradient of (3, 4), whatever the weights."""

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        return (output.logits * torch.tensor([3.0, 4.0])).sum()


def linear() -> SplitModel:
    model = SplitModel(nn.Sequential(nn.Linear(1, 2, bias=False)))
    nn.init.zeros_(model.module.get_parameter("0.weight"))
    return model


def one_round(
    method: Scaffold,
    state: ScaffoldState,
    states: States,
    clients: int = 2,
    who: Sequence[int] = (0, 1),
    data: Federation = DATA,
) -> tuple[ScaffoldState, list[Update]]:
    """Carry one round through; each client keeps its state in `states`."""
    model = linear()
    server = tiny.server(model, clients)
    payload = method.broadcast(state, server)
    updates = [
        Update(k, method.train(payload, tiny.client(data, k, model, states.setdefault(k, {}))))
        for k in who
    ]
    return tiny.after(method, state, updates, server), updates


def begun(method: Scaffold) -> ScaffoldState:
    model = linear()
    return method.init(model, tiny.server(model, 2))


HALVES = Scaffold(local=LocalTraining(lr=0.5, steps=2), loss=Quadratic())


def first(tensor: Tensor) -> Fraction:
    """Return the entry that is trained; every number here is a whole number of 1/512."""
    return Fraction(float(tensor[0, 0]))


def test_two_rounds_by_hand() -> None:
    # η = 1/2, Q = 2, so that Qη = 1.
    # Round 1 from x = 0, c = c_0 = c_1 = 0:
    #   client 0, g = y - 4:       0, g = -4 → 2, g = -2 → 3;         c_0 = 0 - 3 = -3
    #   client 1, g = (y + 2) / 2: 0, g = 1 → -1/2, g = 3/4 → -7/8;   c_1 = 0 + 7/8 = 7/8
    #   x = (3 - 7/8) / 2 = 17/16, c = (-3 + 7/8) / 2 = -17/16
    states: States = {}
    state, _ = one_round(HALVES, begun(HALVES), states)
    assert first(state.model["0.weight"]) == Fraction(17, 16)
    assert first(states[0][CONTROL]) == -3
    assert first(states[1][CONTROL]) == Fraction(7, 8)
    assert first(state.control["0.weight"]) == Fraction(-17, 16)
    # Round 2 from x = 17/16, c = -17/16:
    #   client 0, c - c_0 = 31/16:  17/16, -47/16 + 31/16 = -1 → 25/16, -39/16 + 31/16 = -1/2
    #     → 29/16; c_0 = -31/16 + (17 - 29)/16 = -43/16
    #   client 1, c - c_1 = -31/16: 17/16, 49/32 - 62/32 = -13/32 → 81/64,
    #     209/128 - 248/128 = -39/128 → 363/256; c_1 = 31/16 + (272 - 363)/256 = 405/256
    #   x = (464 + 363) / 512, c = (-43/16 + 405/256) / 2 = -283/512
    state, updates = one_round(HALVES, state, states)
    assert first(updates[0].payload.tensors[WEIGHT]) == Fraction(29, 16)
    assert first(updates[1].payload.tensors[WEIGHT]) == Fraction(363, 256)
    assert first(states[0][CONTROL]) == Fraction(-43, 16)
    assert first(states[1][CONTROL]) == Fraction(405, 256)
    assert first(state.model["0.weight"]) == Fraction(827, 512)
    assert first(state.control["0.weight"]) == Fraction(-283, 512)


def test_the_control_variate_is_the_mean_gradient_and_its_change_is_sent() -> None:
    # Round 2 above: client 0 met -47/16 and -39/16 before correction, and had c_0 = -3.
    states: States = {}
    state, _ = one_round(HALVES, begun(HALVES), states)
    _, updates = one_round(HALVES, state, states)
    assert first(updates[0].payload.tensors[CONTROL]) == Fraction(-47 - 39, 32) + 3


def test_a_client_that_forgot_its_control_variate_goes_another_way() -> None:
    # The way of implementations that never store c_k: c - 0 = -17/16 is all that is added, and
    # client 0 goes 17/16, -47/16 - 17/16 = -4 → 49/16, -15/16 - 17/16 = -2 → 65/16.
    states: States = {}
    state, _ = one_round(HALVES, begun(HALVES), states)
    _, updates = one_round(HALVES, state, {})
    assert first(updates[0].payload.tensors[WEIGHT]) == Fraction(65, 16)
    _, remembered = one_round(HALVES, state, states)
    assert first(remembered[0].payload.tensors[WEIGHT]) == Fraction(29, 16)


def test_part_of_the_clients() -> None:
    # S = 1 of K = 4: c moves by a quarter of c_0⁺ - c_0 = -3, x by all of y_0 - x.
    state, _ = one_round(HALVES, begun(HALVES), {}, clients=4, who=[0])
    assert first(state.model["0.weight"]) == 3
    assert first(state.control["0.weight"]) == Fraction(-3, 4)


def test_the_server_rate_acts_on_x_and_not_on_c() -> None:
    method = HALVES.but(server_optimizer=ServerSGD(lr=0.5))
    state, _ = one_round(method, begun(method), {})
    assert first(state.model["0.weight"]) == Fraction(17, 32)
    assert first(state.control["0.weight"]) == Fraction(-17, 16)


UNEQUAL = tiny.federation([[1.0]] * 4, [0, 1, 1, 1], [[0], [1, 2, 3]])


def test_clients_weigh_the_same_unless_told_otherwise() -> None:
    # One sample against three: (3 - 7/8) / 2, or (1 · 3 - 3 · 7/8) / 4 = 3/32; c likewise.
    state, _ = one_round(HALVES, begun(HALVES), {}, data=UNEQUAL)
    assert first(state.model["0.weight"]) == Fraction(17, 16)
    method = HALVES.but(weighted=True)
    state, _ = one_round(method, begun(method), {}, data=UNEQUAL)
    assert first(state.model["0.weight"]) == Fraction(3, 32)
    assert first(state.control["0.weight"]) == Fraction(-3, 32)


@pytest.mark.parametrize(
    "fields", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"steps": 1}]
)
def test_a_constant_gradient_is_found_whatever_the_momentum(fields: dict[str, Any]) -> None:
    # All clients have the gradient (3, 4), so that c_k = (3, 4); to divide by Q instead of
    # FedNova's coefficient would give more than twice that after five steps with momentum 0.9.
    local = LocalTraining(**{"lr": 0.1, "steps": 5, **fields})
    method, states = Scaffold(local=local, loss=Sloped()), dict[int, dict[str, Tensor]]()
    state = begun(method)
    for _ in range(3):
        state, _ = one_round(method, state, states)
        assert states[0][CONTROL].flatten().tolist() == pytest.approx([3.0, 4.0], rel=1e-5)
        assert state.control["0.weight"].flatten().tolist() == pytest.approx([3.0, 4.0], rel=1e-5)


def test_the_rate_of_the_round_is_used() -> None:
    # A schedule that has come down to a tenth: c_k is the gradient all the same.
    local = LocalTraining(lr=0.1, steps=2, schedule={"name": "step", "at": [0.0], "gamma": 0.1})
    states: States = {}
    method = Scaffold(local=local, loss=Sloped())
    one_round(method, begun(method), states)
    assert states[0][CONTROL].flatten().tolist() == pytest.approx([3.0, 4.0], rel=1e-5)


def test_clipping_acts_on_the_corrected_gradient() -> None:
    # Clipped to norm 1, (3, 4) moves by (0.6, 0.8): that is what c_k can know in round 1.
    states: States = {}
    method = Scaffold(local=LocalTraining(lr=0.1, steps=2, clip=1.0), loss=Sloped())
    one_round(method, begun(method), states)
    assert states[0][CONTROL].flatten().tolist() == pytest.approx([0.6, 0.8], rel=1e-4)


def test_a_client_without_samples_keeps_its_control_variate() -> None:
    data = tiny.federation([[1.0]], [0], [[0], []])
    states: States = {1: {CONTROL: torch.full((2, 1), 5.0)}}
    state, updates = one_round(HALVES, begun(HALVES), states, data=data)
    assert states[1][CONTROL].flatten().tolist() == [5.0, 5.0]
    assert updates[1].payload.tensors[CONTROL].flatten().tolist() == [0.0, 0.0]
    # It weighs nothing: x is client 0's, and c half of c_0, the mean over both.
    assert first(state.model["0.weight"]) == 3
    assert first(state.control["0.weight"]) == Fraction(-3, 2)


def test_a_cohort_without_samples_keeps_the_state() -> None:
    data = tiny.federation([[1.0]], [0], [[], []])
    state = begun(HALVES)
    assert one_round(HALVES, state, {}, data=data)[0] is state


def test_what_was_kept_is_not_changed_in_place() -> None:
    # A client that is dropped keeps the old tensors: they must still be the old ones.
    states: States = {}
    state, _ = one_round(HALVES, begun(HALVES), states)
    old = states[0][CONTROL]
    one_round(HALVES, state, states)
    assert first(old) == -3


def test_the_model_goes_twice_as_far_down_and_up() -> None:
    state, updates = one_round(HALVES, begun(HALVES), {})
    sent = HALVES.broadcast(state, tiny.server(linear(), 2))
    assert sent.nbytes == 2 * 8
    assert updates[0].payload.nbytes == 2 * 8 + 24  # and three numbers


class Uniform(FedAvg[ModelState]):
    """FedAvg whose clients weigh the same."""

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        whole = super().train_form(task, model, classes)
        return replace(whole, how=dict.fromkeys(whole.how, Mean(by="")))


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model])
def test_the_first_round_is_fedavg_with_uniform_weights(model: Any) -> None:
    local = tiny.quick(momentum=0.9, weight_decay=0.01)
    one = run(tiny.experiment(Scaffold(local=local), model, rounds=1))
    other = run(tiny.experiment(Uniform(local=local), model, rounds=1))
    assert one.digest == other.digest
    two = run(tiny.experiment(Scaffold(local=local), model, rounds=2))
    assert two.digest != run(tiny.experiment(Uniform(local=local), model, rounds=2)).digest


class Watch(Callback):
    """Keeps the last snapshot."""

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self.last = snapshot


class LosesClient0(Serial):
    """Client 0's answers of round 2 get lost."""

    def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
        return [
            Done(None, d.state, "lost") if (job.task.client, job.clock.round) == (0, 2) else d
            for job, d in zip(jobs, super().perform(jobs), strict=True)
        ]


@pytest.mark.parametrize("hands", [Serial, LosesClient0])
def test_c_is_always_the_mean_of_all_c_k(hands: Any) -> None:
    # Whoever takes part and whoever is lost: c = Σ c_k / K, with 0 for who never trained. That
    # fails if a client sends c_k for its change, forgets it, or renews it though it was dropped.
    watch = Watch()
    method = Scaffold(local=tiny.quick(momentum=0.9))
    chosen = tiny.experiment(method, tiny.norm_model, per_round=4, rounds=5)
    tiny.run_with(chosen, hands, [watch])
    state: ScaffoldState = watch.last.state
    states = watch.last.client_states
    assert set(state.control) == {"0.weight", "0.bias", "1.weight", "1.bias", "4.weight", "4.bias"}
    for name, c in state.control.items():
        each = [kept[f"control/{name}"] for kept in states.values() if kept]
        assert len(each) > 4
        torch.testing.assert_close(c, torch.stack(each).sum(dim=0) / 6, rtol=1e-4, atol=1e-6)


def test_statistics_are_averaged_and_have_no_control_variate() -> None:
    # Means 1 and 6, momentum 0.1, one step each: (0.1 + 0.6) / 2.
    data = tiny.federation([[0.0], [2.0], [4.0], [8.0]], [0, 1, 0, 1], [[0, 1], [2, 3]])
    model = SplitModel(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)))
    method = Scaffold(local=LocalTraining(lr=0.1, steps=1))
    server = tiny.server(model, 2)
    state = method.init(model, server)
    payload = method.broadcast(state, server)
    updates = [Update(k, method.train(payload, tiny.client(data, k, model))) for k in (0, 1)]
    state = tiny.after(method, state, updates, server)
    assert float(state.model["0.running_mean"]) == pytest.approx(0.35)
    assert set(state.control) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_adam_is_refused() -> None:
    with pytest.raises(FedtailError, match=r"'scaffold' counts steps of sgd"):
        Scaffold(local=LocalTraining(optimizer="adam"))


# With FedLC's loss (Table 7 of its paper)


def test_with_calibrated_logits_the_first_round_is_fedlc_with_uniform_weights() -> None:
    local, loss = tiny.quick(), LogitCalibration()
    one = run(tiny.experiment(Scaffold(local=local, loss=loss), tiny.norm_model, rounds=1))
    other = run(tiny.experiment(Uniform(local=local, loss=loss), tiny.norm_model, rounds=1))
    assert one.digest == other.digest


def test_with_calibrated_logits_the_control_variate_is_of_that_loss() -> None:
    # One step: c_k is the gradient of the calibrated loss at x, (p̃ - e_y) with p̃ the softmax of
    # z - τ n^(-1/4). Counts (1, 16) at z = 0, τ = 1: margins 1 and 1/2.
    data = tiny.federation([[1.0]] * 17, [0] + [1] * 16, [list(range(17))])
    model, states = linear(), dict[str, Tensor]()
    method = Scaffold(local=LocalTraining(lr=0.1, batch_size=17), loss=LogitCalibration(tau=1.0))
    payload = method.broadcast(method.init(model, tiny.server(model, 1)), tiny.server(model, 1))
    method.train(payload, tiny.client(data, 0, model, states))
    p = float(torch.softmax(torch.tensor([-1.0, -0.5]), 0)[0])
    gradient = p - 1 / 17
    assert states[CONTROL].flatten().tolist() == pytest.approx([gradient, -gradient], rel=1e-4)


def test_payloads_of_the_two_groups_do_not_mix() -> None:
    _, updates = one_round(HALVES, begun(HALVES), {})
    payload: Payload = updates[0].payload
    assert set(payload.group("model")) == set(payload.group("control")) == {"0.weight"}


def test_a_parameter_that_nothing_depends_on_stays() -> None:
    # It never has a gradient to correct; what it may have moved by is nothing.
    model, method = tiny.spare_model(), Scaffold(local=LocalTraining(lr=0.5, steps=2))
    server = tiny.server(model, 2)
    payload = method.broadcast(method.init(model, server), server)
    reply = method.train(payload, tiny.client(DATA, 0, model))
    assert reply.tensors["model/spare"].tolist() == [1.0]
    assert reply.tensors["control/spare"].tolist() == [0.0]
