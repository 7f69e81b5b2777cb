"""Both halves of a run's protection, made from its description."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fedtail.engines.base import Engine
from fedtail.engines.protected import Protected
from fedtail.errors import FedtailError
from fedtail.privacy.budget import Budget, plan
from fedtail.privacy.ckks import Adder, make_keys, tenseal
from fedtail.privacy.shield import Shield
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
    with TemporaryDirectory(prefix="fedtail-keys-") as own:
        folder = Path(experiment.keys or own)
        if not experiment.keys:
            new_keys(folder, apart=experiment.workers > 0)
        shield.keys = folder
        yield Guard(shield, Adder.open(folder), budget, experiment.seed)


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


def new_keys(folder: Path, apart: bool) -> None:
    """Make keys for one run.

    Parameters
    ----------
    folder
        Where to.
    apart
        Whether in another process: where clients are processes of their own, that of the server
        never has the secret key.
    """
    if not apart:
        make_keys(folder)
        return
    code = "import sys; from fedtail.privacy.ckks import make_keys; from pathlib import Path; "
    made = subprocess.run(
        [sys.executable, "-c", f"{code}make_keys(Path(sys.argv[1]))", str(folder)],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        raise FedtailError(f"the keys could not be made: {made.stderr.strip()[-300:]}")
