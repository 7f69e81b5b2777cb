"""The learning rate over rounds: a factor on the base rate."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from pydantic import Field

from fedtail.config import Component, Registry
from fedtail.errors import FedtailError


class Schedule(Component):
    """A factor for each round; rounds count from 1."""

    registry: ClassVar[Registry[Schedule]] = Registry("schedule")

    def factor(self, round: int, rounds: int) -> float:
        """Return what the base learning rate is multiplied with."""
        raise FedtailError(f"schedule '{self.name}' is abstract")


@Schedule.register("constant")
class Constant(Schedule):
    """The base rate throughout."""

    def factor(self, round: int, rounds: int) -> float:
        """Return 1."""
        return 1.0


@Schedule.register("step")
class StepDecay(Schedule):
    """Multiplied by `gamma` once each of the given fractions of the rounds is done."""

    at: tuple[Annotated[float, Field(ge=0, lt=1)], ...] = Field(
        (0.8,), description="fractions of the rounds after which it drops"
    )
    gamma: float = Field(0.1, gt=0, le=1, description="what it is multiplied with at each drop")

    def factor(self, round: int, rounds: int) -> float:
        """Return gamma to the number of drops passed."""
        # The small subtrahend keeps a whole number whole: 0.55 x 100 is 55.00000000000001.
        passed = sum(round - 1 >= fraction * rounds - 1e-9 for fraction in self.at)
        return float(self.gamma**passed)


@Schedule.register("cosine")
class Cosine(Schedule):
    """Half a cosine from 1 down to `floor`."""

    floor: float = Field(0.0, ge=0, le=1, description="the factor that the last round comes near")

    def factor(self, round: int, rounds: int) -> float:
        """Return floor + (1 − floor)·(1 + cos(π·done))/2."""
        done = (round - 1) / rounds
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2


@Schedule.register("linear")
class Linear(Schedule):
    """Constant until `start`, then straight down to `floor`."""

    start: float = Field(0.0, ge=0, lt=1, description="fraction of the rounds before it falls")
    floor: float = Field(0.0, ge=0, le=1, description="the factor that the last round comes near")

    def factor(self, round: int, rounds: int) -> float:
        """Return the factor on the line."""
        done = max(0.0, ((round - 1) / rounds - self.start) / (1 - self.start))
        return 1 - (1 - self.floor) * done
