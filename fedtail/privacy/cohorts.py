"""Who is asked in a private run, where the promise counts on nobody knowing it.

Clients that are drawn at random are better protected, but only from those who do not know who was
drawn. A cohort that follows from the run's seed is known to everybody who has the run's
description, so here it is drawn from the system's randomness, once a round, and kept in memory
only: a resumed run draws anew.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from fedtail.protocol import ClientId
from fedtail.rng import derive


@dataclass
class Cohorts:
    """Draws the clients of each round, all alike.

    Attributes
    ----------
    clients, size
        How many there are, and how many a round asks (or asks in the mean).
    poisson
        Whether each client is drawn on its own.
    seed
        For simulations: what the draws follow from.
    """

    clients: int
    size: int
    poisson: bool = False
    seed: int | None = None
    _drawn: dict[int, list[ClientId]] = field(default_factory=dict, repr=False)

    @property
    def secret(self) -> bool:
        """Whether nobody but this process can know who was drawn."""
        return self.seed is None

    def drawn(self, round: int) -> list[ClientId]:
        """Return who was drawn for a round, in ascending order; with Poisson, perhaps nobody."""
        if round not in self._drawn:
            self._drawn[round] = sorted(self._draw(self._chance(round)))
        return self._drawn[round]

    def asked(self, round: int) -> list[ClientId]:
        """Return whom to ask: who was drawn, or somebody whose answer does not count (`void`)."""
        return self.drawn(round) or [0]

    def void(self, round: int) -> bool:
        """Whether nobody was drawn: the round then releases noise and nothing else."""
        return not self.drawn(round)

    def _chance(self, round: int) -> random.Random:
        if self.seed is None:
            return random.SystemRandom()
        return random.Random(derive(self.seed, "private cohort", round))

    def _draw(self, chance: random.Random) -> list[ClientId]:
        if not self.poisson:
            return chance.sample(range(self.clients), self.size)
        return [k for k in range(self.clients) if chance.randrange(self.clients) < self.size]
