"""The budget of a run: what was planned, what is spent, and whether another round fits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedtail.errors import FedtailError
from fedtail.privacy.accounting import Release, Releases, least_noise, spent
from fedtail.privacy.cohorts import Cohorts
from fedtail.privacy.config import Privacy
from fedtail.protocol import ClientId, Task

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

    @property
    def most(self) -> int:
        """How many sums one client can be a part of."""
        return max(self.weights.values(), default=0)


@dataclass
class Budget:
    """Counts releases as they happen.

    Attributes
    ----------
    clients, size
        How many there are, and how many a round asks (with Poisson cohorts in the mean).
    cohorts
        Who draws them; none if everybody is asked.
    noise
        σ / S, of the sums and the share of clipped updates together.
    clip
        S of the next round.
    rounds
        What each round spent; round 0 is the preliminary exchange.
    """

    privacy: Privacy
    clients: int
    size: int
    cohorts: Cohorts | None = None
    noise: float = 0.0
    clip: float = 1.0
    rounds: dict[int, Spending] = field(default_factory=dict)

    @property
    def adaptive(self) -> bool:
        """Whether S follows a quantile of norms."""
        return self.privacy.quantile is not None

    @property
    def bit_noise(self) -> float:
        """The standard deviation σ_b of the noise in the count of clipped updates, if it is asked.

        A twentieth of the cohort, as the paper has it, and at least 2 σ / S: so it makes the sums'
        noise larger by a thirtieth at most.
        """
        return max(self.size / 20, 2 * self.noise)

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise: z S with 1 / z² = (S / σ)² − 1 / (2 σ_b)²."""
        taken = (2 * self.bit_noise) ** -2 if self.adaptive else 0.0
        return float((self.noise**-2 - taken) ** -0.5) * self.clip

    def divisor(self, asked: int, round: int) -> int:
        """Return what a sum is divided by for a mean: who was asked, as far as that is public."""
        return self.size if self.privacy.sampling == "poisson" and round else asked

    def void(self, round: int) -> bool:
        """Whether nobody was drawn, and who was asked all the same does not count."""
        return self.cohorts is not None and bool(round) and self.cohorts.void(round)

    def follow(self, share: float, round: int) -> None:
        """Move S to where the asked share of updates would not be clipped: S e^(−0.2 (b − γ))."""
        if self.privacy.quantile is not None and round:
            self.clip *= math.exp(-0.2 * (share - self.privacy.quantile))

    def note(self, tasks: Sequence[Task], round: int) -> None:
        """Count an exchange, answered or not."""
        asked = [task.client for task in tasks]
        drawn = self.cohorts is not None and bool(round)
        self.rounds.setdefault(round, Spending()).add(
            asked, drawn and sorted(asked) == self.cohort(round)
        )

    def cohort(self, round: int) -> list[ClientId]:
        """Return whom a round asks."""
        return list(range(self.clients)) if self.cohorts is None else self.cohorts.asked(round)

    def spent(self, more: Spending | None = None) -> float:
        """Return ε so far, or with one more round like that."""
        each = [*self.rounds.values(), *([] if more is None else [more])]
        return self.cost(each, self.noise)

    def spent_if_known(self) -> float:
        """Return ε so far towards those who know who was asked: being drawn protects nobody then.

        It is that of the client that was asked most often.
        """
        weight = max(self._by_client(self.rounds.values()).values(), default=0)
        delta, distance = self.privacy.delta, self.privacy.distance
        return spent({Release(1, 1): weight}, self.noise, delta, distance) if weight else 0.0

    def cost(self, each: Sequence[Spending], noise: float) -> float:
        """Return ε of some rounds with a noise σ / S."""
        return spent(self.releases(each), noise, self.privacy.delta, self.privacy.distance)

    def releases(self, each: Sequence[Spending]) -> Releases:
        """Return what the accountant composes: in the local model, what one client released."""
        if self.privacy.model == "central":
            return Counter(self._release(s) for s in each if s.weights)
        most = max(self._by_client(each).values(), default=0)
        return {Release(1, 1): most} if most else {}

    def _release(self, spending: Spending) -> Release:
        if not spending.drawn:
            return Release(self.clients, self.clients, spending.most)
        poisson = self.privacy.sampling == "poisson"
        asked = self.size if poisson else len(spending.weights)
        return Release(asked, self.clients, spending.most, poisson)

    @staticmethod
    def _by_client(each: Iterable[Spending]) -> Counter[ClientId]:
        total: Counter[ClientId] = Counter()
        for spending in each:
            total.update(spending.weights)
        return total

    def affords(self, round: int) -> bool:
        """Whether one more round like the last one fits."""
        last = self.rounds.get(round - 1) if round > 1 else None
        exchanges = last.most if last is not None and last.drawn == self.draws else 1
        more = Spending(dict.fromkeys(self.cohort(round), exchanges), self.draws)
        return self.spent(more) <= float(self.privacy.epsilon or 0) * SLACK

    @property
    def draws(self) -> bool:
        """Whether cohorts are drawn by chance."""
        return self.cohorts is not None

    @property
    def hides(self) -> bool:
        """Whether the promise counts on nobody knowing who was asked."""
        return self.cohorts is not None and self.cohorts.secret

    def record(self, round: int) -> dict[str, Any]:
        """Return a round's entry in ``metrics.jsonl``; the first one has the setup's too."""
        new = [r for r in ((0, 1) if round == 1 else (round,)) if r in self.rounds]
        return {
            "epsilon": self.spent(),
            "epsilon_if_known": self.spent_if_known(),
            "budget": self.privacy.epsilon,
            "delta": self.privacy.delta,
            "neighbours": self.privacy.neighbours,
            "sigma": self.sigma,
            "clip": self.clip,
            "simulated": self.privacy.simulated,
            "spent": [{"round": r, **self._plain(self.rounds[r])} for r in new],
        }

    def _plain(self, spending: Spending) -> dict[str, Any]:
        if not self.hides:
            weights = {str(c): w for c, w in sorted(spending.weights.items())}
            return {"drawn": spending.drawn, "weights": weights}
        return {"drawn": spending.drawn, "asked": len(spending.weights), "most": spending.most}

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
        last = done if self.privacy.simulated else max([done, *records])
        for number in range(1, last + 1):
            told = records.get(number, {}).get("privacy", {})
            if "spent" not in told:
                raise FedtailError(
                    f"what round {number} spent of the privacy budget is lost with its record: put "
                    "metrics.jsonl back as it was, or begin a new run"
                )
            for entry in told["spent"]:
                self.rounds[entry["round"]] = recalled(entry)
            self.clip = told["clip"] if number <= done else self.clip


def recalled(entry: Mapping[str, Any]) -> Spending:
    """Return what a record says that a round spent.

    Where it does not say whom it asked, the lowest numbers stand for them: as if the same clients
    were asked every time, which is the worst case.
    """
    weights = entry.get("weights", dict.fromkeys(range(entry.get("asked", 0)), entry.get("most")))
    return Spending({int(c): w for c, w in weights.items()}, entry["drawn"])


def planned(
    privacy: Privacy, clients: int, size: int, cohorts: Cohorts | None, rounds: int, setup: int
) -> Budget:
    """Return the budget of a run, with the noise that its rounds ask for.

    Parameters
    ----------
    privacy
        What is promised.
    clients, size, cohorts
        How many there are, how many a round asks, and who draws them.
    rounds
        How many rounds there will be, each with one cohort drawn at random.
    setup
        How many preliminary exchanges, each with every client.
    """
    budget = Budget(privacy, clients, size, cohorts, clip=privacy.clip)
    releases = [
        Spending(dict.fromkeys(budget.cohort(r), 1), budget.draws) for r in range(1, rounds + 1)
    ]
    if setup:
        releases.insert(0, Spending(dict.fromkeys(range(clients), setup), drawn=False))
    epsilon, delta = float(privacy.epsilon or 0), privacy.delta
    found = privacy.noise or least_noise(
        budget.releases(releases), epsilon, delta, privacy.distance
    )
    budget.noise = found
    if budget.cost(releases[: 2 if setup else 1], found) > epsilon * SLACK:
        raise FedtailError(
            f"privacy.noise = {found:g} is too little: the first round would spend more than "
            f"epsilon = {epsilon:g}"
        )
    return budget
