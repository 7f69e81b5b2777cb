"""Runs in which the server is shown sums over clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedtail import Experiment
from fedtail.engines import Embedded
from fedtail.engines.executor import Executor, Serial
from fedtail.engines.protected import Protected
from fedtail.engines.runtime import Runtime
from fedtail.loop import Loop
from fedtail.privacy.ckks import Adder
from fedtail.privacy.shield import Shield
from fedtail.result import Result
from fedtail.setting import prepare


def summed(
    experiment: Experiment,
    keys: Path | None = None,
    executor: Callable[[Runtime], Executor] = Serial,
) -> Result:
    """Run with protected updates, encrypted if there are keys, and hands of one's own."""
    setting = prepare(experiment)
    runtime = setting.runtime(Shield(keys))
    embedded = Embedded(runtime)
    embedded.executor = executor(runtime)
    engine = Protected(embedded, None if keys is None else Adder.open(keys))
    return Loop(setting, engine, None, ()).run(False)


def far(found: Result, expected: Result) -> float:
    """Return the largest relative distance of two models' tensors; counters are left out."""
    distances = [0.0]
    for name, t in expected.tensors.items():
        if t.is_floating_point():
            apart = (found.tensors[name].double() - t.double()).norm()
            distances.append(float(apart / t.double().norm().clamp(min=1e-3)))
    return max(distances)
