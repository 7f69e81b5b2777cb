"""RedGrape by hand: small heads, constant gradients, and a table of prototypes that is made up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from redgrape_toys import STEP, cloud, network, sent, started
from torch import Tensor, nn

from fedtail import FedAvg, run
from fedtail.losses import LocalLoss, LossContext
from fedtail.methods.redgrape import RedGrape
from fedtail.models import Output, SplitModel
from fedtail.protocol import Payload, Update
from fedtail.training import Linear, ServerSGD

# One client: x = 1 throughout, three samples of class 0 and one of class 1.
DATA = tiny.federation([[1.0]] * 4, [0, 0, 0, 1], [[0, 1, 2, 3]])


@pytest.fixture(autouse=True)
def one_seed() -> Iterator[None]:
    """Give initial weights that repeat, and leave the global stream as it was."""
    state = torch.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.set_rng_state(state)


def linear(method: RedGrape, bias: bool = False) -> SplitModel:
    """Return softmax regression from zero: the features are the inputs."""
    model = method.build_model(SplitModel(nn.Sequential(nn.Linear(1, 2, bias=bias))))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def weights(payload: Payload, name: str = "0.weight") -> list[float]:
    found: list[float] = payload.tensors[f"model/{name}"].flatten().tolist()
    return found


class Sloped(LocalLoss):
    """3 z_0 + 4 z_1: with x = 1 a gradient of (3, 4), norm 5, whatever the weights are."""

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        return (output.logits.mean(dim=0) * torch.tensor([3.0, 4.0])).sum()


# One step, Eq. 12 and 13


def test_one_step_by_hand() -> None:
    # From zero p = (1/2, 1/2). g_local = mean of p - e_y = (1/2 - 3/4, 1/2 - 1/4) = (-1/4, 1/4).
    # T = 2: class 0 has real data, its gradient is (-1/2, 1/2); class 1 has G_1 = (2, -2).
    # g_bal = ((-1/2, 1/2) + (2, -2)) / 2 = (3/4, -3/4), three times as long as g_local:
    # W = 0 + (1/4, -1/4) - 0.1 · (1/4, -1/4), and Ŵ = (1/4, -1/4).
    method = RedGrape(per_class=2, local=STEP)
    model = linear(method)
    found = method.train(sent(model, {1: [[2.0], [-2.0]]}), tiny.client(DATA, 0, model))
    assert weights(found) == pytest.approx([0.225, -0.225])
    assert weights(found, "supplementary.weight") == pytest.approx([0.25, -0.25])
    assert found.scalars["balanced_classes"] == 1
    assert found.scalars["local_norm"] == pytest.approx(0.25 * 2**0.5)
    assert found.scalars["balanced_norm"] == pytest.approx(0.75 * 2**0.5)
    assert found.scalars["cosine"] == pytest.approx(-1)


def test_the_class_gradients_of_the_starting_point_are_sent() -> None:
    # At zero: class 0 asks for (-1/2, 1/2), class 1 for (1/2, -1/2), whatever was trained since.
    method = RedGrape(per_class=2, local=STEP.but(epochs=3))
    model = linear(method)
    found = method.train(sent(model), tiny.client(DATA, 0, model))
    assert found.tensors["grad/classes"].tolist() == [0, 1]
    assert found.tensors["grad/weight"].tolist() == [[[-0.5], [0.5]], [[0.5], [-0.5]]]


@pytest.mark.parametrize("second_head", [True, False])
def test_class_gradients_are_those_of_the_main_head_alone(second_head: bool) -> None:
    method = RedGrape(local=STEP, second_head=second_head)
    data, model = cloud([0, 0, 2, 2, 2, 2]), network(method, norm=True)
    client, received = tiny.client(data, 0, model), sent(model)
    found = method.train(received, client)
    assert found.tensors["grad/classes"].tolist() == [0, 2]

    # Assert: autograd, in evaluation mode, at what was received.
    model.load(received.group("model"))
    model.eval()
    x, y = client.data.batch(torch.arange(6))
    for row, c in enumerate([0, 2]):
        loss = nn.functional.cross_entropy(model(x[y == c]), y[y == c])
        weight, bias = torch.autograd.grad(loss, list(model.classifier.parameters()))
        assert torch.allclose(found.tensors["grad/weight"][row], weight, atol=1e-6)
        assert torch.allclose(found.tensors["grad/bias"][row], bias, atol=1e-6)


def test_all_classes_real_is_the_gradient_of_the_balanced_set() -> None:
    method = RedGrape(per_class=2, local=STEP)
    data, model = cloud([0, 0, 0, 1, 1, 2, 2, 2, 2]), network(method)
    odd = {c: [[9.0] * 4] * 3 for c in range(3)}
    state = started(method, sent(model, odd), tiny.client(data, 0, model))
    assert sorted(state.aux.y.tolist()) == [0, 0, 1, 1, 2, 2]
    loss = nn.functional.cross_entropy(model(state.aux.x), state.aux.y)
    by_hand = torch.autograd.grad(loss, list(model.classifier.parameters()))
    found = method.balanced_gradient(state)
    assert torch.allclose(found["weight"], by_hand[0], atol=1e-6)
    assert torch.allclose(found["bias"], by_hand[1], atol=1e-6)


@pytest.mark.parametrize("norm", [False, True])
def test_no_class_real_is_the_mean_prototype(norm: bool) -> None:
    # T = 5 is more than any class has: (1 + 2 + 6) / 3, and its sum over four columns.
    method = RedGrape(per_class=5, local=STEP)
    data, model = cloud([0, 0, 1, 2]), network(method, norm)
    rows = {c: [[value] * 4] * 3 for c, value in enumerate((1.0, 2.0, 6.0))}
    state = started(method, sent(model, rows), tiny.client(data, 0, model))
    found = method.balanced_gradient(state)
    assert found["weight"].tolist() == [[3.0] * 4] * 3
    assert found["bias"].tolist() == [12.0] * 3
    assert not len(state.aux.y)


def test_the_extra_step_is_as_long_as_the_local_gradient_for_each_tensor() -> None:
    method = RedGrape(per_class=2, lam=0.3, rebalance="outside", local=STEP.but(lr=0.5, clip=0.001))
    data, model = cloud([0, 0, 0, 1, 2, 2]), network(method)
    state = started(
        method, sent(model, {1: [[1.0, 2.0, 3.0, 4.0]] * 3}), tiny.client(data, 0, model)
    )
    model.train()

    # Execute: up to the optimiser; the gradient is not clipped when its norm is taken.
    state.optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(method.batch_loss(state, *state.client.data.batch(torch.arange(6))))
    method.after_backward(state)
    local = [p.grad.norm() for p in model.classifier.parameters() if p.grad is not None]
    before = [p.detach().clone() for p in model.classifier.parameters()]
    method.after_step(state)

    # Assert: η λ ‖g_local‖, for the weight and for the bias by itself.
    after = model.classifier.parameters()
    moved = [float((b - a.detach()).norm()) for b, a in zip(before, after, strict=True)]
    assert moved == pytest.approx([0.5 * 0.3 * float(norm) for norm in local], rel=1e-5)
    assert moved[0] != pytest.approx(moved[1])


@pytest.mark.parametrize("norm", [False, True])
def test_encoder_and_second_head_do_not_see_the_balanced_set(norm: bool) -> None:
    # One step from the same point, with λ = 0 and with λ = 1: only W differs.
    data, found = cloud([0, 0, 0, 1, 2, 2]), []
    start = network(RedGrape(), norm)
    for lam in (0.0, 1.0):
        method = RedGrape(per_class=2, lam=lam, local=STEP)
        rows = {1: [[1.0, 2.0, 3.0, 4.0]] * 3}
        found.append(method.train(sent(start, rows), tiny.client(data, 0, network(method, norm))))
    plain, balanced = (payload.group("model") for payload in found)
    different = {name for name in plain if not torch.equal(plain[name], balanced[name])}
    assert different == {"3.weight", "3.bias"}


# Inside or outside the optimiser


@pytest.mark.parametrize(
    ("rebalance", "local", "expected"),
    [
        # g_local = (3, 4), g_bal in the direction (1, 0): the extra gradient is 0.1 (5, 0).
        # Momentum 1/2, two steps: outside 2.5 (3, 4) + 2 (1/2, 0), inside 2.5 (3.5, 4).
        ("outside", {"epochs": 2, "momentum": 0.5}, (-8.5, -10.0)),
        ("inside", {"epochs": 2, "momentum": 0.5}, (-8.75, -10.0)),
        # Clipped to 1: outside (0.6, 0.8) + (0.5, 0), inside (3.5, 4) / sqrt(28.25).
        ("outside", {"clip": 1.0}, (-1.1, -0.8)),
        ("inside", {"clip": 1.0}, (-3.5 / 28.25**0.5, -4 / 28.25**0.5)),
    ],
)
def test_the_extra_step_and_the_optimiser(
    rebalance: str, local: dict[str, Any], expected: Sequence[float]
) -> None:
    method = RedGrape.model_validate(
        {"per_class": 5, "second_head": False, "rebalance": rebalance, "loss": Sloped()}
        | {"local": STEP.but(**local)}
    )
    model = linear(method)
    payload = sent(model, {0: [[1.0], [0.0]], 1: [[2.0], [0.0]]})
    found = method.train(payload, tiny.client(DATA, 0, model))
    assert weights(found) == pytest.approx(expected, rel=1e-5)
    assert found.scalars["local_norm"] == pytest.approx(5)  # the mean over all steps


def test_lambda_may_decay() -> None:
    # Linear from 0.1 to 0 over four rounds: 0.1, 0.075, 0.05, 0.025.
    method = RedGrape(
        per_class=5, second_head=False, loss=Sloped(), local=STEP, lam_schedule=Linear()
    )
    model = linear(method)
    payload = sent(model, {0: [[1.0], [0.0]], 1: [[1.0], [0.0]]})
    found = [
        weights(method.train(payload, tiny.client(DATA, 0, model, round=t, rounds=4)))[0]
        for t in (1, 2, 3, 4)
    ]
    assert found == pytest.approx([-3 - 5 * lam for lam in (0.1, 0.075, 0.05, 0.025)])


# Without λ


def test_without_rebalancing_the_heads_are_one_with_twice_the_rate() -> None:
    # Both heads get the same gradient, so W + Ŵ moves by 2 η v and W - Ŵ not at all.
    method = RedGrape(lam=0, local=STEP.but(lr=0.1, momentum=0.9, epochs=30))
    data, model = cloud([0, 0, 0, 1, 2, 2]), network(method)
    start = model.tensors()
    found = method.train(sent(model), tiny.client(data, 0, model)).group("model")

    # Execute: FedAvg's client with W0 + Ŵ0 and head rate 2 η.
    single = network(RedGrape(second_head=False))
    heads = {f"3.{n}": start[f"3.{n}"] + start[f"supplementary.{n}"] for n in ("weight", "bias")}
    single.load({n: heads.get(n, t) for n, t in start.items() if not n.startswith("supp")})
    own, head = (list(single.module.get_submodule(name).parameters()) for name in ("0", "3"))
    groups: list[dict[str, Any]] = [{"params": own}, {"params": head, "lr": 0.2}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    x, y = data.client(0).batch(torch.arange(6))
    for _ in range(30):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(single(x), y))
        optimizer.step()

    # Assert
    for name, tensor in single.tensors().items():
        other = found.get(f"supplementary.{name.removeprefix('3.')}", torch.zeros(()))
        sum_ = found[name] + other if name.startswith("3.") else found[name]
        assert torch.allclose(sum_, tensor, atol=1e-5), name
    for n in ("weight", "bias"):
        before = start[f"3.{n}"] - start[f"supplementary.{n}"]
        assert torch.allclose(found[f"3.{n}"] - found[f"supplementary.{n}"], before, atol=1e-5)


def test_without_second_head_and_lambda_it_is_fedavg() -> None:
    chosen = {"local": tiny.quick(momentum=0.9)}
    plain = run(tiny.experiment(FedAvg(**chosen), tiny.norm_model))
    found = run(tiny.experiment(RedGrape(lam=0, second_head=False, **chosen), tiny.norm_model))
    assert found.digest == plain.digest


# Prototypes that are not there


def test_without_any_prototype_nothing_is_rebalanced() -> None:
    # The first round: W and Ŵ take the same step, (1/4, -1/4), though class 0 has real data.
    method = RedGrape(per_class=2, local=STEP)
    model = linear(method)
    found = method.train(sent(model), tiny.client(DATA, 0, model))
    assert weights(found) == weights(found, "supplementary.weight") == pytest.approx([0.25, -0.25])
    for name in ("balanced_classes", "local_norm", "balanced_norm", "cosine"):
        assert found.scalars[name] == 0


def test_without_any_prototype_real_data_may_be_used() -> None:
    # g_bal = (-1/2, 1/2) / 2, in the direction of g_local: 1/4 + 0.1 · 1/4.
    method = RedGrape(per_class=2, local=STEP, without_prototypes="real")
    model = linear(method)
    found = method.train(sent(model), tiny.client(DATA, 0, model))
    assert weights(found) == pytest.approx([0.275, -0.275])


@pytest.mark.parametrize(("unreported", "total"), [("mean", 3 + 5 + 4.0), ("zero", 3 + 5.0)])
def test_a_class_that_nobody_ever_reported(unreported: Any, total: float) -> None:
    # Four classes: 0 has real data (gradient g), 1 and 2 have G = 3 and 5, 3 has none.
    method = RedGrape(per_class=2, local=STEP, unreported=unreported)
    data = tiny.federation([[1.0, 0.0]] * 2, [0, 0], [[0, 1]], classes=4)
    model = network(method, classes=4)
    rows = {c: [[v] * 4] * 4 for c, v in ((0, 9.0), (1, 3.0), (2, 5.0))}
    state = started(method, sent(model, rows), tiny.client(data, 0, model))
    assert state.aux.missing["weight"].tolist() == [[total] * 4] * 4
    own = torch.autograd.grad(
        nn.functional.cross_entropy(model(state.aux.x), state.aux.y),
        list(model.classifier.parameters()),
    )
    found = method.balanced_gradient(state)["weight"]
    assert torch.allclose(found, (own[0] + total) / 4)


def test_a_balanced_gradient_of_zero_gives_no_step() -> None:
    method = RedGrape(per_class=5, local=STEP)
    model = linear(method)
    payload = sent(model, {0: [[0.0], [0.0]], 1: [[0.0], [0.0]]})
    found = method.train(payload, tiny.client(DATA, 0, model))
    assert weights(found) == pytest.approx([0.25, -0.25])
    assert found.scalars["balanced_norm"] == found.scalars["cosine"] == 0


def test_a_local_gradient_of_zero_gives_no_step() -> None:
    class Flat(LocalLoss):
        def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
            return 0 * output.logits.sum()

    method = RedGrape(per_class=2, local=STEP, loss=Flat())
    model = linear(method)
    found = method.train(sent(model, {1: [[2.0], [-2.0]]}), tiny.client(DATA, 0, model))
    assert weights(found) == [0.0, 0.0]


def test_what_was_received_is_not_changed() -> None:
    method = RedGrape(per_class=2, local=STEP)
    model = linear(method, bias=True)
    payload = sent(model, {0: [[1.0], [3.0]], 1: [[2.0], [-2.0]]})
    before = {name: t.clone() for name, t in payload.tensors.items()}
    method.train(payload, tiny.client(DATA, 0, model))
    assert all(torch.equal(payload.tensors[name], t) for name, t in before.items())


def test_a_client_without_samples_reports_no_class() -> None:
    method = RedGrape(local=STEP)
    data = tiny.federation([[1.0]], [0], [[0], []])
    model = linear(method)
    found = method.train(sent(model, {1: [[2.0], [-2.0]]}), tiny.client(data, 1, model))
    assert found.tensors["grad/classes"].shape == (0,)
    assert found.tensors["grad/weight"].shape == (0, 2, 1)
    assert weights(found) == [0.0, 0.0]


# The balanced set


def test_the_balanced_set_is_drawn_once_a_round() -> None:
    method = RedGrape(per_class=2, local=STEP)
    data, model = cloud([0] * 20), network(method)
    first, again, other = (
        started(method, sent(model), tiny.client(data, 0, model, round=t, rounds=9)).aux.x
        for t in (1, 1, 2)
    )
    assert first.shape == (2, 2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("statistics", "tracked"), [("batch", 1), ("running", 1), ("update", 2)])
def test_only_on_request_does_the_balanced_set_move_statistics(
    statistics: Any, tracked: int
) -> None:
    method = RedGrape(per_class=2, local=STEP, statistics=statistics)
    data, model = cloud([0, 0, 0, 1, 2, 2]), network(method, norm=True)
    found = method.train(sent(model, {1: [[1.0] * 4] * 3}), tiny.client(data, 0, model))
    assert int(found.tensors["model/1.num_batches_tracked"]) == tracked


def test_a_balanced_set_of_one_sample_is_normalised_by_the_running_statistics() -> None:
    method = RedGrape(per_class=1, local=STEP)
    data, model = cloud([0]), network(method, norm=True)
    found = method.train(sent(model, {1: [[1.0] * 4] * 3}), tiny.client(data, 0, model))
    assert all(bool(torch.isfinite(t).all()) for t in found.tensors.values())
    assert found.scalars["balanced_classes"] == 1


# The server


def reply(of: Mapping[int, float], samples: int, weight: float = 0.0) -> Payload:
    """Return an update of a 1 → 2 head without bias; of each class a constant gradient."""
    rows = torch.tensor([[[value], [-value]] for _, value in sorted(of.items())])
    return Payload(
        {
            "model/0.weight": torch.full((2, 1), weight),
            "model/supplementary.weight": torch.full((2, 1), -weight),
            "grad/classes": torch.tensor(sorted(of), dtype=torch.int64),
            "grad/weight": rows.reshape(-1, 2, 1),
        },
        {"samples": samples, "balanced_classes": samples}
        | dict.fromkeys(("local_norm", "balanced_norm", "cosine"), weight),
    )


def test_prototypes_are_means_over_the_clients_that_hold_the_class() -> None:
    # Class 0: (1 + 3) / 2 and not (1 · 1 + 9 · 3) / 10. Class 1: only the second client holds it.
    method = RedGrape(local=STEP)
    model = linear(method)
    server = tiny.server(model, 2)
    updates = [Update(0, reply({0: 1.0}, 1)), Update(1, reply({0: 3.0, 1: 5.0}, 9))]
    state = tiny.after(method, method.init(model, server), updates, server)
    assert state.prototypes["classes"].tolist() == [0, 1]
    assert state.prototypes["weight"].flatten().tolist() == [2.0, -2.0, 5.0, -5.0]

    # Execute: in the next round nobody holds class 0, which stays as it was.
    state = tiny.after(method, state, [Update(0, reply({1: 7.0}, 4))], server)
    assert state.prototypes["weight"].flatten().tolist() == [2.0, -2.0, 7.0, -7.0]


def test_both_heads_are_averaged_by_samples() -> None:
    # (1 · 2 + 3 · 6) / 4 = 5; half of the way with a server rate of 1/2.
    method = RedGrape(local=STEP, server_optimizer=ServerSGD(lr=0.5))
    model = linear(method)
    server = tiny.server(model, 2)
    updates = [Update(0, reply({}, 1, 2.0)), Update(1, reply({0: 1.0}, 3, 6.0))]
    state = tiny.after(method, method.init(model, server), updates, server)
    assert state.model["0.weight"].flatten().tolist() == [2.5, 2.5]
    assert state.model["supplementary.weight"].flatten().tolist() == [-2.5, -2.5]
    assert server.logged == {
        "prototypes": 1,
        "lam": 0.1,
        "balanced_classes": 2.0,
        "local_norm": 4.0,
        "balanced_norm": 4.0,
        "cosine": 4.0,
    }


def test_the_cohort_is_sent_the_prototypes() -> None:
    method = RedGrape(local=STEP)
    model = linear(method)
    server = tiny.server(model, 2)
    state = method.init(model, server)
    assert method.broadcast(state, server).tensors["proto/weight"].shape == (0, 2, 1)
    state = tiny.after(method, state, [Update(0, reply({1: 1.0}, 1))], server)
    task = next(method.round(state, server))[0]
    assert task.payload.tensors["proto/classes"].tolist() == [1]
    # A client's own classes are another group: their number is not that of the prototypes.
    answer = method.train(task.payload, tiny.client(DATA, 0, model))
    assert not answer.group("proto")
    assert answer.tensors["grad/classes"].tolist() == [0, 1]


def test_the_second_head_has_no_say_in_predictions() -> None:
    method = RedGrape(local=STEP)
    model = network(method)
    state = method.init(model, tiny.server(model, 1))
    other = replace(
        state,
        model={n: t + 5 if n.startswith("supplementary.") else t for n, t in state.model.items()},
    )
    one, two = method.eval_model(state), method.eval_model(other)
    assert set(one) == {"0.weight", "0.bias", "3.weight", "3.bias"}
    assert all(torch.equal(one[name], two[name]) for name in one)
    x = torch.randn(3, 2)
    before = model(x)
    model.load(other.model)
    assert torch.equal(model(x), before)
