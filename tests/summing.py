"""Runs in which the server is shown sums over clients."""

from __future__ import annotations

from collections.abc import Callable

from fedtail import Experiment
from fedtail.engines import Embedded
from fedtail.engines.executor import Executor, Serial
from fedtail.engines.runtime import Runtime
from fedtail.loop import Loop
from fedtail.privacy.plan import protection
from fedtail.result import Result
from fedtail.setting import prepare


def summed(experiment: Experiment, executor: Callable[[Runtime], Executor] = Serial) -> Result:
    """Run with secure sums and an executor of one's own."""
    setting = prepare(experiment.but(secure=True))
    with protection(setting) as sides:
        assert sides is not None
        runtime = setting.runtime(sides.client)
        engine = Embedded(runtime, server_side=sides.server)
        engine.executor = executor(runtime)
        return Loop(setting, engine, None, (), sides.budget).run(False)


def far(found: Result, expected: Result) -> float:
    """Return the largest relative distance of two models' tensors; counters are left out."""
    distances = [0.0]
    for name, t in expected.tensors.items():
        if t.is_floating_point():
            apart = (found.tensors[name].double() - t.double()).norm()
            distances.append(float(apart / t.double().norm().clamp(min=1e-3)))
    return max(distances)
