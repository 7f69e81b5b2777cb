"""One client that lies or is broken: it is named and left out, and nothing else changes.

Client 0 sends something wrong in every round. The run must be, to the last bit, the one in which
its answers are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from fedtail import Arrays, Experiment, Method
from fedtail.engines.executor import Done, Job, Serial
from fedtail.protocol import Payload, Scalar
from fedtail.result import Result
from fedtail.totals import Sums

Spoil = Callable[[Payload], Payload | None]

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "creff": {"name": "creff", "features": 2, "match_steps": 2, "head_epochs": 2},
    "redgrape": {"name": "redgrape", "per_class": 2},
    "scaffold": {"name": "scaffold"},
    "ifca": {"name": "ifca"},
    "bsm": {"name": "bsm", "prior": "global"},
}


def lost(payload: Payload) -> None:
    return None


def huge(payload: Payload) -> Payload:
    full = {n: t if not t.is_floating_point() else t * 0 + 1e30 for n, t in payload.tensors.items()}
    return replace(payload, tensors=full)


def with_scalar(name: str, value: Scalar) -> Spoil:
    return lambda payload: replace(payload, scalars={**payload.scalars, name: value})


def without_samples(payload: Payload) -> Payload:
    rest = {n: v for n, v in payload.scalars.items() if n != "samples"}
    return replace(payload, scalars=rest)


def first_as(change: Callable[[torch.Tensor], torch.Tensor]) -> Spoil:
    def spoil(payload: Payload) -> Payload:
        name = next(n for n in payload.tensors if n.endswith("weight"))
        return replace(payload, tensors={**payload.tensors, name: change(payload.tensors[name])})

    return spoil


def extra_tensor(payload: Payload) -> Payload:
    return replace(payload, tensors={**payload.tensors, "model/more": torch.zeros(1)})


def missing_tensor(payload: Payload) -> Payload:
    name = min(n for n in payload.tensors if n.startswith(("model/", "own/")))
    return replace(payload, tensors={n: t for n, t in payload.tensors.items() if n != name})


def fewer_rows(payload: Payload) -> Payload:
    rows = {n: t[1:] for n, t in payload.tensors.items() if n == "grad/weight"}
    return replace(payload, tensors={**payload.tensors, **rows})


def negative_counts(payload: Payload) -> Payload:
    return Payload({n: t * 0 - 10**9 for n, t in payload.tensors.items()})


EVERYWHERE: dict[str, tuple[Spoil, str]] = {
    "1e30 everywhere": (huge, "with numbers from 1e+30"),
    "samples 10**12": (with_scalar("samples", 10**12), "sent samples = 1000000000000, not from 0"),
    "samples 10**18": (with_scalar("samples", 10**18), "sent samples = 1000000000000000000"),
    "samples 10**400": (with_scalar("samples", 10**400), "sent samples = a whole number of 1329"),
    "samples negative": (with_scalar("samples", -3), "sent samples = -3"),
    "samples True": (with_scalar("samples", True), "sent samples = True"),
    "samples in words": (with_scalar("samples", "many"), "sent samples = 'many'"),
    "samples missing": (without_samples, "did not send 'samples'"),
    "a sparse tensor": (first_as(torch.Tensor.to_sparse), "as a sparse tensor"),
    "float64": (first_as(torch.Tensor.double), "as float64"),
    "an extra tensor": (extra_tensor, "sent 'model/more', which is not declared"),
    "an extra scalar": (with_scalar("more", 1), "sent 'more', which is not declared"),
    "a missing tensor": (missing_tensor, "did not send '"),
}
CASES = [
    *((method, "train", *case) for method in METHODS for case in EVERYWHERE.items()),
    ("creff", "train", "a row too few", (fewer_rows, "sent grad/weight of shape")),
    ("redgrape", "train", "a row too few", (fewer_rows, "sent grad/weight of shape")),
    (
        "ifca",
        "train",
        "cluster 10**6",
        (with_scalar("cluster", 10**6), "sent cluster = 1000000, not from 0 to 1"),
    ),
    ("bsm", "inform", "counts of -1e9", (negative_counts, "with numbers from -1e+09")),
]


@dataclass(frozen=True)
class Liar(Serial):
    """Spoils what client 0 answers to one action."""

    action: str = "train"
    spoil: Spoil = lost

    def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
        done = list(super().perform(jobs))
        return [self.told(job, one) for job, one in zip(jobs, done, strict=True)]

    def told(self, job: Job, done: Done) -> Done:
        if job.task.client or job.task.action != self.action or done.payload is None:
            return done
        return replace(done, payload=self.spoil(done.payload), reason="lost")


def experiment(method: str, cohort: int) -> Experiment:
    arrays = tiny.arrays()
    mine = arrays["client_train"] < cohort
    held = {n: arrays[n][mine] for n in ("x_train", "y_train", "client_train")}
    named: Method[Any] = Method.model_validate({**METHODS[method], "local": tiny.quick()})
    data = Arrays(**{**arrays, **held}, classes=tuple("abcd"))
    return tiny.experiment(named, data=data, rounds=2, per_round=cohort)


@cache
def without_client_0(method: str, cohort: int, action: str) -> Result:
    return tiny.run_with(experiment(method, cohort), lambda runtime: Liar(runtime, action, lost))


def named(value: Any) -> str:
    """Name a case by its words; what has an address has another one in every process."""
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize("cohort", [2, 4])
@pytest.mark.parametrize(("method", "action", "case", "how"), CASES, ids=named)
def test_a_bad_client(
    method: str, action: str, case: str, how: tuple[Spoil, str], cohort: int
) -> None:
    # Prepare
    spoil, words = how
    expected = without_client_0(method, cohort, action)

    # Execute
    result = tiny.run_with(experiment(method, cohort), lambda runtime: Liar(runtime, action, spoil))

    # Assert
    assert result.digest == expected.digest
    for record in result.history if action == "train" else result.history[:1]:
        assert [one["client"] for one in record["dropped"]] == [0]
        assert words in record["dropped"][0]["reason"]
    others = list(range(0 if action == "inform" else 1, cohort))
    assert [record["clients"] for record in result.history] == [others, others]


@pytest.mark.parametrize("method", METHODS)
def test_no_samples_at_all_weigh_nothing(method: str) -> None:
    # 0 is a number of samples like any other: the update is good, and counts for nothing.
    none = with_scalar("samples", 0)
    result = tiny.run_with(experiment(method, 4), lambda runtime: Liar(runtime, "train", none))
    assert all(not record["dropped"] for record in result.history)
    if method in ("fedavg", "bsm"):
        expected = without_client_0(method, 4, "train")
        for name, tensor in result.tensors.items():
            # The client's step counters and zero weight leave the others' mean as it is.
            torch.testing.assert_close(tensor, expected.tensors[name], rtol=0, atol=1e-6)


def test_the_tiny_clients_are_all_there() -> None:
    owners = tiny.arrays()["client_train"]
    assert np.bincount(owners).tolist() == [sum(row) for row in tiny.COUNTS]
