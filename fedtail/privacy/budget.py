"""The budget of a run: what was planned, what is spent, and whether another round fits."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtail.callbacks.jsonl import read_records
from fedtail.errors import FedtailError
from fedtail.files import append_line, write_atomic
from fedtail.privacy.accounting import Release, Releases, least_noise, spent
from fedtail.privacy.cohorts import Cohorts
from fedtail.privacy.config import Privacy
from fedtail.privacy.noise import MOST_STEPS, grid_step, noise_in_steps
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
    named
        Whether these are the clients that were asked, and not some in their place.
    """

    weights: dict[ClientId, int] = field(default_factory=dict)
    drawn: bool = True
    named: bool = True

    @classmethod
    def of(cls, clients: Iterable[ClientId], drawn: bool) -> Spending:
        """Return what one exchange cost."""
        return cls({client: tasks**2 for client, tasks in Counter(clients).items()}, drawn)

    @classmethod
    def told(cls, line: Mapping[str, Any]) -> Spending:
        """Return what a line of ``privacy.jsonl`` says of one exchange."""
        if "weights" in line:
            return cls({int(c): w for c, w in line["weights"].items()}, line["drawn"])
        return cls(dict.fromkeys(range(line["asked"]), line["most"]), line["drawn"], named=False)

    def plain(self, hides: bool) -> dict[str, Any]:
        """Return it for a line of ``privacy.jsonl``, without names where nobody may know them."""
        if hides:
            return {"drawn": self.drawn, "asked": len(self.weights), "most": self.most}
        return {
            "drawn": self.drawn,
            "weights": {str(c): w for c, w in sorted(self.weights.items())},
        }

    def add(self, other: Spending) -> None:
        """Count another exchange of the same round."""
        for client, weight in other.weights.items():
            self.weights[client] = self.weights.get(client, 0) + weight
        self.drawn, self.named = self.drawn and other.drawn, self.named and other.named

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
    clip, next_clip
        S of this round, and of the next.
    rounds
        What each round spent; round 0 is the preliminary exchange.
    again
        What rounds spent that had to be done again after a resume.
    file
        ``privacy.jsonl``: a line an exchange, written before its sums are shown, and never cut. A
        resume cuts ``metrics.jsonl``, but not what was released.
    attempt
        How often the run was started, to tell apart what a round spent and what it spent again.
    """

    privacy: Privacy
    clients: int
    size: int
    cohorts: Cohorts | None = None
    noise: float = 0.0
    clip: float = 1.0
    next_clip: float = 0.0
    rounds: dict[int, Spending] = field(default_factory=dict)
    again: list[Spending] = field(default_factory=list)
    file: Path | None = None
    attempt: int = 1

    def __post_init__(self) -> None:
        self.next_clip = self.clip

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
        """Move the next S to where the asked share would not be clipped: S e^(−0.2 (b − γ))."""
        if self.privacy.quantile is not None and round:
            self.next_clip *= math.exp(-0.2 * (share - self.privacy.quantile))

    def note(self, tasks: Sequence[Task], round: int) -> None:
        """Count an exchange, answered or not."""
        asked = [task.client for task in tasks]
        drawn = self.cohorts is not None and bool(round)
        spending = Spending.of(asked, drawn and sorted(asked) == self.cohort(round))
        self.rounds.setdefault(round, Spending()).add(spending)
        if self.file is not None:
            line = {"round": round, "attempt": self.attempt, **spending.plain(self.hides)}
            append_line(self.file, json.dumps(line), sync=True)

    def cohort(self, round: int) -> list[ClientId]:
        """Return whom a round asks."""
        return list(range(self.clients)) if self.cohorts is None else self.cohorts.asked(round)

    def spent(self, more: Spending | None = None) -> float:
        """Return ε so far, or with one more round like that."""
        return self.cost([*self.all(), *([] if more is None else [more])], self.noise)

    def all(self) -> list[Spending]:
        """Return what was spent, round by round."""
        return [*self.rounds.values(), *self.again]

    def spent_if_known(self) -> float:
        """Return ε so far towards those who know who was asked: being drawn protects nobody then.

        It is that of the client that was asked most often.
        """
        weight = most_of_one(self.all())
        delta, distance = self.privacy.delta, self.privacy.distance
        return spent({Release(1, 1): weight}, self.noise, delta, distance) if weight else 0.0

    def cost(self, each: Sequence[Spending], noise: float) -> float:
        """Return ε of some rounds with a noise σ / S."""
        return spent(self.releases(each), noise, self.privacy.delta, self.privacy.distance)

    def releases(self, each: Sequence[Spending]) -> Releases:
        """Return what the accountant composes: in the local model, what one client released."""
        if self.privacy.model == "central":
            return Counter(self._release(s) for s in each if s.weights)
        weight = most_of_one(each)
        return {Release(1, 1): weight} if weight else {}

    def _release(self, spending: Spending) -> Release:
        if not spending.drawn:
            return Release(self.clients, self.clients, spending.most)
        poisson = self.privacy.sampling == "poisson"
        asked = self.size if poisson else len(spending.weights)
        return Release(asked, self.clients, spending.most, poisson)

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

    def record(self) -> dict[str, Any]:
        """Return the entry in ``metrics.jsonl``: what is spent, and the round's noise and S."""
        return {
            "epsilon": self.spent(),
            "epsilon_if_known": self.spent_if_known(),
            "budget": self.privacy.epsilon,
            "delta": self.privacy.delta,
            "neighbours": self.privacy.neighbours,
            "sigma": self.sigma,
            "clip": self.clip,
            **({"next_clip": self.next_clip} if self.adaptive else {}),
            "simulated": self.privacy.simulated,
        }

    def recall(self, records: Mapping[int, Mapping[str, Any]], done: int) -> None:
        """Remember what was spent before a resume.

        Rounds after the last one done will be done again. Noise from a seed is then the same, and
        nothing more is released; secret noise is drawn anew, so that they cost twice.

        Parameters
        ----------
        records
            Of all rounds that there are records of.
        done
            The last round that stands; what any of them spent must be known.
        """
        lines = [] if self.file is None else read_records(self.file)
        simulated = self.privacy.simulated
        known: dict[tuple[int, int], Spending] = {}
        for line in lines:
            at = line["attempt"], line["round"]
            known.setdefault(at, Spending()).add(Spending.told(line))
        for (_, number), spending in sorted(known.items(), key=lambda each: each[0]):
            if done and number <= done:
                if number in self.rounds and not simulated:
                    self.again.append(self.rounds[number])
                self.rounds[number] = spending
            elif not simulated:
                self.again.append(spending)
        self.attempt = max((line["attempt"] for line in lines), default=0) + 1
        told = [r["privacy"]["epsilon"] for n, r in records.items() if n <= done or not simulated]
        if self.spent() * SLACK < max(told, default=0.0):
            raise FedtailError(
                "what the rounds so far spent of the privacy budget is lost: put privacy.jsonl "
                "back as it was, or begin a new run"
            )
        if self.file is not None:  # what is added to a line that was torn cannot be read
            write_atomic(self.file, "".join(f"{json.dumps(line)}\n" for line in lines))
        if done in records:
            self.clip = records[done]["privacy"]["clip"]
            self.next_clip = records[done]["privacy"].get("next_clip", self.clip)


def most_of_one(each: Iterable[Spending]) -> int:
    """Return how many sums one client can be a part of.

    Whom a spending without names asked may be whoever was asked most often otherwise.
    """
    total: Counter[ClientId] = Counter()
    unknown = 0
    for spending in each:
        if spending.named:
            total.update(spending.weights)
        else:
            unknown += spending.most
    return max(total.values(), default=0) + unknown


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
    # What counts is how many are asked; only in the local model who is asked most often, and so
    # only there all cohorts are drawn in advance.
    some = Spending(dict.fromkeys(range(size), 1), budget.draws)
    releases = [
        some
        if privacy.model == "central"
        else Spending(dict.fromkeys(budget.cohort(r), 1), budget.draws)
        for r in range(1, rounds + 1)
    ]
    if setup:
        releases.insert(0, Spending(dict.fromkeys(range(clients), setup), drawn=False))
    epsilon, delta = float(privacy.epsilon or 0), privacy.delta
    found = privacy.noise or least_noise(
        budget.releases(releases), epsilon, delta, privacy.distance
    )
    budget.noise = found
    if noise_in_steps(budget.sigma, grid_step(budget.clip)) > MOST_STEPS:
        raise FedtailError(
            f"a noise of {found:g} times the clip is more than can be drawn exactly: make "
            f"{'privacy.noise smaller' if privacy.noise else 'privacy.epsilon larger'}"
        )
    if budget.cost(releases[: 2 if setup else 1], found) > epsilon * SLACK:
        raise FedtailError(
            f"privacy.noise = {found:g} is too little: the first round would spend more than "
            f"epsilon = {epsilon:g}"
        )
    return budget
