"""What a run says that goes on to another number of rounds than it began with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny

from fedtail import FedAvg, run
from fedtail.callbacks import Callback
from fedtail.methods import ModelState


class Watch(Callback):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def on_warning(self, message: str) -> None:
        self.said.append(message)


def test_schedules_that_depend_on_the_number_of_rounds_are_said(tmp_path: Path) -> None:
    watch = Watch()
    method: FedAvg[ModelState] = FedAvg(local=tiny.quick(schedule="cosine"))
    run(tiny.experiment(method, rounds=1), out=tmp_path / "run")
    run(tiny.experiment(method, rounds=2), out=tmp_path / "run", resume=True, callbacks=[watch])
    assert watch.said == [
        "method.local.schedule = cosine: rounds 1 to 1 followed it as a part of 1 rounds, those "
        "after as a part of 2; a run of 2 rounds from the start would differ"
    ]
    watch.said.clear()
    run(tiny.experiment(rounds=1), out=tmp_path / "plain")
    run(tiny.experiment(rounds=2), out=tmp_path / "plain", resume=True, callbacks=[watch])
    assert watch.said == []


def test_a_last_round_that_was_validated_only_as_such_is_said(tmp_path: Path) -> None:
    watch = Watch()
    fields: dict[str, Any] = {"validation": 0.2, "keep": "best", "eval_every": 2}
    for before, rounds, told in ((3, 4, True), (2, 4, False)):
        folder = tmp_path / str(before)
        run(tiny.experiment(rounds=before, **fields), out=folder)
        longer = tiny.experiment(rounds=rounds, **fields)
        watch.said.clear()
        run(longer, out=folder, resume=True, callbacks=[watch])
        first = [line for line in watch.said if "was validated because it was the last" in line]
        assert bool(first) is told
