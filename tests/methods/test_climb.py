"""CLIMB by hand: two clients, two rounds; and the case in which it is FedAvg."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from fedtail import CLIMB, FedAvg, LocalTraining, run
from fedtail.data.federation import Federation
from fedtail.methods.climb import CLIMBState
from fedtail.models import SplitModel
from fedtail.protocol import Payload, Update, grouped

# Client 0 has one sample of class 0, client 1 three of class 1; x = 1 throughout.
DATA = tiny.federation([[1.0]] * 4, [0, 1, 1, 1], [[0], [1, 2, 3]])
STEP = LocalTraining(lr=1.0, batch_size=10)
L = math.log(3) / 2


def linear(weight: tuple[float, float] = (math.log(3), 0.0)) -> SplitModel:
    """Return softmax regression without bias; the default gives the softmax (3/4, 1/4)."""
    model = SplitModel(nn.Sequential(nn.Linear(1, 2, bias=False)))
    model.load({"0.weight": torch.tensor(weight).reshape(2, 1)})
    return model


def one_round(
    method: CLIMB, s: CLIMBState, model: SplitModel, data: Federation = DATA
) -> CLIMBState:
    """Carry one round through."""
    server = tiny.server(model, len(data))
    tasks = [(k, method.broadcast(s, server)) for k in range(len(data))]
    updates = [Update(k, method.train(p, tiny.client(data, k, model))) for k, p in tasks]
    return tiny.after(method, s, updates, server)


def test_two_rounds_by_hand() -> None:
    # η_D = 2, ε = L/2 with L = ln √3 = 0.549306.
    # Round 1, softmax (3/4, 1/4). Losses: f_0 = ln 4/3, f_1 = ln 4, mean ln(4/√3), so that
    # f_1 - mean = L and f_0 - mean = -L. The duals are still 0, so this is FedAvg: gradients
    # p - e_y = (-1/4, 1/4) and (3/4, -3/4), w = (ln 3, 0) + (1 (1/4, -1/4) + 3 (-3/4, 3/4)) / 4
    # = (ln 3 - 1/2, 1/2). Then λ_0 = [2 (-L - L/2)]_+ = 0 and λ_1 = [2 (L - L/2)]_+ = L.
    method = CLIMB(local=STEP, dual_lr=2.0, epsilon=L / 2)
    model = linear()
    s = one_round(method, method.new_state(model.tensors()), model)
    weight = s.model["0.weight"].flatten().tolist()
    assert weight == pytest.approx([math.log(3) - 0.5, 0.5], rel=1e-6)
    assert s.duals == {"1": pytest.approx(L, rel=1e-5)}

    # Round 2. q = softmax_0 = 3/(3 + e) = 0.524633. Weights 1 (1 - L/2) and 3 (1 + L/2), since the
    # mean dual is L/2. The clients move by (1 - q, q - 1) and (-q, q): the mean of the first
    # components is (0.725347 · 0.475367 - 3.823959 · 0.524633) / 4.549306 = -0.365192.
    # Losses: f_1 - f_0 = ln(q / (1 - q)) = ln 3 - 1, and f_1 exceeds the mean by half of it:
    # λ_1 = L + 2 ((ln 3 - 1)/2 - L/2) = ln 3 - 1 = 0.098612; λ_0 stays 0.
    s = one_round(method, s, model)
    moved = math.log(3) - 0.5 - 0.365192
    assert s.model["0.weight"].flatten().tolist() == pytest.approx([moved, 0.865192], abs=2e-6)
    assert s.duals == {"1": pytest.approx(math.log(3) - 1, abs=2e-6)}


@pytest.mark.parametrize(
    "model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model], ids=lambda m: m.__name__
)
def test_without_a_dual_step_it_is_fedavg_to_the_bit(model: Any) -> None:
    local = tiny.quick(momentum=0.9)
    ours = run(tiny.experiment(CLIMB(local=local, dual_lr=0), model))
    assert ours.digest == run(tiny.experiment(FedAvg(local=local), model)).digest
    other = run(tiny.experiment(CLIMB(local=local, dual_lr=5, epsilon=0), model))
    assert other.digest != ours.digest


def test_the_mean_loss_does_not_grow_with_the_number_of_tensors() -> None:
    # An implementation is known that adds up the mean once for each tensor of the model: it is then
    # so large that no loss exceeds it, and CLIMB is FedAvg. Here the model has four tensors.
    # All weights are 0 but one bias of the head, ln 3: the softmax is (3/4, 1/4) again, the losses
    # are ln 4/3 and ln 4, and λ_1 = 2 (ln 4 - ln(4/√3)) = 2 L.
    model = SplitModel(nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 2)))
    start = {name: torch.zeros_like(t) for name, t in model.tensors().items()}
    start["2.bias"] = torch.tensor([math.log(3), 0.0])
    assert len(start) == 4
    method = CLIMB(local=STEP, dual_lr=2.0, epsilon=0.0)
    s = one_round(method, method.new_state(start), model)
    assert s.duals == {"1": pytest.approx(2 * L, rel=1e-5)}


def update(client: int, weight: float, samples: int, loss: float) -> Update:
    tensors = grouped("model", {"0.weight": torch.full((2, 1), weight)})
    return Update(client, Payload(tensors, {"samples": samples, "steps": 1, "loss": loss}))


def aggregated(method: CLIMB, duals: dict[str, float], updates: list[Update]) -> CLIMBState:
    model = linear()
    s = CLIMBState(model.tensors(), duals=duals)
    return tiny.after(method, s, updates, tiny.server(model, 4))


def test_a_weight_is_never_negative() -> None:
    # λ = (0, 5), mean 2.5: 1 + 0 - 2.5 = -1.5 counts as 0, so client 1 is alone.
    s = aggregated(CLIMB(), {"1": 5.0}, [update(0, 1.0, 9, 1.0), update(1, 2.0, 1, 1.0)])
    assert s.model["0.weight"].flatten().tolist() == [2.0, 2.0]


def test_the_step_can_be_divided_and_the_duals_capped_as_in_the_code() -> None:
    # Mean loss 2; client 1 exceeds it by 2. η_D = 4, ε = 0: the step is 8, divided by the four
    # clients there are (not the two of this round) 2. λ_1 = 1 + 8 = 9, 1 + 2 = 3, or 5 at most.
    updates = [update(0, 1.0, 1, 0.0), update(1, 1.0, 1, 4.0)]
    given = {"dual_lr": 4.0, "epsilon": 0.0}
    assert aggregated(CLIMB(**given), {"1": 1.0}, updates).duals == {"1": 9.0}
    assert aggregated(CLIMB(**given, divide=True), {"1": 1.0}, updates).duals == {"1": 3.0}
    assert aggregated(CLIMB(**given, cap=5.0), {"1": 1.0}, updates).duals == {"1": 5.0}


def test_the_means_are_over_those_that_answered_and_the_others_keep_their_dual() -> None:
    # Client 3 was not asked; its dual of 7 is in no mean, and stays. λ of the cohort: (1, 0), mean
    # 1/2, weights 1.5 and 0.5: w = (1.5 · 4 + 0.5 · 0) / 2 = 3.
    method = CLIMB(dual_lr=1.0, epsilon=0.0)
    updates = [update(0, 4.0, 1, 1.0), update(1, 0.0, 1, 1.0)]
    s = aggregated(method, {"0": 1.0, "3": 7.0}, updates)
    assert s.model["0.weight"].flatten().tolist() == [3.0, 3.0]
    assert s.duals == {"0": 1.0, "3": 7.0}


def test_a_dual_falls_when_its_constraint_holds_and_leaves_the_table_at_zero() -> None:
    method = CLIMB(dual_lr=1.0, epsilon=0.5)
    one = [update(0, 1.0, 1, 3.0)]  # alone, its loss is the mean: λ falls by ε
    assert aggregated(method, {"0": 2.0}, one).duals == {"0": 1.5}
    assert aggregated(method, {"0": 0.25}, one).duals == {}


def test_a_client_without_samples_has_no_say() -> None:
    # Its loss of 0 would pull the mean down: then λ_0 would be 0.5, not 0.
    method = CLIMB(dual_lr=1.0, epsilon=0.0)
    s = aggregated(method, {}, [update(0, 3.0, 2, 1.0), update(1, 9.0, 0, 0.0)])
    assert s.duals == {}
    assert s.model["0.weight"].flatten().tolist() == [3.0, 3.0]
    empty = aggregated(method, {"0": 1.0}, [update(1, 9.0, 0, 0.0)])
    assert empty.duals == {"0": 1.0}
    assert torch.equal(empty.model["0.weight"], linear().tensors()["0.weight"])


def test_a_client_without_samples_answers_nonetheless() -> None:
    data = tiny.federation([[1.0]], [0], [[0], []])
    payload = Payload(grouped("model", linear().tensors()))
    reply = CLIMB().train(payload, tiny.client(data, 1, linear()))
    assert reply.scalars == {"samples": 0, "steps": 0, "loss": 0.0}


def test_the_loss_is_that_of_the_received_model_on_samples_as_they_are() -> None:
    method = CLIMB(local=STEP)
    reply = method.train(
        Payload(grouped("model", linear().tensors())), tiny.client(DATA, 1, linear())
    )
    assert reply.scalars["loss"] == pytest.approx(math.log(4), rel=1e-6)


def test_what_it_logs() -> None:
    method = CLIMB(local=tiny.quick(), dual_lr=2.0, epsilon=0.0)
    result = run(tiny.experiment(method))
    told = result.metrics["method"]
    assert set(told) == {"loss_mean", "loss_max", "dual_max", "constrained"}
    assert told["dual_max"] == max(result.state.duals.values()) > 0
    assert told["constrained"] == len(result.state.duals)
    assert told["loss_max"] > told["loss_mean"]
