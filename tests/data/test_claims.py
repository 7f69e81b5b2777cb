"""An npz that claims more than it holds or than there is room for: one sentence, no memory."""

from __future__ import annotations

import io
import random
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtail.data.formats import npz
from fedtail.data.formats.npz import read_npz
from fedtail.data.memory import memory
from fedtail.errors import FedtailError


def header(shape: tuple[int, ...], descr: str = "<f8") -> bytes:
    """Return the header of an array, without the array."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


def archive(path: Path, /, claimed: int | None = None, **members: bytes) -> Path:
    """Write members into a zip file, whose directory claims another size for the first one."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
        if claimed is not None:
            file.infolist()[0].file_size = claimed
    return path


def array(value: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, value)
    return stream.getvalue()


def refusal(path: Path) -> str:
    """Return the sentence of a file that is refused without taking a megabyte for it."""
    tracemalloc.start()
    try:
        with pytest.raises(FedtailError) as caught:
            read_npz(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 300 + len(str(path))
    assert said.startswith(str(path))
    return said.removeprefix(str(path))


Y = array(np.zeros(3, np.int64))


def test_a_header_that_claims_terabytes(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", x_train=header((10**12, 5)) + bytes(80), y_train=Y)
    assert refusal(path) == (
        ": 'x_train' claims to be dtype('float64') of shape (1000000000000, 5), "
        "but the file holds 80 B of it"
    )


@pytest.mark.parametrize("shape", [(10**300, 5), (10**18, 0, 3), (-1, 5), (5,) * 300])
def test_a_header_that_claims_nonsense(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = archive(tmp_path / "a.npz", x_train=header(shape) + bytes(80), y_train=Y)
    assert ": 'x_train' claims to be dtype('float64') of shape (" in refusal(path)


def test_a_directory_that_claims_terabytes_too(tmp_path: Path) -> None:
    # 5 * 10**12 numbers of 8 bytes are 36.4 * 2**40 bytes.
    start = header((10**12, 5))
    size = len(start) + 40 * 10**12
    path = archive(tmp_path / "a.npz", size, x_train=start + bytes(80), y_train=Y)
    said = refusal(path)
    assert said.startswith(" needs 36.4 TB of memory ('x_train' alone 36.4 TB), but there are ")


def test_a_small_file_that_unpacks_to_more_than_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(tmp_path / "a.npz", x_train=array(np.zeros((1024, 1024))), y_train=Y)
    assert path.stat().st_size < 2**15
    assert read_npz(path).x_train.shape == (1024, 1024)
    monkeypatch.setattr(npz, "memory", lambda: 2**22)
    assert refusal(path) == (
        " needs 8.0 MB of memory ('x_train' alone 8.0 MB), but there are 4.0 MB"
    )


def test_memory_is_that_of_a_machine() -> None:
    assert 2**26 < memory() <= 2**50


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"y_train": Y}, ": key 'x_train' is missing (found: ['y_train'])"),
        ({}, ": key 'x_train' is missing (found: [])"),
        ({"X": Y, "y_train": Y}, ": key 'x_train' is missing (found: ['X', 'y_train'])"),
        ({"x_train": b"no array", "y_train": Y}, ": 'x_train' cannot be read, the file is damaged"),
        ({"x_train": b"", "y_train": Y}, ": 'x_train' cannot be read, the file is damaged"),
        (
            {"x_train": Y, "y_train": Y[:-8]},
            ": 'y_train' claims to be dtype('int64') of",
        ),
        (
            {"x_train": Y, "y_train": Y + b"more"},
            ": 'y_train' claims to be dtype('int64') of",
        ),
        (
            {"x_train": Y, "y_train": array(np.array([{}], dtype=object))},
            ": 'y_train' holds Python objects; pickled objects are refused",
        ),
    ],
)
def test_members_that_are_not_what_is_needed(
    tmp_path: Path, members: dict[str, bytes], said: str
) -> None:
    assert refusal(archive(tmp_path / "a.npz", None, **members)).startswith(said)


def test_a_file_that_is_no_archive_or_one_array(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(b"")
    assert refusal(path) == " is not an npz file, or it is damaged"
    path.write_bytes(Y)
    assert refusal(path) == " holds one array; an npz with x_train, y_train is needed"


def test_any_damage_is_one_sentence(tmp_path: Path) -> None:
    # Damaged in one byte, or cut: it is read as it was, or refused; nothing else is raised.
    whole = archive(tmp_path / "a.npz", x_train=array(np.arange(12.0)), y_train=Y).read_bytes()
    rng = random.Random(0)
    refused = 0
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << rng.randrange(8)
        for data in (bytes(damaged), whole[:position]):
            path = tmp_path / "b.npz"
            path.write_bytes(data)
            try:
                assert np.array_equal(read_npz(path).x_train, np.arange(12.0))
            except FedtailError as error:
                assert "\n" not in str(error)
                refused += 1
    assert refused > len(whole)
