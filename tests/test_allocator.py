"""Freed memory is kept for the next batch: page faults are counted, in processes of their own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from fedtail.allocator import TOLD

BATCHES, BLOCKS, MEGABYTES, PAGES = 10, 4, 8, 4 * 8 * 256
"""Ten times four blocks of 8 MB are taken, written and freed; a page has four kilobytes."""

SCRIPT = f"""
import resource
import torch
from fedtail.engines.runtime import numerics

def batch():
    blocks = [torch.zeros({MEGABYTES} << 18) for _ in range({BLOCKS})]

with numerics(1):
    batch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({BATCHES}):
        batch()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")


def faults(**told: str) -> int:
    environment = {name: value for name, value in os.environ.items() if name not in TOLD} | told
    command = [sys.executable, "-c", SCRIPT]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return int(printed.stdout)


def test_a_batch_takes_the_memory_of_the_one_before() -> None:
    assert faults() < PAGES  # of ten batches together less than one of them would cost


@pytest.mark.parametrize("name", TOLD)
def test_who_has_set_the_allocator_up_is_not_overruled(name: str) -> None:
    value = {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}.get(name, "131072")
    # Every batch is given back and taken anew, or nearly.
    assert faults(**{name: value}) > BATCHES * PAGES // 2
