"""Both sides of a run's protection, made from its description."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedtail.errors import FedtailError
from fedtail.privacy.budget import Budget, planned
from fedtail.privacy.ckks import Adder, tenseal
from fedtail.privacy.client_side import ClientProtection
from fedtail.privacy.server_side import ServerProtection
from fedtail.privacy.unnamed import unnamed_keys
from fedtail.setting import Setting


@dataclass(frozen=True)
class Protection:
    """What protects the updates of a run.

    Attributes
    ----------
    client, server
        Its two sides.
    budget
        What may be spent, with differential privacy.
    """

    client: ClientProtection
    server: ServerProtection
    budget: Budget | None


@contextmanager
def protection(setting: Setting) -> Iterator[Protection | None]:
    """Make what protects a run, if it asks for anything; keys of its own are gone afterwards."""
    experiment = setting.experiment
    if not experiment.protected:
        yield None
        return
    budget, client = None, ClientProtection()
    if experiment.privacy.on:
        budget = budgeted(setting)
        local = experiment.privacy.model == "local"
        client = ClientProtection(None, experiment.privacy, budget.sigma if local else 0.0)
    server = ServerProtection(None, budget, experiment.seed)
    if not experiment.encrypt:
        yield Protection(client, server, budget)
        return
    tenseal()  # before anything is written
    if experiment.keys:
        client.keys = Path(experiment.keys)
        server.adder = Adder.open(client.keys)
        yield Protection(client, server, budget)
        return
    with unnamed_keys(apart=experiment.workers not in (0, "auto")) as (secret, public):
        client.keys, server.adder = secret, Adder.of(public)
        yield Protection(client, server, budget)


def budgeted(setting: Setting) -> Budget:
    """Return the budget; a method that it cannot cover is refused."""
    experiment, asks = setting.experiment, setting.method.asks()
    if asks.after:
        raise FedtailError(
            f"method '{setting.method.name}' asks clients again after training, which the budget "
            "of differential privacy does not cover"
        )
    if asks.round != "cohort":
        raise FedtailError(
            "the method draws its cohorts in a way of its own, for which the accountant has no "
            "rule: differential privacy needs clients that are drawn at random"
        )
    return planned(
        experiment.privacy,
        len(setting.federation),
        setting.cohort,
        setting.cohorts,
        experiment.rounds,
        asks.setup,
    )
