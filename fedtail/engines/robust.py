"""Means that a few clients cannot own: something else in the place of every mean.

Every client that has samples counts the same, however many it announces. Some look at every number
by itself (`middle`), others at whole updates, of which they need nothing but the inner products
(`shares`). Whoever alone holds a class looks like an outlier: robust means can delete rare classes
(see the page on privacy). Where updates are summed securely nobody looks at them, and clients do
what they can do each by itself (`alone`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedtail.config import Component, Registry
from fedtail.engines.base import Engine, Replies
from fedtail.engines.runtime import Clock
from fedtail.errors import FedtailError
from fedtail.forms import CLASSES, ByClass, Form, Mean
from fedtail.privacy.layout import Opened, part_of_task
from fedtail.protocol import Payload, Task, Tensors, Update
from fedtail.totals import Key, Part, weight

MOST_BYTES = 8 * 2**30
"""All updates of an exchange are in memory at once; no more than this."""
Gathered = Mapping[str, Tensor]
"""Of tensors that belong together, by their names: what each client (row) sent."""


class RobustMean(Component):
    """How the updates of clients become a mean.

    Attributes
    ----------
    why
        Why the updates of all clients have to be seen, in a clause.
    """

    registry: ClassVar[Registry[RobustMean]] = Registry("robust mean")
    single: ClassVar[bool] = True
    apart: ClassVar[bool] = True
    why: ClassVar[str] = "it looks at every client's update"

    @property
    def by_clients(self) -> bool:
        """Whether a plain mean is left of it, if each client does its part by itself."""
        return False

    def alone(self, answer: Payload, form: Form, sent: Tensors) -> Payload:
        """Return a client's part: what its update would become if there were no others.

        Parameters
        ----------
        answer, form
            The update, and what the method declares of it.
        sent
            What the client was sent.
        """
        # In float64, as the server would have it; it becomes whole numbers, not float32.
        plain = {name: tensor.detach().cpu() for name, tensor in answer.tensors.items()}
        new = {n: t.to(torch.float64, copy=True) for n, t in plain.items() if t.is_floating_point()}
        update = Update(0, replace(answer, tensors=plain))
        for part, values in gathered([update], form):
            for name, made in self.combined(values, sent).items():
                if isinstance(form.how[name], ByClass):
                    new[name][plain[f"{name.partition('/')[0]}/{CLASSES}"] == part] = made
                else:
                    new[name] = made
        return replace(answer, tensors={**plain, **new})

    def begin(self, tasks: Sequence[Task], engine: Engine, clock: Clock) -> Sequence[Task]:
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
        """Put something else in the place of every mean; sums stay sums."""
        found, form = replies.found, replies.found.totals.form
        sent = {part_of_task(task.payload, form): task.payload.tensors for task in reversed(tasks)}
        means: dict[Key, tuple[Tensor, float]] = {}
        for part, values in gathered(found.each, form):
            made = self.combined(values, sent.get(part, tasks[0].payload.tensors))
            means |= {(name, part): (mean, 1.0) for name, mean in made.items()}
        sums = {key: found.totals.value(key) for key in found.totals.seen() if key not in means}
        others = {key: (t, 1.0) for key, t in sums.items() if t is not None}
        names = form.scalars.keys() | {"samples"}
        scalars = {name: float(found.totals.scalar(name)) for name in names}
        counts = {key[1]: found.totals.count(key) for key in found.totals.seen()}
        opened = Opened(form, {**means, **others}, scalars, {**counts, None: len(found.clients)})
        return replace(replies, found=replace(found, totals=opened))

    def combined(self, values: Gathered, sent: Tensors) -> dict[str, Tensor]:
        """Return what stands for the mean of each tensor: here of every number by itself."""
        return {name: self.middle(each) for name, each in values.items()}

    def middle(self, values: Tensor) -> Tensor:
        """Return what stands for the mean of clients (rows), number by number."""
        raise FedtailError(f"robust mean '{self.name}' is abstract")


class SharedOut(RobustMean):
    """Σ a_k Δ_k of the clients' changes Δ_k, with shares that follow from inner products."""

    def combined(self, values: Gathered, sent: Tensors) -> dict[str, Tensor]:
        """Return what was sent and the changes by their shares, of all tensors together."""
        old = {name: sent[name].double() if name in sent else 0.0 for name in values}
        changes = {name: (each - old[name]).flatten(1) for name, each in values.items()}
        products = sum((c @ c.T for c in changes.values()), torch.zeros((), dtype=torch.float64))
        shares = self.shares(products)
        return {
            name: old[name] + (shares @ changes[name]).reshape(each.shape[1:])
            for name, each in values.items()
        }

    def shares(self, products: Tensor) -> Tensor:
        """Return a_k of each client from the inner products of all changes (clients, clients)."""
        raise FedtailError(f"robust mean '{self.name}' is abstract")


@RobustMean.register("none")
class PlainMean(RobustMean):
    """The mean that a method asks for, weighted as it says."""


@RobustMean.register("median")
class Median(RobustMean):
    """The median of clients, number by number.

    Yin, Chen, Kannan, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates", ICML 2018.
    """

    why: ClassVar[str] = "the middle of every number shows only where all clients' numbers are seen"

    def middle(self, values: Tensor) -> Tensor:
        """Return the mean of the two in the middle, or the one."""
        ordered, m = values.sort(dim=0).values, len(values)
        return (ordered[(m - 1) // 2] + ordered[m // 2]) / 2


@RobustMean.register("trimmed_mean")
class TrimmedMean(RobustMean):
    """The mean without the largest and the smallest, number by number (Yin et al., ICML 2018)."""

    why: ClassVar[str] = "which numbers are cut off shows only where all clients' numbers are seen"

    share: float = Field(0.2, ge=0, lt=0.5, description="share of clients cut off at each end")

    def middle(self, values: Tensor) -> Tensor:
        """Return the mean of what is left."""
        cut = math.floor(self.share * len(values))
        return values.sort(dim=0).values[cut : len(values) - cut].mean(dim=0)


@RobustMean.register("norm_bound")
class NormBound(SharedOut):
    """The mean of changes, of which the long ones are shortened.

    Sun, Kairouz, Suresh, McMahan, "Can You Really Backdoor Federated Learning?", 2019.
    """

    why: ClassVar[str] = (
        "the median norm shows only where all clients' norms are seen; give robust.bound, to which "
        "each client shortens its own change"
    )

    bound: float | None = Field(
        None,
        gt=0,
        description="largest norm of a change; by default so many times the median norm. With "
        "secure sums each client shortens its own change: that bounds honest clients only, one "
        "that lies just does not",
    )
    multiple: float = Field(1.0, gt=0, description="largest norm over the median norm of a round")

    @property
    def by_clients(self) -> bool:
        """Whether the bound is known before anybody's change is."""
        return self.bound is not None

    def shares(self, products: Tensor) -> Tensor:
        """Return min(1, bound / ‖Δ_k‖) / m."""
        norms = products.diagonal().clamp(min=0).sqrt()
        bound = self.bound or self.multiple * float(norms.quantile(0.5))
        return (bound / norms.clamp(min=1e-300)).clamp(max=1.0) / len(norms)


@RobustMean.register("krum")
class Krum(SharedOut):
    """The update that lies nearest to most others, or the mean of several of them.

    Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
    Gradient Descent", NeurIPS 2017. A client's score is the sum of squared distances to its
    m − f − 2 nearest others, where f clients may be bad.
    """

    why: ClassVar[str] = "who lies near to whom shows only where all updates are seen"

    share: float = Field(0.2, ge=0, lt=0.5, description="f / m: share of clients that may be bad")
    keep: int | None = Field(
        1, ge=1, description="how many of the best to average; none for all but f (multi-Krum)"
    )

    def shares(self, products: Tensor) -> Tensor:
        """Return 1 / k for the k with the lowest scores, the first ones of equals."""
        m, norms = len(products), products.diagonal()
        bad = math.floor(self.share * m)
        apart = (norms[:, None] + norms[None] - 2 * products).clamp(min=0)
        apart.fill_diagonal_(math.inf)
        near = min(max(1, m - bad - 2), max(1, m - 1))
        scores = apart.sort(dim=1).values[:, :near].sum(dim=1)
        kept = min(self.keep or m - bad, m)
        best = scores.sort(stable=True).indices[:kept]
        return torch.zeros_like(norms).index_fill_(0, best, 1 / kept)


@RobustMean.register("multi_krum")
class MultiKrum(Krum):
    """The mean of all updates but the f that lie farthest from the others."""

    keep: int | None = Field(None, ge=1, description="how many of the best to average; all but f")


@RobustMean.register("geometric_median")
class GeometricMedian(SharedOut):
    """The point with the least sum of distances to all updates (RFA).

    Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning", IEEE Transactions on
    Signal Processing 2022: Weiszfeld's iteration with smoothed distances.
    """

    why: ClassVar[str] = "how far each update lies from the middle shows only where all are seen"

    steps: int = Field(100, ge=1, description="most iterations; few are needed")

    def shares(self, products: Tensor) -> Tensor:
        """Return a_k ∝ 1 / ‖Δ_k − Σ a Δ‖, the fixed point of that."""
        norms = products.diagonal()
        least = 1e-6 * float(norms.clamp(min=0).sqrt().quantile(0.5)) + 1e-300
        shares = torch.full_like(norms, 1 / len(norms))
        for _ in range(self.steps):
            inner = products @ shares
            apart = (norms - 2 * inner + shares @ inner).clamp(min=0).sqrt().clamp(min=least)
            new = (1 / apart) / (1 / apart).sum()
            moved, shares = float((new - shares).abs().max()), new
            if moved < 1e-12:
                break
        return shares


def alike(form: Form) -> Form:
    """Return a form in whose means all clients that have samples weigh the same."""
    hows = {n: how._replace(by="") if isinstance(how, Mean) else how for n, how in form.how.items()}
    return replace(form, how=hows)


def gathered(updates: Sequence[Update], form: Form) -> Iterator[tuple[Part, dict[str, Tensor]]]:
    """Give what means are asked of, tensors that belong together at once: (clients, ...) each.

    Together are the tensors of one group and part, and of rows those of one group and class.
    """
    rows: dict[tuple[str, Part], dict[str, list[Tensor]]] = {}
    for name, look in form.tensors.items():
        group, how = name.partition("/")[0], form.how[name]
        if not look.dtype.is_floating_point:
            continue
        for payload in (update.payload for update in updates):
            if isinstance(how, Mean) and weight(payload.scalars, how):
                part = payload.scalars.get(how.within)
                of_part = rows.setdefault((group, part), {})
                of_part.setdefault(name, []).append(payload.tensors[name])
            elif isinstance(how, ByClass) and how.mean:
                index = payload.tensors[f"{group}/{CLASSES}"].tolist()
                for c, row in zip(index, payload.tensors[name], strict=True):
                    rows.setdefault((group, c), {}).setdefault(name, []).append(row)
    for (_, part), named in rows.items():
        yield part, {name: torch.stack(each).double() for name, each in named.items()}
