"""A file that has not changed is read once by the runs of a process."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtail.data.dataset import Dataset
from fedtail.data.sources.npz import Npz


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "some.npz", 1.0)


def written(path: Path, value: float) -> Path:
    y = np.arange(6) % 2
    x = np.full((6, 3), value, dtype=np.float32)
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    return path


def first_value(dataset: Dataset) -> float:
    return float(dataset.train.x[torch.tensor([0])][0, 0])


def test_the_same_file_is_read_once(file: Path) -> None:
    assert Npz(path=str(file)).load() is Npz(path=str(file)).load()


def test_a_file_that_was_written_again_is_read_again(file: Path) -> None:
    source = Npz(path=str(file))
    assert first_value(source.load()) == 1.0
    written(file, 2.0)
    assert first_value(source.load()) == 2.0


def test_a_change_that_keeps_the_size_is_seen_by_its_time(file: Path) -> None:
    source, before = Npz(path=str(file)), file.stat()
    source.load()
    written(file, 2.0)
    assert file.stat().st_size == before.st_size
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert first_value(source.load()) == 2.0


def test_other_fields_make_another_data_set(file: Path) -> None:
    plain = Npz(path=str(file), normalisation="none").load()
    assert Npz(path=str(file)).load().normalisation == "standard"
    assert plain.normalisation == "none"


def test_a_function_of_the_users_is_called_every_time(file: Path) -> None:
    calls: list[int] = []

    def counting(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        return x

    source = Npz(path=str(file), transform=counting)
    source.load()
    before = len(calls)
    source.load()
    assert len(calls) == 2 * before > 0
