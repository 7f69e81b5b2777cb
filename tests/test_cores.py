"""Cores and memory that may be used: affinity, quotas of control groups, and what others take."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedtail import cores
from fedtail.cores import (
    Usage,
    cpu_quota,
    free_between,
    free_cores,
    free_memory,
    own_memory,
    own_threads,
    usable_cores,
)


def written(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def listing(tmp_path: Path) -> Path:
    """Return a file that says: in group a/b of version 2."""
    file = tmp_path / "listing"
    file.write_text("0::/a/b\n")
    return file


def test_the_smallest_quota_of_the_groups_around_counts(tmp_path: Path, listing: Path) -> None:
    root = tmp_path / "groups"
    written(root)
    assert cpu_quota(root, listing) == math.inf
    written(root / "a" / "b", cpu__max="max 100000\n")
    assert cpu_quota(root, listing) == math.inf
    written(root / "a", cpu__max="150000 100000\n")
    assert cpu_quota(root, listing) == 1.5
    written(root / "a" / "b", cpu__max="50000 100000\n")
    assert cpu_quota(root, listing) == 0.5
    # Beside ours, not around it.
    written(root / "a" / "c", cpu__max="10000 100000\n")
    assert cpu_quota(root, listing) == 0.5


def test_a_container_sees_its_group_as_the_root(tmp_path: Path, listing: Path) -> None:
    written(tmp_path / "groups", cpu__max="200000 100000\n")
    assert cpu_quota(tmp_path / "groups", listing) == 2


def test_version_1_has_two_files_and_minus_one_for_none(tmp_path: Path) -> None:
    file = tmp_path / "listing"
    file.write_text("4:memory:/x\n1:cpu,cpuacct:/docker/y\n")
    folder = tmp_path / "cpu,cpuacct" / "docker" / "y"
    written(folder, cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    assert cpu_quota(tmp_path, file) == math.inf
    written(folder, cpu__cfs_quota_us="300000\n")
    assert cpu_quota(tmp_path, file) == 3


def test_quotas_and_affinity_bound_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "own_cores", lambda: {0, 1, 2, 3})
    for quota, expected in ((math.inf, 4), (2.0, 2), (1.6, 2), (0.2, 1), (64.0, 4)):
        monkeypatch.setattr(cores, "cpu_quota", lambda quota=quota: quota)
        assert usable_cores() == expected


def test_threads_are_bounded_by_the_environment_and_beside_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 4)
    monkeypatch.setattr(cores, "parent_process", lambda: None)
    for told, expected in (("", 4), ("3", 3), ("8", 4), ("0", 4), ("4,2", 4)):
        monkeypatch.setenv("OMP_NUM_THREADS", told)
        assert own_threads() == expected
    monkeypatch.setattr(cores, "parent_process", lambda: object())
    assert own_threads() == 1


def test_cores_that_others_use_are_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "own_cores", lambda: {0, 1, 2, 3})
    monkeypatch.setattr(cores, "cpu_quota", lambda: math.inf)
    before = Usage(at=0, own=5, cores=100, group=None)
    # In ten seconds we used 9 and all together 31: others 22, or 2.2 of the 4 cores.
    assert free_between(before, Usage(10, 14, 131, None)) == 2
    assert free_between(before, Usage(10, 14, 109, None)) == 4
    # Never fewer than the one that we are on.
    assert free_between(before, Usage(10, 6, 141, None)) == 1


def test_others_under_our_quota_leave_less_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "own_cores", lambda: set(range(64)))
    monkeypatch.setattr(cores, "cpu_quota", lambda: 4.0)
    # The machine is busy with 40 cores, which leaves 24; our group with 1 beside us leaves 3.
    before, after = Usage(0, 0, 0, 0), Usage(10, 10, 410, 20)
    assert free_between(before, after) == 3


def test_the_load_average_is_asked_where_nothing_else_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cores, "own_cores", lambda: {0, 1, 2, 3})
    monkeypatch.setattr(cores, "cpu_quota", lambda: math.inf)
    monkeypatch.setattr("os.getloadavg", lambda: (3.0, 0.0, 0.0), raising=False)
    # A load of 3, of which we are 1.
    assert free_between(Usage(0, 0, None, None), Usage(10, 10, None, None)) == 2


def test_this_machine_answers() -> None:
    assert 1 <= free_cores() <= usable_cores()
    assert Usage.now().own > 0
    assert 1e6 < own_memory() < 1e13
    assert free_memory() > 0


def test_memory_that_a_group_may_still_take(tmp_path: Path, listing: Path) -> None:
    root = tmp_path / "groups"
    # Of 1000 bytes 800 are used, and 300 of these are files that can be dropped.
    stat = "anon 500\ninactive_file 300\nactive_file 0\n"
    written(root / "a", memory__max="1000\n", memory__current="800\n", memory__stat=stat)
    assert free_memory(root, listing) == 500
    written(root / "a", memory__max="max\n")
    assert free_memory(root, listing) > 1e6
