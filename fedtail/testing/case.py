"""One method on trial: its experiments on the tiny federation, and what several checks share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from fedtail.engines.executor import Done, Job
from fedtail.engines.runtime import Runtime
from fedtail.errors import FedtailError
from fedtail.experiment import Experiment
from fedtail.loop import run
from fedtail.methods.base import Method
from fedtail.protocol import Payload
from fedtail.result import Result
from fedtail.setting import prepare
from fedtail.testing import federation
from fedtail.testing.executors import Recorder, run_with
from fedtail.testing.federation import MODELS, PLAIN, input_shape

T = TypeVar("T")
Waves = list[list[tuple[Job, Done]]]

SERVER_PER_CLASS = 2
"""How many samples of a class a method gets that needs some on the server."""


class CheckFailed(AssertionError):
    """A promise that a method does not keep."""


def expect(kept: bool, sentence: str) -> None:
    """Say what is wrong, unless it is right."""
    if not kept:
        raise CheckFailed(sentence)


@dataclass(frozen=True)
class Case:
    """A registered method, and one of the models of `MODELS`.

    Attributes
    ----------
    fields
        Fields of the method; small numbers keep the checks fast.
    settings
        Fields of the experiment, such as ``server_per_class``.
    shared
        What was computed once for all checks.
    """

    method: type[Method[Any]]
    fields: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str = PLAIN
    shared: dict[str, Any] = field(default_factory=dict, repr=False)

    def on(self, model: str) -> Case:
        """Return the same method on another model."""
        return replace(self, model=model)

    def make_method(self) -> Method[Any]:
        """Return the method with a short local training."""
        local = {"local": {"batch_size": 4, "lr": 0.05, "momentum": 0.9}}
        known = local if "local" in self.method.model_fields else {}
        made: Method[Any] = Method.model_validate(
            {"name": self.method.name, **known, **self.fields}
        )
        return made

    def experiment(self, **settings: Any) -> Experiment:
        """Return three rounds of the method on the tiny federation."""
        needed = {} if self.method.server_data == "none" else {"server_per_class": SERVER_PER_CLASS}
        data = federation.source(input_shape(self.model))
        chosen = {"data": data, **needed, **self.settings, **settings}
        return federation.experiment(self.make_method(), MODELS[self.model], **chosen)

    def refusal(self) -> str:
        """Return the sentence with which the method refuses this model; nothing if it does not."""
        try:
            prepare(self.experiment())
        except FedtailError as error:
            return str(error)
        return ""

    def reference(self) -> Result:
        """Return the run that others are held against."""
        return self._once(f"reference {self.model}", lambda: run(self.experiment()))

    def recorded(self) -> tuple[Result, Waves]:
        """Return a run in which all clients take part, with every message."""
        return self._once(f"recorded {self.model}", partial(_recorded, self))

    def messages(self) -> Iterator[tuple[Job, Payload]]:
        """Yield what was sent to clients in the recorded run, and their answers."""
        for wave in self.recorded()[1]:
            for job, done in wave:
                if done.payload is None:
                    raise CheckFailed(f"{job}: {done.reason}")
                yield job, done.payload

    def _once(self, key: str, make: Callable[[], T]) -> T:
        if key not in self.shared:
            self.shared[key] = make()
        made: T = self.shared[key]
        return made


def _recorded(case: Case) -> tuple[Result, Waves]:
    made: list[Recorder] = []

    def recorder(runtime: Runtime) -> Recorder:
        made.append(Recorder(runtime))
        return made[0]

    chosen = case.experiment(per_round=len(federation.COUNTS), eval_every=3)
    return run_with(chosen, recorder), made[0].waves
