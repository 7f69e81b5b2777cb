"""Freed memory is kept for the next batch: page faults are counted, in processes of their own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from fedtail.allocator import MALLOC_VARIABLES

BATCHES, BLOCKS, MEGABYTES = 10, 4, 8
PAGES = BLOCKS * MEGABYTES * 256
"""Ten times four blocks of 8 MB are taken, written and freed; a page has four kilobytes."""

COUNTED = f"""
import resource

def batch():
    blocks = [b"1" * ({MEGABYTES} << 20) for _ in range({BLOCKS})]

def faults():
    batch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({BATCHES}):
        batch()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
TOLD_TO_KEEP = "from fedtail.allocator import keep_freed_memory\nkeep_freed_memory()\nfaults()"
COMPUTING = "from fedtail.engines.runtime import numerics\nwith numerics(1): faults()"

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")


def printed(script: str, **told: str) -> int:
    environment = {
        name: value for name, value in os.environ.items() if name not in MALLOC_VARIABLES
    } | told
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True
    )
    return int(done.stdout)


def faults(script: str, **told: str) -> int:
    return printed(COUNTED + script, **told)


@pytest.mark.parametrize("script", [TOLD_TO_KEEP, COMPUTING])
def test_a_batch_takes_the_memory_of_the_one_before(script: str) -> None:
    assert faults(script) < PAGES  # of ten batches together less than one of them would cost


@pytest.mark.parametrize("name", MALLOC_VARIABLES)
def test_who_has_set_the_allocator_up_is_not_overruled(name: str) -> None:
    value = "glibc.malloc.trim_threshold=131072" if name == "GLIBC_TUNABLES" else "131072"
    assert faults(TOLD_TO_KEEP, **{name: value}) > BATCHES * PAGES // 2


def test_what_a_run_had_is_given_back_after_it() -> None:
    # Twenty blocks of 8 MB are freed below one that stays, so glibc by itself gives none back.
    script = """
from fedtail.allocator import give_back, keep_freed_memory
import psutil

def held():
    return psutil.Process().memory_info().rss >> 20

keep_freed_memory()
blocks = [b"1" * (8 << 20) for _ in range(21)]
del blocks[:-1]
before = held()
give_back()
print(before - held())
"""
    assert printed(script) > 150
