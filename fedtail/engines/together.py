"""Clients that train as one computation: which of them, and what comes of it.

A method can train together if it overrides no hook that may do anything (`HOOKS`), but only the
functions of tensors behind them. Blocks are cut from the list of tasks, before anybody is given
them, so that what a run computes does not depend on how many processes do it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from fedtail.engines.members import Members
from fedtail.engines.runtime import Runtime
from fedtail.methods import FedAvg
from fedtail.methods.base import Method
from fedtail.protocol import Payload
from fedtail.reduce import within_frames
from fedtail.rng import contained, derive
from fedtail.totals import Sums

if TYPE_CHECKING:
    from fedtail.engines.executor import Job

HOOKS = (
    "train",
    "load",
    "start",
    "step",
    "prepare",
    "batch_loss",
    "after_backward",
    "after_step",
    "keep_buffers",
    "reply",
)
"""What may do anything, and is FedAvg's own in a method whose clients can train together."""
FEWEST_TOGETHER = 3
"""Fewer clients are trained one by one."""


def can_train_together(method: type[Method[Any]]) -> bool:
    """Whether clients of a method can train together, as far as its class tells."""
    return (
        issubclass(method, FedAvg)
        and not method.pooled
        and all(getattr(method, hook) is getattr(FedAvg, hook) for hook in HOOKS)
        and all(_as_declared(method, action) for action in method.trains)
    )


def _as_declared(method: type[FedAvg[Any]], action: str) -> bool:
    """Whether an action is that of the class that says it is training, and no later one."""
    owner = next(each for each in method.__mro__ if "trains" in vars(each))
    return getattr(method, action) is getattr(owner, action)


def why_alone(runtime: Runtime) -> str:
    """Return why clients cannot train together, in a clause; nothing if nothing speaks against."""
    method = runtime.method
    if not isinstance(method, FedAvg) or not can_train_together(type(method)):
        return f"'{method.name}' does more with a client than functions of tensors"
    if method.local.optimizer != "sgd":
        return f"the optimiser is {method.local.optimizer}, not sgd"
    if runtime.client_side is not None:
        return "every client protects its own update"
    if runtime.model.precision != torch.float32:
        return "the network trains in less than float32"
    if any(isinstance(layer, _DropoutNd) and layer.p for layer in runtime.model.modules()):
        return "the network has dropout, which draws other numbers for many clients at once"
    return ""


def in_blocks(runtime: Runtime, job: Job) -> bool:
    """Whether clients that are given such a task train together."""
    return runtime.together > 1 and job.task.action in cast(FedAvg[Any], runtime.method).trains


def in_block_order(runtime: Runtime, jobs: list[Job]) -> list[Job]:
    """Return the jobs in the order in which they are cut into blocks: the largest clients first."""
    if not any(in_blocks(runtime, job) for job in jobs):
        return jobs
    first = {id(job.task.payload): number for number, job in reversed(list(enumerate(jobs)))}
    size = runtime.federation.size
    return sorted(jobs, key=lambda j: (first[id(j.task.payload)], -size(j.task.client)))


def blocks(runtime: Runtime, jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Cut jobs into blocks of clients that train together, and single ones."""
    for _, same in groupby(jobs, key=lambda job: (job.task.action, id(job.task.payload))):
        some = list(same)
        most = runtime.together if in_blocks(runtime, some[0]) else 1
        count = math.ceil(len(some) / most)
        ends = [len(some) * number // count for number in range(count + 1)]
        yield from (some[a:b] for a, b in pairwise(ends))


def done_together(
    runtime: Runtime, jobs: Sequence[Job], total: Sums | None
) -> list[BlockAnswer | None]:
    """Train the clients of a block together, and add up their answers where there is a sum.

    Nothing stands in the place of a client that is to be trained alone: of all, if the block
    raises; of those whose answer is not what was declared. What they raise or send then is theirs.
    """
    if len(jobs) < FEWEST_TOGETHER or not in_blocks(runtime, jobs[0]):
        return [None] * len(jobs)
    form = None if total is None else within_frames(runtime.form(jobs[0].task), total.frames)
    first = jobs[0].task.client
    try:
        # Whatever a hook draws from torch's global stream, it is the same one every time.
        with contained(derive(runtime.seed, "block", jobs[0].clock.round, first), runtime.device):
            found = Members(runtime, jobs).trained(form)
    except Exception:  # as one computation; alone, each of them may raise it or not
        return [None] * len(jobs)
    if total is None or form is None:
        return [BlockAnswer(found.payload(row), state) for row, state in enumerate(found.states)]
    good = found.sound(form)
    found.add_to(total, good)
    sizes = found.nbytes()
    return [
        BlockAnswer(None, found.states[row], sizes[row]) if good[row] else None
        for row in range(len(jobs))
    ]


class BlockAnswer(NamedTuple):
    """What came of one client's task: an answer, or how large the one is that was added up."""

    payload: Payload | None
    state: dict[str, Tensor]
    added: int | None = None
