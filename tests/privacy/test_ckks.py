from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch

from fedtail import FedtailError
from fedtail.privacy.ckks import (
    LARGEST_SUM,
    PUBLIC,
    SECRET,
    SLOTS,
    Adder,
    Damaged,
    Keyholder,
    count_blocks,
    make_keys,
    tenseal,
)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder)
    return folder


@pytest.fixture(scope="module")
def holder(keys: Path) -> Keyholder:
    return Keyholder.open(keys)


@pytest.fixture(scope="module")
def adder(keys: Path) -> Adder:
    return Adder.open(keys)


def numbers(length: int, seed: int) -> torch.Tensor:
    return torch.randn(length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("length", [1, SLOTS - 1, SLOTS, 3 * SLOTS])
def test_a_decrypted_sum_is_the_sum(holder: Keyholder, adder: Adder, length: int) -> None:
    vectors = [100 * numbers(length, k) for k in range(3)]
    sealed = [holder.seal(v, parties=3) for v in vectors]
    for one in sealed:
        adder.check(one, length)
    opened = holder.open_sum(adder.add(sealed), length, 3)
    expected = torch.stack(vectors).sum(dim=0)
    assert opened.shape == expected.shape
    # The absolute error of three fresh encryptions and of rounding.
    assert float((opened - expected).abs().max()) < 2e-5
    assert float((opened - expected).norm() / expected.norm()) < 1e-6


def test_a_vector_is_cut_into_blocks(holder: Keyholder) -> None:
    assert [count_blocks(n) for n in (0, 1, SLOTS - 1, SLOTS)] == [0, 1, 1, 2]
    one, two = (len(holder.seal(numbers(n, 0), 1)) for n in (SLOTS - 1, SLOTS))
    assert two / one == pytest.approx(2, rel=0.01)
    # Eight bytes for each of two polynomials of twice as many numbers as slots.
    assert one / (4 * SLOTS) == pytest.approx(8, rel=0.02)


def test_two_encryptions_of_the_same_numbers_differ(holder: Keyholder) -> None:
    assert not torch.equal(holder.seal(numbers(5, 0), 1), holder.seal(numbers(5, 0), 1))


def test_the_server_cannot_decrypt(keys: Path, holder: Keyholder, adder: Adder) -> None:
    sealed = holder.seal(numbers(5, 0), 1)
    assert not adder.context.has_secret_key()
    curious = Keyholder(adder.name, adder.context)
    with pytest.raises(FedtailError, match="cannot decrypt"):
        curious.open_sum(sealed, 5, 1)
    # Nor does the library itself, past our own check.
    with pytest.raises(ValueError, match="secret_key"):
        block = sealed.numpy().tobytes()[8 + 4 + 4 : -16]
        tenseal().ckks_vector_from(adder.context, block).decrypt()
    with pytest.raises(ValueError, match="Secret key"):
        adder.context.secret_key()


def test_only_the_owner_may_read_a_key(keys: Path) -> None:
    assert [stat.S_IMODE((keys / name).stat().st_mode) for name in (SECRET, PUBLIC)] == [0o600] * 2


def test_keys_are_not_overwritten(keys: Path) -> None:
    with pytest.raises(FedtailError, match="already holds keys"):
        make_keys(keys)


def test_a_file_that_is_no_key(tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match="cannot read the key"):
        Keyholder.open(tmp_path)
    (tmp_path / SECRET).write_bytes(b"12345678 nonsense")
    with pytest.raises(FedtailError, match="is not a key"):
        Keyholder.open(tmp_path)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Keyholder:
    folder = tmp_path_factory.mktemp("other")
    make_keys(folder)
    return Keyholder.open(folder)


def test_another_key_is_noticed_when_adding(adder: Adder, stranger: Keyholder) -> None:
    with pytest.raises(Damaged, match="made with another key"):
        adder.check(stranger.seal(numbers(5, 0), 1), 5)


def test_another_key_is_noticed_when_decrypting(holder: Keyholder, stranger: Keyholder) -> None:
    sealed = holder.seal(numbers(5, 0), 1)
    with pytest.raises(Damaged, match="made with another key"):
        stranger.open_sum(sealed, 5, 1)
    # Even one that goes by the same name.
    impostor = Keyholder(holder.name, stranger.context)
    with pytest.raises(Damaged, match="encrypted under another key"):
        impostor.open_sum(sealed, 5, 1)


def test_a_damaged_ciphertext_is_noticed(holder: Keyholder, adder: Adder) -> None:
    sealed = holder.seal(numbers(5, 0), 1)
    bent = sealed.clone()
    bent[len(bent) // 2] ^= 1
    for broken in (sealed[:-1], sealed[: len(sealed) // 2], sealed[:3], sealed[:0], bent):
        with pytest.raises(Damaged, match="damaged or cut short"):
            adder.check(broken, 5)
        with pytest.raises(Damaged, match="damaged or cut short"):
            holder.open_sum(broken, 5, 1)
    with pytest.raises(Damaged, match="1 blocks instead of 2"):
        adder.check(sealed, SLOTS)
    with pytest.raises(Damaged, match="shorter"):
        holder.open_sum(sealed, SLOTS, 1)


def test_a_sum_of_another_number_of_clients_is_noticed(holder: Keyholder, adder: Adder) -> None:
    both = adder.add([holder.seal(numbers(5, k), 2) for k in range(2)])
    with pytest.raises(Damaged):
        holder.open_sum(both, 5, 3)


def test_what_would_overflow_is_refused(holder: Keyholder, adder: Adder) -> None:
    largest = torch.tensor([LARGEST_SUM / 2, -LARGEST_SUM / 2, 1.0], dtype=torch.float64)
    opened = holder.open_sum(adder.add([holder.seal(largest, 2)] * 2), 3, 2)
    assert torch.allclose(opened, 2 * largest, rtol=1e-6)
    with pytest.raises(FedtailError, match="too large to be encrypted"):
        holder.seal(largest, 3)
