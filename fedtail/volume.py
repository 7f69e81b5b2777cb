"""How many bytes a run will send, from what its method declares, before anything is sent.

Class gradients are C heads for each client, and covariances d² numbers for each class: with many
classes and wide features that is gigabytes. Who is told beforehand can choose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fedtail.forms import Form
from fedtail.metrics.traffic import human_bytes
from fedtail.models.split_model import SplitModel

INDEX = 8
"""Bytes of a class's number beside its row, and of a scalar."""


class Volume(NamedTuple):
    """Bytes to and from one client.

    Attributes
    ----------
    down, up
        In a round.
    once
        In both directions, once in a run.
    less
        What sends less, in a clause.
    """

    down: int = 0
    up: int = 0
    once: int = 0
    less: str = ""


class Traffic(NamedTuple):
    """Bytes to and from all clients: in a round, once in a run, and in all."""

    round: int
    once: int
    total: int
    less: str

    @classmethod
    def of(
        cls, volumes: Sequence[Volume], rounds: int, cohort: int, clients: int
    ) -> Traffic | None:
        """Return what so many rounds with such cohorts come to; none if nothing is known."""
        if not volumes:
            return None
        each = cohort * sum(v.down + v.up for v in volumes)
        once = clients * sum(v.once for v in volumes)
        return cls(each, once, rounds * each + once, "; ".join(v.less for v in volumes))

    @property
    def sentence(self) -> str:
        """Return it in words."""
        parts = [f"about {human_bytes(self.round)} in a round"] if self.round else []
        parts += [f"{human_bytes(self.once)} once"] if self.once else []
        return f"{' and '.join(parts)}, {human_bytes(self.total)} in all"

    @property
    def remark(self) -> str:
        """Return what is said before a run that sends much."""
        return f"clients will send and receive {self.sentence}; {self.less}"


def model_bytes(model: SplitModel) -> int:
    """Return the bytes of what moves in training."""
    return sum(t.numel() * t.element_size() for _, t in model.live())


def form_bytes(form: Form, held: float) -> int:
    """Return the bytes of an answer of this form, with rows for so many classes."""
    fixed, rows = INDEX * len(form.scalars), INDEX * len(form.rows)
    for name, look in form.tensors.items():
        size = math.prod(look.shape) * look.dtype.itemsize
        if name.partition("/")[0] in form.rows:
            rows += size
        else:
            fixed += size
    return math.ceil(fixed + rows * held)
