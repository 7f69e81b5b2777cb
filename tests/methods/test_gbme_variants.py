"""GBME: clients that say nothing, and what is logged of groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail.forms import Mean, defect
from fedtail.losses import LocalLoss, LossContext
from fedtail.methods.gbme import GBME, GBMEState, shared_names, similarity
from fedtail.models import ExpertModel, Output, experts
from fedtail.protocol import Payload, Update, grouped


def method(**fields: Any) -> GBME:
    return GBME.model_validate({"name": "gbme", "local": tiny.quick(), **fields})


def heads_only(count: int) -> ExpertModel:
    """Return experts that are heads on the input itself."""
    heads = [nn.Linear(1, 2, bias=False) for _ in range(count)]
    return ExpertModel(nn.Identity(), [nn.Identity() for _ in heads], heads)


NEAR, FAR = 18 / 325**0.5, 1 / 325**0.5


@pytest.mark.parametrize(
    ("count", "groups", "similarities"),
    [
        (4, [[2], [3], [0], [1]], [NEAR, NEAR, FAR, -1.0]),
        (2, [[2, 3], [0, 1]], [NEAR, (FAR - 1) / 2]),
        (5, [[], [2], [3], [0], [1]], [0.0, NEAR, NEAR, FAR, -1.0]),
    ],
)
def test_who_tells_no_labels_is_like_nobody(
    count: int, groups: list[list[int]], similarities: list[float]
) -> None:
    # Clients 2 and 3 have (9, 0), client 0 has (0, 1), and all together that is (18, 1). Client 1
    # does not answer, and comes after client 0, whose cosine is 1 / √325. What is logged of a
    # group is the mean.
    model = heads_only(count)
    server = tiny.server(model, 4)
    chosen = method(experts=count, grouping="label", prior="local")
    exchange = chosen.setup(GBMEState(model.tensors()), server)
    assert [task.action for task in next(exchange)] == ["tell_labels"] * 4
    told = {0: [0, 1], 2: [9, 0], 3: [9, 0]}
    with pytest.raises(StopIteration) as end:
        updates = [Update(k, Payload({"counts/classes": torch.tensor(n)})) for k, n in told.items()]
        exchange.send(tiny.added(chosen, updates, server, "tell_labels"))
    assert end.value.value.groups == groups
    logged = [server.logged[f"similarity_{i}"] for i in range(count)]
    assert logged == pytest.approx(similarities)


def test_groups_by_chance_have_no_likeness() -> None:
    # 10 of 20 clients in one group: two draws that agree by chance are one in 184756.
    model, found = heads_only(2), []
    chosen = method(experts=2, grouping="random", prior="local")
    for seed in (1, 2):
        torch.manual_seed(seed)  # the draw is the server's, not torch's
        server = tiny.server(model, 20)
        with pytest.raises(StopIteration) as end:
            next(chosen.setup(GBMEState(model.tensors()), server))
        found.append(end.value.value.groups)
        assert server.logged == {"similarity_0": 0.0, "similarity_1": 0.0}
    assert found[0] == found[1]


@pytest.mark.parametrize("count", [2, 3])
def test_grouping_by_index_needs_one_for_two_experts_already(count: int) -> None:
    with pytest.raises(ValueError, match="needs a proxy prior"):
        method(prior="global", experts=count)
    assert method(prior="global", experts=1).experts == 1


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_experts_draw_apart_from_their_group_and_from_the_others(alpha: float) -> None:
    # Five of the same twenty: two draws that agree by chance are one in 15504.
    everybody = [list(range(20)), list(range(20))]
    server = tiny.server(heads_only(2), 20, per_round=5)
    one, two = (GBME(alpha=alpha).draw(i, everybody, server) for i in (0, 1))
    assert one != two


@pytest.mark.parametrize(("buffers", "statistics"), [("average", 3.0), ("first", 1.0)])
def test_statistics_of_two_uploads_of_one_expert(buffers: str, statistics: float) -> None:
    # All numbers are 1 in an upload of one sample, and 4 in one of two: the mean is 9/3.
    chain = nn.Sequential(
        *(nn.Linear(1, 1), nn.BatchNorm1d(1), nn.Linear(1, 1), nn.BatchNorm1d(1)), nn.Linear(1, 2)
    )
    model = experts(chain, "2", 2)
    chosen = method(experts=2, buffers=buffers)
    asked = Payload({}, {"expert": 0})
    form = chosen.train_expert_form(asked, model, 2)

    def upload(samples: int, value: float) -> Update:
        tensors = {
            n: torch.full(look.shape, value, dtype=look.dtype) for n, look in form.tensors.items()
        }
        return Update(0, Payload(tensors, {"samples": samples, "steps": 1, "expert": 0}))

    old = GBMEState(model.tensors(), groups=[[0], [1]])
    uploads = [upload(1, 1.0), upload(2, 4.0)]
    state = tiny.after(chosen, old, uploads, tiny.server(model, 2), "train_expert", asked)
    for name in ("trunk.1.running_mean", "experts.0.3.running_var"):
        assert state.model[name].tolist() == pytest.approx([statistics])
    for name in ("trunk.0.weight", "experts.0.2.weight", "heads.0.weight"):
        assert state.model[name].flatten().tolist() == pytest.approx([3.0] * len(state.model[name]))
    assert torch.equal(state.model["experts.1.2.weight"], old.model["experts.1.2.weight"])


@pytest.mark.parametrize("value", [0, 2, 1.0])
def test_a_client_answers_for_the_expert_it_was_asked_for(value: float) -> None:
    model, chosen = heads_only(3), method()
    task = Payload(grouped("model", model.tensors()), {"expert": 1})
    answer = chosen.train_expert(task, tiny.client(tiny.federation([[1.0]], [0], [[0]]), 0, model))
    form = chosen.train_expert_form(task, model, 2)
    assert defect(answer, form, 1) == ""
    # There is no trunk to add up.
    assert set(form.how.values()) == {Mean(within="expert")}
    told = replace(answer, scalars={**answer.scalars, "expert": value})
    assert "expert" in defect(told, form, 1)


class Single(LocalLoss):
    """z_0, of a model that has no experts."""

    def __call__(self, output: Output, y: Tensor, context: LossContext) -> Tensor:
        assert output.experts is None
        return output.logits[:, 0].mean()


@pytest.mark.parametrize(("expert", "slope"), [(0, 2.0), (1, 5.0), (None, 7.0)])
def test_the_trunk_learns_from_the_trained_experts_alone(expert: int | None, slope: float) -> None:
    # x = 1, trunk u, heads (a, 0) with a = 2 and 5: z_0 = a u has the slope a in u.
    heads = [nn.Linear(1, 2, bias=False) for _ in range(2)]
    model = ExpertModel(nn.Linear(1, 1, bias=False), [nn.Identity(), nn.Identity()], heads)
    start = {
        "trunk.weight": torch.ones(1, 1),
        "heads.0.weight": torch.tensor([[2.0], [0.0]]),
        "heads.1.weight": torch.tensor([[5.0], [0.0]]),
    }
    scalars = {} if expert is None else {"expert": expert}
    chosen = method(experts=2, loss=Single(), local=tiny.quick(lr=0.1))
    client = tiny.client(tiny.federation([[1.0]], [0], [[0]]), 0, model)
    act = chosen.train if expert is None else chosen.train_expert
    found = act(Payload(grouped("model", start), scalars), client)
    assert float(found.tensors["model/trunk.weight"]) == pytest.approx(1 - 0.1 * slope)


def test_the_likeness_of_a_small_index_is_that_of_a_large_one() -> None:
    found = similarity(torch.tensor([[3e-12, 4e-12], [1e-12, 0.0]]), torch.tensor([3.0, 4.0]))
    assert found.tolist() == pytest.approx([1.0, 0.6])


def test_an_expert_travels_without_its_own_number_alone() -> None:
    # Layer 1 inside expert 1 keeps its number.
    bodies = [nn.Sequential(nn.Sequential(nn.Identity(), nn.Linear(1, 1))) for _ in range(2)]
    model = ExpertModel(nn.Identity(), bodies, [nn.Linear(1, 2, bias=False) for _ in range(2)])
    assert shared_names(model, 1) == {
        "experts.0.1.bias": "experts.1.0.1.bias",
        "experts.0.1.weight": "experts.1.0.1.weight",
        "heads.weight": "heads.1.weight",
    }
