"""Both sides of a run's protection, made from its description."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fedtail.errors import FedtailError
from fedtail.privacy.budget import Budget, planned
from fedtail.privacy.client_side import ClientProtection, width
from fedtail.privacy.secure.desk import Desk
from fedtail.privacy.secure.member import Member
from fedtail.privacy.secure.round import SecureSums
from fedtail.privacy.server_side import ServerProtection
from fedtail.setting import Setting

IN_MEMORY = Path("/dev/shm")


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
    """Make what protects a run, if it asks for anything; its clients' keys are gone afterwards."""
    experiment = setting.experiment
    if not experiment.protected:
        yield None
        return
    budget, client = None, ClientProtection(robust=experiment.robust_side)
    if experiment.privacy.on:
        budget = budgeted(setting)
        local = experiment.privacy.model == "local"
        client = ClientProtection(None, experiment.privacy, budget.sigma if local else 0.0)
    server = ServerProtection(client, None, budget, experiment.seed)
    if not experiment.secure:
        yield Protection(client, server, budget)
        return
    client.bits = width(experiment.privacy, len(setting.federation))
    server.secure = SecureSums(experiment.title, experiment.secure_threshold, client)
    # Workers are processes that each do any client's tasks: what clients keep is in files, in
    # memory where there is a place for it.
    with TemporaryDirectory(
        prefix="fedtail-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None
    ) as own:
        client.member = Member(Desk(Path(own), durable=False))
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
