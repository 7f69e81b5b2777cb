"""The vocabulary: groups, bytes, cohorts and streams."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch

from fedtail.models import SplitModel
from fedtail.protocol import Payload, grouped


def some_model() -> SplitModel:
    return SplitModel(torch.nn.Sequential(torch.nn.Linear(2, 2)))


def test_grouping_and_its_inverse() -> None:
    tensors = {"a.weight": torch.ones(1), "b": torch.zeros(2)}
    payload = Payload({**grouped("model", tensors), "modelling/x": torch.ones(3)})
    assert set(payload.tensors) == {"model/a.weight", "model/b", "modelling/x"}
    assert payload.group("model") == tensors
    assert payload.group("nothing") == {}


@pytest.mark.parametrize(
    ("payload", "nbytes"),
    [
        (Payload(), 0),
        (Payload({"m/w": torch.zeros(2, 3)}), 24),  # 6 x 4
        (Payload({"m/w": torch.zeros(2, 3, dtype=torch.float16)}), 12),  # 6 x 2
        (Payload({"m/n": torch.tensor(1), "m/b": torch.zeros(3, dtype=torch.bool)}), 11),  # 8 + 3
        (Payload({"m/e": torch.zeros(0, 5)}), 0),
        (Payload(scalars={"n": 1, "loss": 0.5, "ok": True}), 24),  # 3 x 8
        (Payload(scalars={"kind": "é"}), 2),  # two bytes of UTF-8
    ],
)
def test_bytes_of_a_payload(payload: Payload, nbytes: int) -> None:
    assert payload.nbytes == nbytes


def test_bytes_do_not_count_what_a_view_leaves_out() -> None:
    assert Payload({"m/w": torch.zeros(100)[:3]}).nbytes == 12


def test_a_cohort_is_distinct_sorted_and_of_the_right_size() -> None:
    server = tiny.server(some_model(), 20, per_round=7)
    cohort = server.cohort()
    assert cohort == sorted(set(cohort))
    assert len(cohort) == 7
    assert set(cohort) <= set(range(20))


def test_a_cohort_depends_on_seed_and_round_only() -> None:
    model = some_model()
    first = tiny.server(model, 50, per_round=5)
    assert first.cohort() == first.cohort() == tiny.server(model, 50, per_round=5).cohort()
    assert first.cohort() != tiny.server(model, 50, per_round=5, round=2).cohort()
    assert first.cohort() != tiny.server(model, 50, per_round=5, seed=1).cohort()
    assert first.cohort() != first.cohort(purpose="other")


def test_a_cohort_among_some_clients() -> None:
    server = tiny.server(some_model(), 20, per_round=3)
    assert server.cohort(among=[4, 9]) == [4, 9]
    assert server.cohort(size=100) == list(range(20))
    assert server.cohort(among=[]) == []


def test_all_clients_are_drawn_equally_often() -> None:
    # 2000 rounds, 3 of 10: each client is expected 600 times, standard deviation
    # sqrt(2000 x 0.3 x 0.7) = 20.5. Five of them is 103.
    model = some_model()
    counts = np.zeros(10)
    for number in range(2000):
        counts[tiny.server(model, 10, per_round=3, round=number).cohort()] += 1
    assert counts.sum() == 6000
    assert np.abs(counts - 600).max() < 103


def test_streams_of_server_and_client() -> None:
    # Prepare
    model, data = some_model(), tiny.federation([[0.0, 1.0]] * 4, [0, 1, 0, 1], [[0, 1], [2, 3]])
    one = tiny.client(data, 0, model)

    # Execute
    seeds = [
        one.generator("batches").initial_seed(),
        one.generator("augment").initial_seed(),
        tiny.client(data, 1, model).generator("batches").initial_seed(),
        tiny.client(data, 0, model, turn=1).generator("batches").initial_seed(),
        tiny.client(data, 0, model, round=2).generator("batches").initial_seed(),
        tiny.client(data, 0, model, seed=1).generator("batches").initial_seed(),
        tiny.server(model, 2).generator("batches").initial_seed(),
        tiny.server(model, 2, round=2).generator("batches").initial_seed(),
    ]

    # Assert: one each, and the same when asked again.
    assert len(set(seeds)) == len(seeds)
    assert one.generator("batches").initial_seed() == seeds[0]


def test_a_client_knows_the_classes_it_does_not_have() -> None:
    data = tiny.federation([[0.0, 1.0]], [1], [[0]], classes=3)
    alone = tiny.client(data, 0, some_model())
    assert alone.num_classes == 3
    assert alone.counts.tolist() == [0, 1, 0]


def test_what_a_method_logs() -> None:
    server = tiny.server(some_model(), 1)
    server.log("steps", 3)
    assert server.logged == {"steps": 3}
    assert tiny.server(some_model(), 1).logged == {}
