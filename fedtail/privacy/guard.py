"""Both halves of a run's protection, made from its description."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedtail.engines.base import Engine
from fedtail.engines.protected import Protected
from fedtail.errors import FedtailError
from fedtail.privacy.budget import Budget, plan
from fedtail.privacy.ckks import Adder, tenseal
from fedtail.privacy.shield import Shield
from fedtail.privacy.unnamed import unnamed_keys
from fedtail.setting import Setting


@dataclass(frozen=True)
class Guard:
    """What protects the updates of a run, if anything does.

    Attributes
    ----------
    shield
        The clients' half.
    adder
        The server's half of the keys, if updates are encrypted.
    budget
        What may be spent, with differential privacy.
    seed
        Of the server's noise.
    """

    shield: Shield | None = None
    adder: Adder | None = None
    budget: Budget | None = None
    seed: int = 0

    def around(self, engine: Engine) -> Engine:
        """Return the engine as the server sees it."""
        if self.shield is None:
            return engine
        return Protected(engine, self.adder, self.budget, self.seed)


@contextmanager
def guarded(setting: Setting) -> Iterator[Guard]:
    """Make what protects a run; keys of its own are gone afterwards."""
    experiment = setting.experiment
    budget, shield = None, Shield()
    if experiment.privacy.on:
        budget = planned(setting)
        local = experiment.privacy.model == "local"
        shield = Shield(None, experiment.privacy, budget.sigma if local else 0.0)
    if not experiment.encrypt:
        yield Guard() if budget is None else Guard(shield, None, budget, experiment.seed)
        return
    tenseal()  # before anything is written
    if experiment.keys:
        shield.keys = Path(experiment.keys)
        yield Guard(shield, Adder.open(shield.keys), budget, experiment.seed)
        return
    with unnamed_keys(apart=experiment.workers > 0) as (secret, public):
        shield.keys = secret
        yield Guard(shield, Adder.of(public), budget, experiment.seed)


def planned(setting: Setting) -> Budget:
    """Return the budget; a method that it cannot cover is refused."""
    experiment, method = setting.experiment, setting.method
    server = setting.server(0)
    state = method.init(setting.model, server)
    before = next(method.setup(state, server), [])
    if next(method.finalize(state, setting.server(1)), []):
        raise FedtailError(
            f"method '{method.name}' asks clients again after training, which the budget of "
            "differential privacy does not cover"
        )
    try:
        train = next(method.round(state, setting.server(1)), [])
    except (IndexError, KeyError, AttributeError):
        train = []  # a state that only the setup can make
    return plan(experiment.privacy, setting.server, experiment.rounds, (before, train))
