"""GBME: rounds, frozen experts and averages by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import FedAvg, FedtailError, GlobalPrior, LocalPrior, LossContext, run
from fedtail.data.federation import Federation
from fedtail.losses import BalancedSoftmax
from fedtail.methods.gbme import GBME, GBMEState
from fedtail.models import ExpertModel, ModelSpec, Output, SplitModel, experts
from fedtail.models.experts import middle
from fedtail.protocol import Client, Payload, Task, Update, grouped
from fedtail.rng import contained
from fedtail.training import ClassPrior, ProxyPrior, ServerSGD

# Client 0 has one sample of class 0, client 1 three of class 1; x = 1 throughout.
DATA = tiny.federation([[1.0]] * 4, [0, 1, 1, 1], [[0], [1, 2, 3]])


# BatchNorm makes zeros of equal inputs, so here they differ.
VARIED = tiny.federation([[1.0], [-2.0], [0.5], [3.0]], [0, 1, 0, 1], [[0], [1, 2, 3]])


class Uniform(ClassPrior):
    """π = 1 for every class."""

    def counts(self, told: Tensor | None, client: Client) -> Tensor:
        return torch.ones(client.num_classes)


def scalar_model(count: int = 2) -> ExpertModel:
    """Return a trunk and experts of one weight each (and heads of two)."""
    trunk, bodies = nn.Linear(1, 1, bias=False), [nn.Linear(1, 1, bias=False) for _ in range(count)]
    return ExpertModel(trunk, bodies, [nn.Linear(1, 2, bias=False) for _ in range(count)])


def norm_experts(count: int = 3) -> ExpertModel:
    """Return experts with BatchNorm in the trunk and in each expert."""
    with contained(0):
        chain = nn.Sequential(
            nn.Linear(1, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4), nn.BatchNorm1d(4)
        )
        chain.append(nn.Linear(4, 2))
        return experts(chain, "3", count)


def method(**fields: Any) -> GBME:
    return GBME.model_validate({"name": "gbme", "local": tiny.quick(), **fields})


# One expert is FedAvg with another prior.


def tiny_run(chosen: FedAvg[Any]) -> dict[str, Tensor]:
    return run(tiny.experiment(chosen, tiny.norm_model)).tensors


def test_one_expert_and_a_uniform_prior_is_fedavg() -> None:
    # log π is the same number in every logit, and the softmax does not see it.
    found = tiny_run(GBME(experts=1, prior=Uniform(), local=tiny.quick()))
    expected = tiny_run(FedAvg(local=tiny.quick()))
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("prior", [LocalPrior(), GlobalPrior(), ProxyPrior()])
def test_one_expert_is_balanced_softmax(prior: ClassPrior) -> None:
    found = tiny_run(GBME(experts=1, prior=prior, local=tiny.quick()))
    expected = tiny_run(FedAvg(loss=BalancedSoftmax(), prior=prior, local=tiny.quick()))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_loss_does_not_see_the_scale_of_the_prior() -> None:
    logits, y = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]]), torch.tensor([2, 0])
    prior = torch.tensor([0.7, 0.2, 0.1])
    losses = [
        float(GBME().loss(Output(logits, logits), y, LossContext(prior, scale * prior, 1, 1)))
        for scale in (1.0, 1000.0)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_equal_experts_are_one() -> None:
    with contained(0):
        single = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    several = experts(single, "2", 4, fresh=False)
    x = torch.arange(6.0).view(2, 3)
    torch.testing.assert_close(several(x), single(x))


EXPERT = "train_expert", Payload(scalars={"expert": 0})


def started(chosen: GBME, model: ExpertModel, groups: Sequence[Sequence[int]]) -> GBMEState:
    return GBMEState(model.tensors(), torch.tensor([1.0, 3.0]), groups=[list(g) for g in groups])


def tasks_of(chosen: GBME, model: ExpertModel, **fields: Any) -> list[Task]:
    server = tiny.server(model, 2, **fields)
    return next(chosen.round(started(chosen, model, [[0], [1]]), server))


def test_a_round_is_one_draw_an_expert() -> None:
    chosen = method(experts=2, alpha=1.0)
    tasks = tasks_of(chosen, scalar_model(), per_round=1)
    assert [(t.client, t.action, t.payload.scalars["expert"]) for t in tasks] == [
        (0, "train_expert", 0),
        (1, "train_expert", 1),
    ]
    assert tasks[0].payload.tensors["prior/counts"].tolist() == [1.0, 3.0]
    # Everybody in both cohorts: the same client is asked twice.
    twice = tasks_of(chosen, scalar_model(), per_round=2)
    assert Counter(task.client for task in twice) == {0: 2, 1: 2}


@pytest.mark.parametrize(("joint", "together"), [(0.0, 0), (0.6, 3), (1.0, 5)])
def test_the_experts_may_train_together_first(joint: float, together: int) -> None:
    chosen = method(experts=2, joint=joint)
    actions = [
        {t.action for t in tasks_of(chosen, scalar_model(), round=number, rounds=5)}
        for number in range(1, 6)
    ]
    assert actions == [{"train"}] * together + [{"train_expert"}] * (5 - together)


def update(client: int, expert: int, samples: int, trunk: float, own: float) -> Update:
    """Return an upload with one number in the trunk, one in the expert and a head of zeros."""
    tensors = {
        "model/trunk.weight": torch.full((1, 1), trunk),
        "expert/experts.weight": torch.full((1, 1), own),
        "expert/heads.weight": torch.zeros(2, 1),
    }
    return Update(client, Payload(tensors, {"samples": samples, "steps": 1, "expert": expert}))


def test_the_average_by_hand() -> None:
    # Trunk: (1 · 4 + 3 · 8 + 1 · 0) / 5 = 5.6. Expert 0: (1 · 1 + 3 · 5) / 4 = 4; expert 1: 7.
    chosen, model = method(experts=2), scalar_model()
    server = tiny.server(model, 2)
    uploads = [update(0, 0, 1, 4.0, 1.0), update(0, 1, 1, 0.0, 7.0), update(1, 0, 3, 8.0, 5.0)]
    state = tiny.after(chosen, started(chosen, model, [[0], [1]]), uploads, server, *EXPERT)
    assert float(state.model["trunk.weight"]) == pytest.approx(5.6)
    assert float(state.model["experts.0.weight"]) == 4.0
    assert float(state.model["experts.1.weight"]) == 7.0
    assert server.logged == {"uploads_0": 2, "uploads_1": 1}
    assert state.groups == [[0], [1]]


def test_an_expert_without_uploads_stays() -> None:
    chosen, model = method(experts=2), scalar_model()
    old = started(chosen, model, [[0], [1]])
    server = tiny.server(model, 2)
    state = tiny.after(chosen, old, [update(0, 0, 1, 4.0, 1.0)], server, *EXPERT)
    assert torch.equal(state.model["experts.1.weight"], old.model["experts.1.weight"])
    empty = tiny.after(chosen, old, [update(0, 0, 0, 4.0, 1.0)], server, *EXPERT)
    assert all(torch.equal(empty.model[name], old.model[name]) for name in old.model)


def test_the_server_goes_part_of_the_way() -> None:
    chosen, model = method(experts=2, server_optimizer=ServerSGD(lr=0.5)), scalar_model()
    old = started(chosen, model, [[0], [1]])
    old.model["trunk.weight"] = torch.full((1, 1), 2.0)
    state = tiny.after(chosen, old, [update(0, 0, 1, 4.0, 1.0)], tiny.server(model, 2), *EXPERT)
    assert float(state.model["trunk.weight"]) == 3.0
    assert torch.equal(state.model["experts.1.weight"], old.model["experts.1.weight"])


def test_momentum_does_not_carry_an_expert_without_uploads() -> None:
    # Round 1 moves expert 1 from 0 to 1. In round 2 only expert 0 is uploaded: expert 1 and what is
    # remembered of it stay, though its momentum is 1.
    optimizer = ServerSGD(momentum=0.5)
    chosen, model = method(experts=2, server_optimizer=optimizer), scalar_model()
    server = tiny.server(model, 2)
    old = started(chosen, model, [[0], [1]])
    old.model["experts.1.weight"] = torch.zeros(2, 1)
    one = tiny.after(chosen, old, [update(1, 1, 1, 4.0, 1.0)], server, *EXPERT)
    two = tiny.after(chosen, one, [update(0, 0, 1, 4.0, 1.0)], server, *EXPERT)
    assert one.model["experts.1.weight"].flatten().tolist() == [1.0, 1.0]
    assert torch.equal(two.model["experts.1.weight"], one.model["experts.1.weight"])
    assert two.memory["experts.1.weight"]["v"].flatten().tolist() == [1.0, 1.0]


# The client


def reply(
    chosen: GBME, model: ExpertModel, expert: int | None, data: Federation = DATA, **fields: Any
) -> Payload:
    """Return what client 1 sends after training one expert, or all."""
    scalars = {} if expert is None else {"expert": expert}
    prior = {"prior/counts": torch.tensor([1.0, 3.0])}
    payload = Payload({**grouped("model", model.tensors()), **prior}, scalars)
    client = tiny.client(data, 1, model, **fields)
    return chosen.train(payload, client) if expert is None else chosen.train_expert(payload, client)


def test_frozen_experts_keep_parameters_and_buffers() -> None:
    model = norm_experts()
    before = model.tensors()
    sent = reply(method(local=tiny.quick(epochs=3)), model, 1, VARIED)
    after = model.tensors()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert not any(name in moved for i in (0, 2) for name in model.expert_names(i))
    assert {"trunk.0.weight", "trunk.1.running_mean"} <= moved
    assert {"experts.1.3.weight", "experts.1.4.running_mean", "heads.1.weight"} <= moved
    # What travels: the trunk, and the expert without its number.
    assert torch.equal(sent.tensors["expert/experts.3.weight"], after["experts.1.3.weight"])
    assert torch.equal(sent.tensors["expert/heads.weight"], after["heads.1.weight"])
    assert {n.partition("/")[0] for n in sent.tensors} == {"model", "expert"}
    assert all(name.startswith("trunk.") for name in sent.group("model"))
    assert sent.scalars["expert"] == 1


def test_nothing_stays_frozen_for_the_next_task() -> None:
    model = norm_experts()
    every = model.parameter_names()
    reply(method(), model, 0, VARIED)
    assert model.parameter_names() == every
    before = model.tensors()
    sent = reply(method(), model, None, VARIED)
    assert set(sent.group("model")) == set(before)
    after = model.tensors()
    assert all(not torch.equal(before[n], after[n]) for n in (f"heads.{i}.weight" for i in (0, 2)))


def test_a_client_keeps_its_statistics_and_nothing_else() -> None:
    model, own = norm_experts(), dict[str, Tensor]()
    reply(method(buffers="local"), model, 1, VARIED, state=own)
    assert {name.rpartition(".")[2] for name in own} == {
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }


def test_the_first_clients_statistics() -> None:
    model = norm_experts(2)
    chosen = method(experts=2, buffers="first")
    sent = [reply(chosen, model, i, VARIED) for i in (0, 1)]
    updates = [Update(0, sent[0]), Update(1, sent[1])]
    state = tiny.after(
        chosen, started(chosen, model, [[0], [1]]), updates, tiny.server(model, 2), *EXPERT
    )
    mean = "running_mean"
    assert torch.equal(state.model[f"trunk.1.{mean}"], sent[0].tensors[f"model/trunk.1.{mean}"])
    for i in (0, 1):
        kept = sent[i].tensors[f"expert/experts.4.{mean}"]
        assert torch.equal(state.model[f"experts.{i}.4.{mean}"], kept)
    # Weights are averaged: both have three samples.
    both = [s.tensors["model/trunk.0.weight"] for s in sent]
    torch.testing.assert_close(state.model["trunk.0.weight"], (both[0] + both[1]) / 2)


def heads_only(weights: Sequence[float]) -> ExpertModel:
    """Return experts that are heads (w, −w) on the input itself."""
    heads = [nn.Linear(1, 2, bias=False) for _ in weights]
    model = ExpertModel(nn.Identity(), [nn.Identity() for _ in weights], heads)
    for i, w in enumerate(weights):
        model.load({**model.tensors(), f"heads.{i}.weight": torch.tensor([[w], [-w]])})
    return model


@pytest.mark.parametrize(
    ("per_expert", "expert", "times"),
    [(False, 0, False), (False, 0, True), (False, None, True), (True, 0, True), (True, None, True)],
)
def test_the_loss_by_hand(per_expert: bool, expert: int | None, times: bool) -> None:
    # Client 1: y = 1, x = 1, π = (1, 3). p_0 of logits (w, −w) + log π is 1 / (1 + 3 e^(−2w)),
    # and the gradient with respect to the logits (p_0, −p_0).
    # Mean logits: w̄ = (0.5 + 1.5) / 2 = 1, and each head gets half of the gradient; times M = 2 it
    # is the whole.
    # Each expert's own: w_0 = 0.5, and the whole of it.
    model = heads_only([0.5, 1.5])
    chosen = method(per_expert=per_expert, times_experts=times, local=tiny.quick(lr=1.0))
    reply(chosen, model, expert)

    def p(w: float) -> float:
        return 1 / (1 + 3 * float(torch.exp(torch.tensor(-2 * w))))

    found = [float(model.tensors()[f"heads.{i}.weight"][0]) for i in (0, 1)]
    mean = p(1.0) if times else p(1.0) / 2
    first = 0.5 - (p(0.5) if per_expert else mean)
    second = 1.5 if expert is not None else 1.5 - (p(1.5) if per_expert else mean)
    assert found == pytest.approx([first, second], rel=1e-5)


# The model


@pytest.mark.parametrize(
    ("spec", "shape", "child"),
    [
        ("resnet8", (3, 8, 8), "layer2"),
        ("resnet32", (3, 8, 8), "layer2"),
        ("digits_cnn", (1, 8, 8), "fc1"),
        ("small_cnn", (1, 8, 8), "conv3"),
        ({"name": "small_cnn", "norm": "batch"}, (1, 8, 8), "conv3"),
        ("mlp", (4,), "fc2"),
        ({"name": "mlp", "hidden": []}, (4,), "fc"),
    ],
)
def test_where_the_experts_begin(spec: Any, shape: tuple[int, ...], child: str) -> None:
    base = ModelSpec.model_validate(spec).build(shape, 3)
    assert middle(base) == child
    model = GBME(experts=2).build_model(base)
    assert isinstance(model, ExpertModel)
    assert model.count == 2
    assert model.eval()(torch.zeros(2, *shape)).shape == (2, 3)


def test_the_user_says_where() -> None:
    base = SplitModel(tiny.plain_model())
    model = GBME(split_at="1", cosine=True).build_model(base)
    assert not any(name.startswith("trunk.") for name in model.names())
    assert "heads.2.weight" in model.names()
    assert "heads.2.bias" not in model.names()  # cosine heads have none
    assert "heads.2.bias" in GBME(split_at="1").build_model(base).names()
    with pytest.raises(FedtailError, match="no place to split"):
        GBME(split_at="7").build_model(base)


def test_a_model_of_experts_is_taken_as_it_is() -> None:
    model = ModelSpec.model_validate("resnet32_experts").build((3, 8, 8), 4)
    assert GBME().build_model(model) is model
    with pytest.raises(FedtailError, match="the model has 3 experts, the method 2"):
        GBME(experts=2).build_model(model)


def test_a_model_that_is_no_chain_is_refused() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.fc = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.fc(self.body(x))
            return out

    base = SplitModel(Net())
    with pytest.raises(FedtailError, match=r"a Net cannot be split .* split_at"):
        GBME().build_model(base)
    assert GBME(experts=1).build_model(base) is base


# Whole runs


def test_what_is_tested_is_the_mean_without_prior() -> None:
    result = run(tiny.experiment(method(experts=2), tiny.norm_model))
    model = GBME(experts=2).build_model(SplitModel(tiny.norm_model()))
    model.load(result.tensors)
    model.eval()
    x = torch.linspace(-1, 1, 2 * 192).view(2, *tiny.IMAGE)
    each = model.output(x).experts
    assert each is not None
    torch.testing.assert_close(result.network.eval()(x), each.mean(dim=0))


@pytest.mark.parametrize(("per_expert", "seen"), [(True, [1]), (False, [0, 1, 2])])
def test_experts_that_do_not_count_are_not_computed(per_expert: bool, seen: list[int]) -> None:
    model = norm_experts()
    ran: list[int] = []
    for i, expert in enumerate(model.module.get_submodule("experts").children()):
        expert.register_forward_hook(lambda *_, i=i: ran.append(i))
    client = tiny.client(VARIED, 1, model)
    chosen = method(per_expert=per_expert, prior=LocalPrior(), grouping="random")
    sent = Payload(grouped("model", model.tensors()), {"expert": 1})
    chosen.train_expert(sent, client)
    assert sorted(set(ran)) == seen


def test_one_expert_alone_says_what_it_says_among_others() -> None:
    model, x = norm_experts().eval(), torch.tensor([[1.0], [-2.0]])
    alone, among = model.output_of(1, x), model.output(x)
    assert among.experts is not None
    # Products round by how their factors lie in memory.
    assert torch.allclose(alone.logits, among.experts[1], rtol=1e-6)
    assert torch.equal(alone.features, among.features[:, 4:8])
