"""Robust means: by hand, against a client that shouts, in a pool, and refused where it must be."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import tiny
import torch

from fedtail import FedtailError, Method, Privacy, run
from fedtail.engines.executor import Done
from fedtail.engines.robust import (
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NormBound,
    PlainMean,
    RobustMean,
    TrimmedMean,
    alike,
    gathered,
)
from fedtail.forms import SAMPLES, ByClass, Form, Like, Mean, Total
from fedtail.privacy.layout import Opened, vector
from fedtail.protocol import Payload, Update
from fedtail.reduce import Reduced
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


def products(*changes: list[float]) -> torch.Tensor:
    """Return the inner products of changes."""
    each = torch.tensor(changes, dtype=torch.float64)
    return each @ each.T


def test_long_changes_are_shortened() -> None:
    # Norms 1, 5, 2: the median is 2, so that the second counts 2/5.
    gram = products([1.0, 0.0], [3.0, 4.0], [0.0, 2.0])
    assert NormBound().shares(gram).tolist() == pytest.approx([1 / 3, 2 / 15, 1 / 3])
    assert NormBound(bound=0.5).shares(gram).tolist() == pytest.approx([1 / 6, 1 / 30, 1 / 12])
    assert NormBound(multiple=9.0).shares(gram).tolist() == pytest.approx([1 / 3] * 3)
    assert NormBound().shares(products([0.0], [0.0])).tolist() == [0.0, 0.0]  # of nothing


def test_krum_keeps_who_is_near_to_most() -> None:
    # On a line: 0, 1, 2, 2.5, 50; one may be bad, so that 5 − 1 − 2 = 2 neighbours count. Squared
    # distances: 0: 1 + 4; 1: 1 + 1; 2: 0.25 + 1; 2.5: 0.25 + 2.25; 50: 47.5² + 48².
    gram = products([0.0], [1.0], [2.0], [2.5], [50.0])
    assert Krum().shares(gram).tolist() == [0, 0, 1, 0, 0]
    assert Krum(keep=2).shares(gram).tolist() == [0, 0.5, 0.5, 0, 0]
    assert MultiKrum().shares(gram).tolist() == [0.25, 0.25, 0.25, 0.25, 0]
    # Two clients, one client: nobody to compare with, nobody left out for nothing.
    assert Krum().shares(products([0.0], [9.0])).tolist() == [1, 0]
    assert MultiKrum().shares(products([7.0])).tolist() == [1]


def test_the_geometric_median_of_a_line_is_the_median_and_of_a_triangle_its_fermat_point() -> None:
    line = torch.tensor([[0.0], [1.0], [2.0], [3.0], [100.0]], dtype=torch.float64)
    shares = GeometricMedian().shares(line @ line.T)
    assert float(shares @ line[:, 0]) == pytest.approx(2.0, abs=1e-3)
    # Of an isosceles right triangle with legs 1 it is (x, x), x = (3 − √3) / 6 ≈ 0.2113.
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    found = GeometricMedian(steps=1000).shares(corners @ corners.T) @ corners
    assert found.tolist() == pytest.approx([(3 - 3**0.5) / 6] * 2, abs=1e-4)


def test_shares_are_of_changes_against_what_was_sent() -> None:
    # Sent 10; answers 11 and 14 are changes of 1 and 4, the median norm is 2.5: 10 + (1 + 2.5) / 2.
    values = {"model/w": torch.tensor([[11.0], [14.0]], dtype=torch.float64)}
    found = NormBound().combined(values, {"model/w": torch.tensor([10.0])})
    assert found["model/w"].tolist() == pytest.approx([11.75])
    # Rows that nobody sent out are changes against nothing.
    assert NormBound().combined(values, {})["model/w"].tolist() == pytest.approx([11.75], abs=0.3)


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
    found = {
        (name, part): values.flatten().tolist()
        for part, named in gathered(updates, form)
        for name, values in named.items()
    }
    # Client 3 has no samples, and no say.
    assert found == {
        ("own/w", 0): [0.0],
        ("own/w", 1): [1.0, 2.0],
        ("grad/b", 0): [0.0, 10.0],
        ("grad/b", 2): [12.0],
    }


ROWS_AND_ALL = (
    Form()
    .group("model", {"w": Like((1,)), "b": Like((1,)), "n": Like((), torch.int64)}, Mean())
    .group("grad", {"g": Like((1,))}, ByClass(3))
    .group("seen", {"c": Like((1,))}, Total())
    .numbers(samples=SAMPLES)
)
SENT = {"model/w": torch.tensor([10.0]), "model/b": torch.tensor([10.0])}


def answered(w: float, b: float, rows: dict[int, float], samples: int = 2) -> Payload:
    tensors = {
        "model/w": torch.tensor([float(w)]),
        "model/b": torch.tensor([float(b)]),
        "model/n": torch.tensor(7),
        "grad/classes": torch.tensor(list(rows), dtype=torch.int64),
        "grad/g": torch.tensor(list(rows.values())).reshape(-1, 1),
        "seen/c": torch.tensor([9.0]),
    }
    return Payload(tensors, {"samples": samples})


def test_a_client_shortens_its_own_change() -> None:
    # (13, 14) against (10, 10) is (3, 4), of norm 5: a tenth of it is left. Each row by itself:
    # 8 becomes 0.5, -0.25 is short enough. Sums and counters are no changes.
    own = NormBound(bound=0.5).alone(answered(13, 14, {0: 8.0, 2: -0.25}), ROWS_AND_ALL, SENT)
    assert own.tensors["model/w"].tolist() == pytest.approx([10.3], rel=1e-15)
    assert own.tensors["model/b"].tolist() == pytest.approx([10.4], rel=1e-15)
    assert own.tensors["grad/g"].tolist() == [[0.5], [-0.25]]
    assert (own.tensors["seen/c"].tolist(), int(own.tensors["model/n"])) == ([9.0], 7)
    assert own.scalars == {"samples": 2}


def test_the_plain_sum_of_shortened_changes_is_the_servers_norm_bound() -> None:
    bounded, form = NormBound(bound=0.5), alike(ROWS_AND_ALL)
    answers = [answered(13, 14, {0: 8.0}), answered(10, 10.2, {0: 0.1, 1: 3.0}, samples=90)]
    answers += [answered(99, 99, {}, samples=0)]  # has no samples, and no say in the model
    own = [vector(bounded.alone(answer, ROWS_AND_ALL, SENT), form, False) for answer in answers]
    opened = Opened(form)
    opened.read(torch.stack(own).sum(dim=0), None, 3)
    found = Reduced((0, 1, 2), opened)
    # (0.3 + 0) / 2 and (0.4 + 0.2) / 2; class 0: (0.5 + 0.1) / 2, class 1: 0.5 of one client.
    assert found["model"]["w"].tolist() == pytest.approx([10.15])
    assert found["model"]["b"].tolist() == pytest.approx([10.3])
    assert found["grad"]["g"].flatten().tolist() == pytest.approx([0.3, 0.5])
    updates = [Update(k, answer) for k, answer in enumerate(answers)]
    server = {
        (name, part): made.tolist()
        for part, values in gathered(updates, ROWS_AND_ALL)
        for name, made in bounded.combined(values, SENT).items()
    }
    assert server["model/w", None] == pytest.approx([10.15])
    assert server["grad/g", 0] == pytest.approx([0.3])


def shouted(done: Done) -> Done:
    """Send a hundred times the model: finite, and within every bound."""
    if done.payload is None:
        return done
    large = {n: 100 * t if t.is_floating_point() else t for n, t in done.payload.tensors.items()}
    return replace(done, payload=replace(done.payload, tensors=large))


def distance(one: Any, other: Any) -> float:
    return max(float((one.tensors[n] - t).abs().max()) for n, t in other.tensors.items())


@pytest.mark.parametrize(
    "robust",
    [
        "median",
        {"name": "trimmed_mean", "share": 0.2},
        "norm_bound",
        "krum",
        "multi_krum",
        "geometric_median",
    ],
)
def test_one_client_in_six_cannot_own_the_model(robust: Any) -> None:
    chosen = tiny.experiment(rounds=1, per_round=6)
    honest = run(chosen)
    attacked = run_with(chosen, partial(Spoiler, spoil=shouted))
    defended = run_with(chosen.but(robust=robust), partial(Spoiler, spoil=shouted))
    assert distance(attacked, honest) > 1
    assert distance(defended, honest) < 0.2


@pytest.mark.parametrize("robust", ["median", "geometric_median"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "gbme", "redgrape"])
def test_a_pool_gives_the_same_bits(name: str, robust: str) -> None:
    method: Method[Any] = Method.model_validate({"name": name, "local": tiny.quick()})
    chosen = tiny.experiment(method, tiny.norm_model, rounds=2, per_round=6, robust=robust)
    assert run(chosen.but(workers=1)).digest == run(chosen).digest


def test_none_is_the_plain_mean() -> None:
    chosen = tiny.experiment(rounds=1)
    assert chosen.robust == PlainMean() and chosen.robust_side is None
    kinds = {"median", "trimmed_mean", "norm_bound", "krum", "multi_krum", "geometric_median"}
    assert {"none", *kinds} == set(RobustMean.registry)


@pytest.mark.parametrize(
    ("robust", "why"),
    [
        ("median", "the middle of every number shows only where all clients' numbers are seen"),
        ("trimmed_mean", "which numbers are cut off shows only where"),
        ("norm_bound", "the median norm shows only where .* give robust.bound"),
        ("krum", "who lies near to whom shows only where all updates are seen"),
        ("multi_krum", "who lies near to whom"),
        ("geometric_median", "how far each update lies from the middle"),
    ],
)
def test_what_nobody_may_see_has_no_middle(robust: str, why: str) -> None:
    with pytest.raises(FedtailError, match=f"'{robust}' cannot be summed securely: {why}"):
        tiny.experiment(secure=True, robust=robust)


@pytest.mark.parametrize("robust", ["median", {"name": "norm_bound", "bound": 1.0}])
@pytest.mark.parametrize("secure", [False, True])
def test_noise_is_planned_for_plain_sums(robust: Any, secure: bool) -> None:
    with pytest.raises(FedtailError, match="does not go with differential privacy, in which priv"):
        tiny.experiment(secure=secure, robust=robust, privacy=Privacy(epsilon=8.0))


def test_too_much_for_memory_is_said_with_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtail.engines.robust.MOST_BYTES", 1000)
    with pytest.raises(FedtailError, match=r"holds the updates of a round together, about 0\.0 GB"):
        run(tiny.experiment(rounds=1, robust="median"))
