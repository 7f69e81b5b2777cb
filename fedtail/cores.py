"""Which cores and how much memory this process may use, and what of them nobody else does."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import parent_process
from pathlib import Path

CONTROL_GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
LOOK = 0.2
"""Seconds over which the load is measured at least: the kernel counts in hundredths."""


def usable_cores() -> int:
    """Return on how many cores this process may run: affinity and quotas count, not the machine."""
    return max(1, min(len(own_cores()), round(min(cpu_quota(), 1e6))))


def own_threads() -> int:
    """Return on how many threads this process may compute: on one if others were started with it.

    Worker processes and runs side by side have a core each. ``OMP_NUM_THREADS`` bounds it, too.
    """
    told = os.environ.get("OMP_NUM_THREADS", "")
    alone = parent_process() is None
    return min(
        usable_cores() if alone else 1, int(told) if told.isdigit() and int(told) else 1 << 20
    )


def own_cores() -> set[int]:
    """Return the numbers of the cores that this process is not kept from."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def cpu_quota(root: Path = CONTROL_GROUPS, listing: Path = OWN_GROUPS) -> float:
    """Return the smallest quota of the control groups that we are in, in cores; often infinite.

    Parameters
    ----------
    root, listing
        Where the groups are, and the file that says which of them are ours.
    """
    return min((quota for quota, _ in _quotas(root, listing)), default=math.inf)


def _quotas(root: Path, listing: Path) -> Iterator[tuple[float, Path]]:
    """Yield quotas, in cores, and the folders of their groups."""
    for folder in _own_groups(root, listing, "cpu"):
        told = _words(folder / "cpu.max")  # version 2: quota and period
        told = told or [
            *_words(folder / "cpu.cfs_quota_us"),
            *_words(folder / "cpu.cfs_period_us"),
        ]
        if len(told) == 2 and told[0].isdigit() and float(told[1]):
            yield float(told[0]) / float(told[1]), folder


def _own_groups(root: Path, listing: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of our control groups and of all groups around them."""
    try:
        lines = listing.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # Version 2 has one tree; version 1 has one for each set of controllers.
        tree = root / controllers if controllers else root
        here = tree / path.strip("/")
        # A container may see its own group as the root, and still be told its name outside.
        yield from (tree, *(p for p in (here, *here.parents) if tree in p.parents))


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").split()
    except OSError:
        return []


@dataclass(frozen=True)
class Usage:
    """Processor seconds that were used until a moment.

    Attributes
    ----------
    at
        The moment.
    own
        Used by this process.
    cores
        Used by everybody on the cores that we may use; nothing where the system does not tell.
    group
        Used by everybody under the same quota, if there is one.
    """

    at: float
    own: float
    cores: float | None
    group: float | None

    @classmethod
    def now(cls) -> Usage:
        """Return what was used until now."""
        return cls(time.monotonic(), time.process_time(), _cores_used(), _group_used())


def _cores_used() -> float | None:
    try:
        lines = Path("/proc/stat").read_text(encoding="utf-8").splitlines()
        tick = os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError):
        return None
    names = {f"cpu{number}" for number in own_cores()}
    used = 0
    for line in lines:
        name, *numbers = line.split()
        if name in names:
            user, nice, system, _, _, irq, softirq, steal, *_ = map(int, [*numbers, *"00000000"])
            used += user + nice + system + irq + softirq + steal
    return used / tick


def _group_used() -> float | None:
    quotas = sorted(_quotas(CONTROL_GROUPS, OWN_GROUPS))
    if not quotas:
        return None
    folder = quotas[0][1]
    told = _words(folder / "cpu.stat")  # version 2: usage_usec N ...
    if "usage_usec" in told:
        return float(told[told.index("usage_usec") + 1]) / 1e6
    told = _words(folder / "cpuacct.usage")
    return float(told[0]) / 1e9 if told else None


def free_cores(since: Usage | None = None) -> int:
    """Return how many cores nobody else used, with the one that this process is on; at least 1.

    Parameters
    ----------
    since
        From when on; by default for the next fifth of a second.
    """
    since = since or Usage.now()
    time.sleep(max(0.0, since.at + LOOK - time.monotonic()))
    return free_between(since, Usage.now())


def free_between(before: Usage, after: Usage) -> int:
    """Return how many cores nobody else used between two moments; at least 1."""
    seconds, own = after.at - before.at, after.own - before.own

    def others(first: float | None, last: float | None) -> float:
        return 0.0 if first is None or last is None else max(0.0, last - first - own) / seconds

    taken = others(before.cores, after.cores)
    if after.cores is None and hasattr(os, "getloadavg"):
        taken = max(0.0, os.getloadavg()[0] - own / seconds)
    free = min(
        len(own_cores()) - taken,
        min(cpu_quota(), 1e6) - others(before.group, after.group),
    )
    return max(1, round(free))


def machine_load() -> list[float] | None:
    """Return the load of the machine over 1, 5 and 15 minutes; nothing where nobody tells."""
    return [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None


def free_memory(root: Path = CONTROL_GROUPS, listing: Path = OWN_GROUPS) -> float:
    """Return how many bytes can be taken without swapping; infinite where nobody tells.

    Parameters
    ----------
    root, listing
        As for `cpu_quota`.
    """
    told = _words(Path("/proc/meminfo"))
    free = math.inf
    if "MemAvailable:" in told:
        free = 1024.0 * int(told[told.index("MemAvailable:") + 1])
    for folder in _own_groups(root, listing, "memory"):
        most = _words(folder / "memory.max") or _words(folder / "memory.limit_in_bytes")
        used = _words(folder / "memory.current") or _words(folder / "memory.usage_in_bytes")
        if most and used and most[0].isdigit():
            cached = _words(folder / "memory.stat")  # files that can be dropped count as used
            name = next((n for n in ("total_inactive_file", "inactive_file") if n in cached), "")
            dropped = int(cached[cached.index(name) + 1]) if name else 0
            free = min(free, int(most[0]) - int(used[0]) + dropped)
    return free


def own_memory() -> float:
    """Return the bytes that this process has taken at most."""
    try:
        import resource
    except ImportError:  # Windows
        return 1.0
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
