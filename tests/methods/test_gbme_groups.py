"""GBME: which clients are alike, the groups, and the draws from them, by hand."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, Literal

import pytest
import tiny
import torch
from torch import nn

from fedtail import run
from fedtail.methods.gbme import GBME, GBMEState, cut_into_groups, similarity
from fedtail.models import ExpertModel
from fedtail.protocol import Payload, Update


def scalar_model(count: int = 2) -> ExpertModel:
    """Return a trunk and experts of one weight each (and heads of two)."""
    trunk, bodies = nn.Linear(1, 1, bias=False), [nn.Linear(1, 1, bias=False) for _ in range(count)]
    return ExpertModel(trunk, bodies, [nn.Linear(1, 2, bias=False) for _ in range(count)])


def method(**fields: Any) -> GBME:
    return GBME.model_validate({"name": "gbme", "local": tiny.quick(), **fields})


# The groups


def test_similarity_by_hand() -> None:
    # Π = (3, 4), norm 5. (3, 4): 1; (1, 0): 3/5; (0, 2): 4/5; nothing known: −1.
    vectors = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    found = similarity(vectors, torch.tensor([3.0, 4.0]))
    assert found.tolist() == pytest.approx([1.0, 0.6, 0.8, -1.0], abs=1e-6)
    assert cut_into_groups(found, [10, 11, 12, 13], 2) == [[10, 12], [11, 13]]


def test_nothing_positive_anywhere() -> None:
    assert similarity(torch.zeros(2, 3), torch.zeros(3)).tolist() == [-1.0, -1.0]
    assert similarity(torch.ones(2, 3), torch.zeros(3)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("clients", "count", "sizes"),
    [(100, 3, [33, 33, 34]), (6, 3, [2, 2, 2]), (5, 3, [1, 2, 2]), (2, 3, [0, 1, 1]), (4, 1, [4])],
)
def test_groups_are_slices_that_partition(clients: int, count: int, sizes: list[int]) -> None:
    likeness = torch.rand(clients, generator=torch.Generator().manual_seed(0))
    groups = cut_into_groups(likeness, range(clients), count)
    assert [len(group) for group in groups] == sizes
    assert sorted(c for group in groups for c in group) == list(range(clients))
    for first, second in pairwise(groups):
        if first and second:
            assert likeness[first].min() >= likeness[second].max()


def test_clients_that_are_alike_stay_in_order() -> None:
    assert cut_into_groups(torch.zeros(4), range(4), 2) == [[0, 1], [2, 3]]


def test_only_what_a_client_has_more_of_counts_in_the_likeness() -> None:
    # Ω^0 = (2, 1, -9), Ω^1 = (1, 0, 0), equally many samples: Π = (3/2, 1/2, 0). Of the positive
    # parts cos_0 = (3 + 1/2) / √(5 · 5/2) = 0.990 and cos_1 = (3/2) / √(5/2) = 0.949; with the -9
    # client 0 would be the last, with 3.5 / √(86 · 5/2) = 0.239.
    model = scalar_model()
    server = tiny.server(model, 2, num_classes=3)
    chosen = method(experts=2)
    exchange = chosen.setup(GBMEState(model.tensors()), server)
    assert len(next(exchange)) == 2
    told = [[2.0, 1.0, -9.0], [1.0, 0.0, 0.0]]
    with pytest.raises(StopIteration) as end:
        updates = [
            Update(k, Payload({"lpi/classes": torch.tensor(row)}, {"samples": 4}))
            for k, row in enumerate(told)
        ]
        exchange.send(tiny.added(chosen, updates, server, "inform"))
    assert end.value.value.groups == [[0], [1]]
    assert server.logged["similarity_0"] == pytest.approx(3.5 / 12.5**0.5, rel=1e-5)
    assert server.logged["similarity_1"] == pytest.approx(1.5 / 2.5**0.5, rel=1e-5)


# The draw

GROUPS = [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


def drawn(
    alpha: float, i: int, size: int, number: int = 1, rest: Literal["all", "others"] = "others"
) -> list[int]:
    server = tiny.server(scalar_model(3), 10, per_round=size, round=number)
    return GBME(alpha=alpha, rest=rest).draw(i, GROUPS, server)


@pytest.mark.parametrize(
    ("alpha", "i", "size", "inside"),
    [
        (1.0, 0, 4, 4),  # only the group
        (0.0, 0, 4, 0),  # only others
        (0.6, 0, 5, 3),
        (0.8, 0, 5, 4),  # 0.8 · 5 and 0.2 · 5 in floats: 4 and 1, no truncation
        (0.5, 0, 5, 3),  # halves go to the group
        (1.0, 1, 5, 3),  # more than the group has: the others fill up
        (0.0, 0, 8, 2),  # more than the others have: the group fills up
        (0.6, 2, 10, 3),  # everybody
    ],
)
def test_how_many_are_of_the_group(alpha: float, i: int, size: int, inside: int) -> None:
    for number in range(1, 30):
        chosen = drawn(alpha, i, size, number)
        assert len(set(chosen)) == len(chosen) == size
        assert len(set(chosen) & set(GROUPS[i])) == inside


@pytest.mark.parametrize(
    ("alpha", "i", "size", "least"),
    [(1.0, 0, 4, 4), (0.6, 0, 5, 3), (0.0, 0, 4, 0), (1.0, 1, 5, 3), (0.6, 2, 10, 3)],
)
def test_the_rest_may_be_of_everybody(alpha: float, i: int, size: int, least: int) -> None:
    inside = []
    for number in range(1, 60):
        chosen = drawn(alpha, i, size, number, "all")
        assert len(set(chosen)) == len(chosen) == size
        inside.append(len(set(chosen) & set(GROUPS[i])))
    assert min(inside) == least if size < 10 else inside == [least] * 59


def test_without_alpha_clients_are_drawn_at_random() -> None:
    # 4 of 10, over 200 rounds: each is drawn 80 times, with a deviation of √(200 · 0.4 · 0.6) = 7.
    seen = Counter(c for number in range(1, 201) for c in drawn(0.0, 0, 4, number, "all"))
    assert set(seen) == set(range(10))
    assert all(abs(times - 80) < 4 * 7 for times in seen.values())


def test_draws_differ_by_round_and_expert() -> None:
    rounds = {tuple(drawn(0.5, 0, 4, number)) for number in range(1, 20)}
    assert len(rounds) > 5
    server = tiny.server(scalar_model(2), 20, per_round=5)
    everybody = [list(range(20)), list(range(20))]
    assert GBME().draw(0, everybody, server) != GBME().draw(1, everybody, server)


# As a whole


def test_the_clients_are_grouped_by_their_index() -> None:
    result = run(tiny.experiment(method(), tiny.norm_model))
    state: GBMEState = result.state
    assert state.omega is not None
    assert state.omega.shape == (6, 4)
    assert sorted(c for group in state.groups for c in group) == list(range(6))
    logged = [result.history[0]["method"][f"similarity_{i}"] for i in range(3)]
    assert logged == sorted(logged, reverse=True)
    assert "similarity_0" not in result.history[1]["method"]
    assert all(record["method"]["uploads_0"] == 4 for record in result.history)


def test_the_clients_are_grouped_by_label() -> None:
    # Counts of `tiny`, all together (21, 13, 8, 0). cos² with it, up to 1/|all|²:
    # client 0 (6, 4, 2): 194² / 56 = 672.1; client 5 (7, 1, 2): 176² / 54 = 573.6;
    # client 3 (3, 3): 102² / 18 = 578; client 1 (5): 21² = 441; client 4 (0, 4, 4): 84² / 32
    # = 220.5; client 2 (0, 1): 169.
    for prior in ("global", "proxy"):
        chosen = method(grouping="label", prior=prior)
        state: GBMEState = run(tiny.experiment(chosen, rounds=1)).state
        assert state.groups == [[0, 3], [1, 5], [2, 4]]


def test_the_clients_are_grouped_by_chance() -> None:
    chosen = method(grouping="random", prior="local")
    groups = [run(tiny.experiment(chosen, rounds=1, seed=k)).state.groups for k in range(4)]
    assert all(sorted(c for group in one for c in group) == list(range(6)) for one in groups)
    assert len({str(one) for one in groups}) > 1


def test_grouping_by_index_needs_one() -> None:
    with pytest.raises(ValueError, match=r"grouping = 'gpi' needs a proxy prior, not 'global'"):
        method(prior="global")
