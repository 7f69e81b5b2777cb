"""How many clients train as one computation: by a rule, so that a run is the same every time."""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from fedtail.data.federation import Federation
from fedtail.engines.members import WIDE, Members
from fedtail.engines.runtime import Runtime
from fedtail.engines.together import FEWEST_TOGETHER, in_blocks, why_alone
from fedtail.methods import FedAvg
from fedtail.protocol import Payload
from fedtail.training.linear_block import is_linear

if TYPE_CHECKING:
    from fedtail.engines.executor import Job

logger = logging.getLogger("fedtail")

Together = int | Literal["auto"]
"""How many clients train as one computation; "auto" is by the rule."""
MOST = 50
"""More clients in a block gain nothing more."""
LEAST = 10
"""So many clients are in a block, however much they train."""
MOST_WEIGHTS = 50_000
"""With more weights a client's own step is work enough, and a block has no room in the cache."""
FEWEST_AT_ONCE = 4
"""With fewer clients at work at the same time `vmap` takes longer than it saves."""
BLOCK_BYTES = 1 << 23
"""The weights of a block are not larger than this."""
BLOCK_WORK = 1 << 24
"""Weights times samples of a block, so that a round of much work has blocks for many processes."""
CANDIDATES = 4
"""So many clients are asked for the two answers of the trial."""
APART = 0.01
"""How far the step of a client may be from what it does alone, as a part of it, in the trial."""

ROUNDING = 1e-6
"""What may be rounding, as a part of a model."""


def block_size(asked: Together, runtime: Runtime, cohort: int) -> tuple[int, list[str]]:
    """Return how many clients train together, 0 if each trains alone.

    Parameters
    ----------
    asked
        What the experiment says.
    runtime
        The data, the method and the model.
    cohort
        How many clients there are in a round.

    Returns
    -------
    tuple
        The number, and a sentence where a number that was asked for cannot be had.
    """
    alone = why_alone(runtime)
    if asked == "auto":
        return (0 if alone else _by_rule(runtime, cohort)), []
    if asked > 1 and alone:
        return 0, [f"together = {asked} is not possible, and clients train one by one: {alone}"]
    return asked if asked > 1 else 0, []


def _by_rule(runtime: Runtime, cohort: int) -> int:
    method, federation = cast(FedAvg[Any], runtime.method), runtime.federation
    weights = sum(parameter.numel() for parameter in runtime.model.trainable().values())
    samples = max(1, math.ceil(len(federation.order) / max(1, len(federation))))
    wide = is_linear(runtime.model) and runtime.model.feature_dim >= WIDE * samples
    if runtime.device.type != "cpu" or (weights > MOST_WEIGHTS and not wide):
        return 0
    if _batches_at_once(federation, cohort) < FEWEST_AT_ONCE and not of_logits(method, runtime):
        return 0
    local = method.local
    drawn = local.steps * local.batch_size if local.steps else math.ceil(local.epochs * samples)
    work = BLOCK_WORK // max(1, weights * drawn)
    if wide:  # there are the features of a client's samples, and not its weights
        weights, work = runtime.model.feature_dim * samples, MOST
    return min(MOST, max(LEAST, min(BLOCK_BYTES // (4 * weights), work)))


def of_logits(method: FedAvg[Any], runtime: Runtime) -> bool:
    """Whether gradients are products of matrices, without `vmap`."""
    return is_linear(runtime.model) and type(method).local_loss is FedAvg.local_loss


def _batches_at_once(federation: Federation, cohort: int) -> float:
    """Return how many clients have a batch at the same time, on average, until the last is done."""
    sizes = federation.offsets.diff()
    return min(cohort, MOST) * float(sizes.double().mean() / sizes.max().clamp(min=1))


def tried(runtime: Runtime, jobs: Sequence[Job]) -> bool:
    """Try a block of two clients, and train one by one from now on if it is not the same.

    A loss or a network of somebody's own may do what cannot be done for many clients at once.
    Nothing is tried, and that is what is returned, where there are no two clients that answer.
    """
    some = [job for job in jobs if in_blocks(runtime, job)]
    often = Counter(id(job.task.payload) for job in some)
    shared = next((job.task.payload for job in some if often[id(job.task.payload)] > 1), None)
    same: list[Job] = []
    alone: list[Payload] = []
    for job in [job for job in some if job.task.payload is shared][:CANDIDATES]:
        with contextlib.suppress(Exception):  # it will again, where somebody is told
            alone.append(runtime.perform(job.task, dict(job.state), job.clock))
            same.append(job)
        if len(same) == 2:
            break
    if len(some) < FEWEST_TOGETHER or len(same) < 2:
        return False
    try:
        found = Members(runtime, same).trained()
        reason = _apart([found.payload(row) for row in range(2)], alone, same[0].task.payload)
    except Exception as error:  # what somebody else wrote may fail in any way
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if reason:
        runtime.together = 0
        logger.info("clients are trained one by one: %s", reason)
    return True


def _apart(found: Sequence[Payload], alone: Sequence[Payload], sent: Payload) -> str:
    """Return what differs, in a clause; last bits may."""
    for one, other in zip(found, alone, strict=True):
        if one.tensors.keys() != other.tensors.keys():
            return "their answers have other names if they train together"
        # Of all tensors: one by itself may have moved by nothing but rounding.
        off = moved = size = 0.0
        for name, expected in other.tensors.items():
            before = sent.tensors.get(name, torch.zeros_like(expected)).double()
            off += float((expected.double() - one.tensors[name].double()).square().sum())
            moved += float((expected.double() - before).square().sum())
            size += float(before.square().sum())
        if math.sqrt(off) > APART * math.sqrt(moved) + ROUNDING * math.sqrt(size):
            return "their answers are others if they train together"
    return ""
