"""Means that one client cannot own: the middle of what clients sent, number by number.

Yin, Chen, Kannan, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates", ICML 2018.

Every client that has samples counts the same, however many it announces. Whoever alone holds a
class looks like an outlier: robust means can delete rare classes (see the page on privacy).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedtail.config import Component, Registry
from fedtail.engines.base import Engine, Replies
from fedtail.engines.runtime import Clock, Phase
from fedtail.errors import FedtailError
from fedtail.forms import CLASSES, ByClass, Form, Mean
from fedtail.privacy.layout import Opened
from fedtail.protocol import Task, Update
from fedtail.totals import Key, weight

MOST_BYTES = 8 * 2**30
"""All updates of an exchange are in memory at once; no more than this."""


class RobustMean(Component):
    """How the updates of clients become a mean."""

    registry: ClassVar[Registry[RobustMean]] = Registry("robust mean")
    single: ClassVar[bool] = True

    def middle(self, values: Tensor) -> Tensor:
        """Return the mean of clients (rows), number by number."""
        raise FedtailError(f"robust mean '{self.name}' is abstract")

    def begin(self, tasks: Sequence[Task], engine: Engine, phase: Phase) -> Sequence[Task]:
        """Return the tasks as they are, if what they bring fits into memory."""
        kinds = {(t.action, id(t.payload)): engine.declared(t) for t in tasks}
        numbers = {k: sum(math.prod(x.shape) for x in f.tensors.values()) for k, f in kinds.items()}
        size = 4 * sum(numbers[task.action, id(task.payload)] for task in tasks)
        if size > MOST_BYTES:
            raise FedtailError(
                f"robust = '{self.name}' holds the updates of a round together, about "
                f"{size / 2**30:.1f} GB; at most {MOST_BYTES / 2**30:g} are allowed: take fewer "
                "clients a round"
            )
        return tasks

    def end(self, replies: Replies, tasks: Sequence[Task], engine: Engine, clock: Clock) -> Replies:
        """Put the middle in the place of every mean; sums stay sums."""
        found = replies.found
        form = found.totals.form
        middles = {key: (self.middle(values), 1.0) for key, values in gathered(found.each, form)}
        sums = {key: found.totals.value(key) for key in found.totals.seen() if key not in middles}
        others = {key: (t, 1.0) for key, t in sums.items() if t is not None}
        names = form.scalars.keys() | {"samples"}
        scalars = {name: float(found.totals.scalar(name)) for name in names}
        counts = {key[1]: found.totals.count(key) for key in found.totals.seen()}
        opened = Opened(form, {**middles, **others}, scalars, {**counts, None: len(found.clients)})
        return replace(replies, found=replace(found, totals=opened))


@RobustMean.register("none")
class PlainMean(RobustMean):
    """The mean that a method asks for, weighted as it says."""


@RobustMean.register("median")
class Median(RobustMean):
    """The median of clients, number by number."""

    def middle(self, values: Tensor) -> Tensor:
        """Return the mean of the two in the middle, or the one."""
        ordered, m = values.sort(dim=0).values, len(values)
        return (ordered[(m - 1) // 2] + ordered[m // 2]) / 2


@RobustMean.register("trimmed_mean")
class TrimmedMean(RobustMean):
    """The mean without the largest and the smallest, number by number."""

    share: float = Field(0.2, ge=0, lt=0.5, description="share of clients cut off at each end")

    def middle(self, values: Tensor) -> Tensor:
        """Return the mean of what is left."""
        cut = math.floor(self.share * len(values))
        return values.sort(dim=0).values[cut : len(values) - cut].mean(dim=0)


def gathered(updates: Sequence[Update], form: Form) -> Iterator[tuple[Key, Tensor]]:
    """Give every tensor that a mean is asked of, part by part and class by class: clients, ..."""
    for name, look in form.tensors.items():
        how, rows = form.how[name], dict[Key, list[Tensor]]()
        if not look.dtype.is_floating_point:
            continue
        for payload in (update.payload for update in updates):
            if isinstance(how, Mean) and weight(payload.scalars, how):
                rows.setdefault((name, payload.scalars.get(how.within)), []).append(
                    payload.tensors[name]
                )
            elif isinstance(how, ByClass) and how.mean:
                index = payload.tensors[f"{name.partition('/')[0]}/{CLASSES}"].tolist()
                for c, row in zip(index, payload.tensors[name], strict=True):
                    rows.setdefault((name, c), []).append(row)
        for key, each in rows.items():
            yield key, torch.stack(each).double()
