"""The budget of a run: what was planned, what is spent, and whether another round fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedtail.errors import FedtailError
from fedtail.privacy.accounting import Release, Releases, least_noise, spent
from fedtail.privacy.config import Privacy
from fedtail.protocol import ClientId, Server, Task

SLACK = 1 + 1e-6
"""Rounding does not break a promise."""


@dataclass
class Spending:
    """What the sums of one round cost: of how many each client was a part.

    Attributes
    ----------
    weights
        Of each client asked, the sum over exchanges of the square of its tasks in it.
    drawn
        Whether the cohort was drawn by chance, each client as likely as any other.
    """

    weights: dict[ClientId, int] = field(default_factory=dict)
    drawn: bool = True

    def add(self, clients: Iterable[ClientId], drawn: bool) -> None:
        """Count one exchange."""
        for client, tasks in Counter(clients).items():
            self.weights[client] = self.weights.get(client, 0) + tasks**2
        self.drawn = self.drawn and drawn

    def release(self, clients: int) -> Release:
        """Return what it is for the accountant."""
        return Release(len(self.weights) if self.drawn else clients, clients, self.most)

    @property
    def most(self) -> int:
        """How many sums one client can be a part of."""
        return max(self.weights.values(), default=0)


@dataclass
class Budget:
    """Counts releases as they happen.

    Attributes
    ----------
    clients
        How many there are.
    cohort
        Whom a round asks if it draws at random.
    noise
        σ / S.
    rounds
        What each round spent; round 0 is the preliminary exchange.
    """

    privacy: Privacy
    clients: int
    cohort: Callable[[int], Sequence[ClientId]]
    noise: float = 0.0
    rounds: dict[int, Spending] = field(default_factory=dict)

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise."""
        return self.noise * self.privacy.clip

    def note(self, tasks: Sequence[Task], round: int) -> None:
        """Count an exchange, answered or not."""
        asked = [task.client for task in tasks]
        drawn = sorted(asked) == list(self.cohort(round)) if round else False
        self.rounds.setdefault(round, Spending()).add(asked, drawn)

    def spent(self, more: Spending | None = None) -> float:
        """Return ε so far, or with one more round like that."""
        each = [*self.rounds.values(), *([] if more is None else [more])]
        return self.cost(each, self.noise)

    def cost(self, each: Sequence[Spending], noise: float) -> float:
        """Return ε of some rounds with a noise σ / S."""
        return spent(self.releases(each), noise / 2, self.privacy.delta)

    def releases(self, each: Sequence[Spending]) -> Releases:
        """Return what the accountant composes: in the local model, what one client released."""
        if self.privacy.model == "central":
            return Counter(s.release(self.clients) for s in each if s.weights)
        total: Counter[ClientId] = Counter()
        for spending in each:
            total.update(spending.weights)
        most = max(total.values(), default=0)
        return {Release(1, 1): most} if most else {}

    def affords(self, round: int) -> bool:
        """Whether one more round like the last one fits."""
        last = self.rounds.get(round - 1) if round > 1 else None
        exchanges = last.most if last is not None and last.drawn else 1
        more = Spending(dict.fromkeys(self.cohort(round), exchanges))
        return self.spent(more) <= float(self.privacy.epsilon or 0) * SLACK

    def record(self, round: int) -> dict[str, Any]:
        """Return a round's entry in ``metrics.jsonl``; the first one has the setup's too."""
        new = [r for r in ((0, 1) if round == 1 else (round,)) if r in self.rounds]
        return {
            "epsilon": self.spent(),
            "budget": self.privacy.epsilon,
            "delta": self.privacy.delta,
            "sigma": self.sigma,
            "spent": [
                {
                    "round": r,
                    "drawn": self.rounds[r].drawn,
                    "weights": {str(c): w for c, w in sorted(self.rounds[r].weights.items())},
                }
                for r in new
            ],
        }

    def recall(self, records: Mapping[int, Mapping[str, Any]], done: int) -> None:
        """Remember what the rounds before a resume spent.

        Rounds after the last one done will be done again. Noise from a seed is then the same, and
        nothing more is released; secret noise is drawn anew, so that they cost twice.

        Parameters
        ----------
        records
            All that are left, by their rounds.
        done
            The last round that stands; what any of them spent must be known.
        """
        last = max([done, *records]) if self.privacy.secret else done
        for number in range(1, last + 1):
            entries = records.get(number, {}).get("privacy", {}).get("spent")
            if entries is None:
                raise FedtailError(
                    f"what round {number} spent of the privacy budget is lost with its record: put "
                    "metrics.jsonl back as it was, or begin a new run"
                )
            for entry in entries:
                weights = {int(c): w for c, w in entry["weights"].items()}
                self.rounds[entry["round"]] = Spending(weights, entry["drawn"])


def planned(privacy: Privacy, server: Callable[[int], Server], rounds: int, setup: int) -> Budget:
    """Return the budget of a run, with the noise that its rounds ask for.

    Parameters
    ----------
    privacy
        What is promised.
    server
        The server of each round.
    rounds
        How many rounds there will be, each with one cohort drawn at random.
    setup
        How many preliminary exchanges, each with every client.
    """
    everybody = server(0).clients
    budget = Budget(privacy, len(everybody), lambda round: server(round).cohort())
    releases = [Spending(dict.fromkeys(budget.cohort(r), 1)) for r in range(1, rounds + 1)]
    if setup:
        releases.insert(0, Spending(dict.fromkeys(everybody, setup), drawn=False))
    epsilon, delta = float(privacy.epsilon or 0), privacy.delta
    found = privacy.noise or 2 * least_noise(budget.releases(releases), epsilon, delta)
    budget.noise = found
    if budget.cost(releases[: 2 if setup else 1], found) > epsilon * SLACK:
        raise FedtailError(
            f"privacy.noise = {found:g} is too little: the first round would spend more than "
            f"epsilon = {epsilon:g}"
        )
    return budget
