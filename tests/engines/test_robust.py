"""Robust means: by hand, against a client that shouts, in a pool, and refused where it must be."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import tiny
import torch

from fedtail import FedtailError, Method, run
from fedtail.engines.executor import Done
from fedtail.engines.robust import Median, PlainMean, RobustMean, TrimmedMean, gathered
from fedtail.forms import SAMPLES, ByClass, Form, Like, Mean
from fedtail.protocol import Payload, Update
from fedtail.testing.executors import Spoiler, run_with

VALUES = torch.tensor([[1.0, 5.0], [2.0, -900.0], [3.0, 7.0], [900.0, 6.0]])


def test_the_median_and_the_trimmed_mean_by_hand() -> None:
    # Columns sorted: 1, 2, 3, 900 and -900, 5, 6, 7. Of four, a quarter is one at each end.
    assert Median().middle(VALUES).tolist() == [2.5, 5.5]
    assert Median().middle(VALUES[:3]).tolist() == [2.0, 5.0]
    assert TrimmedMean(share=0.25).middle(VALUES).tolist() == [2.5, 5.5]
    assert TrimmedMean(share=0.0).middle(VALUES[:3]).tolist() == [2.0, -296.0]
    # 0.2 of four is less than one: nothing is cut.
    assert TrimmedMean().middle(VALUES).tolist() == [226.5, -220.5]


def test_parts_and_classes_have_middles_of_their_own() -> None:
    form = (
        Form()
        .group("own", {"w": Like((1,))}, Mean(within="part"))
        .group("grad", {"b": Like((1,))}, ByClass(3))
        .numbers(samples=SAMPLES)
    )

    def update(client: int, part: int, samples: int, classes: list[int]) -> Update:
        rows = torch.tensor([[10.0 * client + c] for c in classes]).reshape(len(classes), 1)
        tensors = {
            "own/w": torch.tensor([float(client)]),
            "grad/classes": torch.tensor(classes, dtype=torch.int64),
            "grad/b": rows,
        }
        return Update(client, Payload(tensors, {"samples": samples, "part": part}))

    updates = [
        update(0, 0, 5, [0]),
        update(1, 1, 5, [0, 2]),
        update(2, 1, 9, []),
        update(3, 1, 0, []),
    ]
    found = {key: values.flatten().tolist() for key, values in gathered(updates, form)}
    # Client 3 has no samples, and no say.
    assert found == {
        ("own/w", 0): [0.0],
        ("own/w", 1): [1.0, 2.0],
        ("grad/b", 0): [0.0, 10.0],
        ("grad/b", 2): [12.0],
    }


def shouted(done: Done) -> Done:
    """Send a hundred times the model: finite, and within every bound."""
    if done.payload is None:
        return done
    large = {n: 100 * t if t.is_floating_point() else t for n, t in done.payload.tensors.items()}
    return replace(done, payload=replace(done.payload, tensors=large))


def distance(one: Any, other: Any) -> float:
    return max(float((one.tensors[n] - t).abs().max()) for n, t in other.tensors.items())


@pytest.mark.parametrize("robust", ["median", {"name": "trimmed_mean", "share": 0.2}])
def test_one_client_in_six_cannot_own_the_model(robust: Any) -> None:
    chosen = tiny.experiment(rounds=1, per_round=6)
    honest = run(chosen)
    attacked = run_with(chosen, partial(Spoiler, spoil=shouted))
    defended = run_with(chosen.but(robust=robust), partial(Spoiler, spoil=shouted))
    assert distance(attacked, honest) > 1
    assert distance(defended, honest) < 0.2


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "gbme", "redgrape"])
def test_a_pool_gives_the_same_bits(name: str) -> None:
    method: Method[Any] = Method.model_validate({"name": name, "local": tiny.quick()})
    chosen = tiny.experiment(method, tiny.norm_model, rounds=2, per_round=6, robust="median")
    assert run(chosen.but(workers=1)).digest == run(chosen).digest


def test_none_is_the_plain_mean() -> None:
    chosen = tiny.experiment(rounds=1)
    assert chosen.robust == PlainMean() and chosen.robust_side is None
    assert {"none", "median", "trimmed_mean"} <= set(RobustMean.registry)


def test_what_nobody_may_see_has_no_middle() -> None:
    with pytest.raises(FedtailError, match="robust = 'median' looks at every client's update"):
        tiny.experiment(encrypt=True, robust="median")


def test_too_much_for_memory_is_said_with_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtail.engines.robust.MOST_BYTES", 1000)
    with pytest.raises(FedtailError, match=r"holds the updates of a round together, about 0\.0 GB"):
        run(tiny.experiment(rounds=1, robust="median"))
