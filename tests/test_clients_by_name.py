"""Clients have names: in the split, in warnings, in records, and in scores client by client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from fedtail import Arrays, Callback, Centralised, Experiment, run
from fedtail.callbacks import RunInfo
from fedtail.engines.executor import Done, Serial
from fedtail.engines.runtime import Runtime
from fedtail.setting import prepare

NAMES = tuple(f"patient {k}" for k in (232, 100, 7, 9, 51, 6))


def named(**fields: Any) -> Experiment:
    """Return the tiny federation with names, and whose test samples are whose.

    Of the twelve test samples, three a class, the first four are of patient 232, the next four of
    patient 7 and the others of patient 300, who does not train.
    """
    arrays: dict[str, Any] = tiny.arrays()
    arrays["client_train"] = np.array(NAMES)[arrays["client_train"]]
    owners = [NAMES[0]] * 4 + [NAMES[2]] * 4 + ["patient 300"] * 4
    data = Arrays(**arrays, client_test=np.array(owners))
    return tiny.experiment(**fields).but(data=data)


class Watch(Callback):
    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.clients: tuple[str, ...] = ()

    def on_start(self, info: RunInfo) -> None:
        self.clients = info.clients

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


def lossy(lost: int) -> Any:
    class Lossy(Serial):
        def perform(self, jobs: Any, total: Any = None) -> list[Done]:
            return [
                Done(None, done.state, "lost")
                if job.task.client == lost and job.task.action == "train"
                else done
                for job, done in zip(jobs, super().perform(jobs), strict=True)
            ]

    def make(runtime: Runtime) -> Lossy:
        return Lossy(runtime)

    return make


def test_names_stand_in_the_split_the_start_the_warnings_and_the_record(tmp_path: Path) -> None:
    watch = Watch()
    setting = prepare(named())
    order = sorted(NAMES)  # natural clients stand in the order of their names
    assert setting.client_names == tuple(order)
    lost = order.index("patient 232")
    result = tiny.run_with(named(rounds=1, per_round=6), lossy(lost), [watch])
    assert watch.clients == tuple(order)
    assert watch.warnings == ["round 1: client patient 232 is left out: lost"]
    assert result.metrics["dropped"] == [{"client": lost, "name": "patient 232", "reason": "lost"}]
    run(named(rounds=1), out=tmp_path / "run")
    split = json.loads((tmp_path / "run" / "split.json").read_text())
    assert split["clients"] == order


def test_one_model_is_scored_client_by_client() -> None:
    record = run(named()).metrics
    found = record["clients_test"]
    counts = {"patient 232": 4, "patient 7": 4, "patient 300": 4}
    assert set(found["accuracy"]) == set(counts)
    # The clients' right answers are all right answers of the test set.
    right = sum(found["accuracy"][name] * counts[name] for name in counts)
    assert right == pytest.approx(12 * record["accuracy"])
    assert found["worst"] == min(found["accuracy"], key=lambda name: found["accuracy"][name])
    values = sorted(found["accuracy"].values())
    assert found["spread"] == pytest.approx(
        [values[0], sum(values[:2]) / 2, values[1], sum(values[1:]) / 2, values[2]]
    )


def test_workers_count_client_by_client_alike() -> None:
    alone, apart = run(named()), tiny.run_with(named(), lambda runtime: tiny.Isolated(runtime))
    assert alone.metrics["clients_test"] == apart.metrics["clients_test"]
    assert run(named(workers=2)).metrics["clients_test"] == alone.metrics["clients_test"]


def test_where_nobody_knows_whose_samples_they_are_nothing_is_said() -> None:
    assert "clients_test" not in run(tiny.experiment(rounds=1)).metrics


def test_one_client_with_all_samples_has_a_name_too() -> None:
    held = {"validation": {"share": 0.3, "by": "client"}}
    setting = prepare(named(method=Centralised(local=tiny.quick()), per_round=1, **held))
    assert setting.client_names[0] == "all"
    assert set(setting.client_names[1:]) < set(NAMES)
    assert list(setting.validators) == [1, 2]
