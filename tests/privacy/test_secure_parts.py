"""The parts of a secure sum, by hand: shares, masks, whole numbers, and what a client keeps."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedtail import FedtailError
from fedtail.forms import Form, Like, Mean, Total
from fedtail.privacy.clipping import WITHIN
from fedtail.privacy.layout import Slot
from fedtail.privacy.secure.crypto import (
    Numbers,
    add_mask,
    agreed,
    derived,
    is_signed,
    locked_box,
    public_key,
    signature,
    signing_public,
    unlocked,
)
from fedtail.privacy.secure.desk import Desk
from fedtail.privacy.secure.fixed import decoded, encoded, layout_digest
from fedtail.privacy.secure.shamir import PRIME, SHARE_BYTES, join, shared_out, value
from fedtail.privacy.secure.terms import Refused, check_threshold, threshold_of


def test_shares_by_hand() -> None:
    # q(x) = 7 + 3x + 2x²: q(1) = 12, q(2) = 21, q(3) = 34, q(5) = 72.
    assert [value(x, [7, 3, 2]) for x in (1, 2, 3, 5)] == [12, 21, 34, 72]
    shares = {x: value(x, [7, 3, 2]).to_bytes(SHARE_BYTES) for x in (1, 2, 3, 5)}
    for left_out in shares:
        some = {x: share for x, share in shares.items() if x != left_out}
        assert int.from_bytes(join(some)) == 7
    # Two of them are on the line 3 + 9x: another secret, and as likely as any.
    assert int.from_bytes(join({1: shares[1], 2: shares[2]})) == 3


def test_the_modulus_is_a_prime_above_all_secrets() -> None:
    # Miller and Rabin: a composite passes one base with probability 1/4 at most.
    assert PRIME > 2**256
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(40):
        x = pow(2 + secrets.randbelow(PRIME - 3), odd, PRIME)
        powers = [pow(x, 2**i, PRIME) for i in range(twos)]
        assert x == 1 or PRIME - 1 in powers


@pytest.mark.parametrize(
    "secret", [bytes(32), b"\xff" * 32, bytes(range(32))], ids=["0", "ff", "all"]
)
def test_any_t_shares_give_the_secret(secret: bytes) -> None:
    shares = shared_out(secret, 3, [1, 2, 4, 9])
    places = dict(zip([1, 2, 4, 9], shares, strict=True))
    for left_out in places:
        assert join({x: s for x, s in places.items() if x != left_out}) == secret
    assert join({1: places[1], 2: places[2]}) != secret
    assert shared_out(secret, 3, [1]) != shared_out(secret, 3, [1])  # other coefficients


def test_two_who_agree_have_one_key_and_others_another() -> None:
    a, b, c = (secrets.token_bytes(32) for _ in range(3))
    common = agreed(a, public_key(b), b"context", "mask")
    assert common == agreed(b, public_key(a), b"context", "mask")
    assert len(common) == 32
    others = [
        agreed(a, public_key(c), b"context", "mask"),
        agreed(a, public_key(b), b"another", "mask"),
        agreed(a, public_key(b), b"context", "box"),
    ]
    assert common not in others
    with pytest.raises(FedtailError, match="none of X25519"):
        agreed(a, bytes(32), b"context", "mask")  # all would agree on zero


@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
@pytest.mark.parametrize("length", [1, 7, 16_384, 20_001])
def test_masks_cancel_modulo_2_to_the_w(kind: type, length: int) -> None:
    # Three members, masks of pairs: +ab +ac, −ab +bc, −ac −bc; what is left are the own masks.
    x: list[Numbers] = [np.arange(length, dtype=kind) * (k + 1) for k in range(3)]
    clear = sum(x[1:], start=x[0].copy())
    ab, ac, bc, *own = (secrets.token_bytes(32) for _ in range(6))
    for number, key, sign in (
        (0, ab, 1), (0, ac, 1), (1, ab, -1), (1, bc, 1), (2, ac, -1), (2, bc, -1),
    ):  # fmt: skip
        add_mask(x[number], key, sign)
    for number, key in enumerate(own):
        add_mask(x[number], key)
    total = sum(x[1:], start=x[0].copy())
    assert not np.array_equal(total, clear)
    for key in own:
        add_mask(total, key, -1)
    assert np.array_equal(total, clear)


def test_a_mask_is_aes_256_in_counter_mode() -> None:
    # The known answer of AES-256 for the zero key and the zero block.
    x = np.zeros(2, np.uint64)
    add_mask(x, bytes(32))
    assert x.tobytes().hex() == "dc95c078a2408989ad48a21492842087"


def test_boxes_and_signatures() -> None:
    key = secrets.token_bytes(32)
    box = locked_box(key, b"a share", b"context")
    assert unlocked(key, box, b"context") == b"a share"
    assert unlocked(key, box, b"another") is None
    assert unlocked(key, box[:-1] + bytes([box[-1] ^ 1]), b"context") is None
    signed = signature(key, b"a list")
    assert is_signed(signing_public(key), signed, b"a list")
    assert not is_signed(signing_public(key), signed, b"another list")
    assert not is_signed(b"", signed, b"a list")  # nobody's key


SLOTS = [
    Slot("weight", "samples", (), True),
    Slot("tensor", "model/w", (2,), False),
    Slot("tensor", WITHIN, (1,), False),
]


def test_whole_numbers_by_hand() -> None:
    # f = 0 for counts, 35 for real numbers, 1 for ½: 3, 2^34, −1.5 → rint(−1.5) = −2, −1.
    numbers = torch.tensor([3.0, 0.5, -1.5 * 2.0**-35, -0.5], dtype=torch.float64)
    whole = encoded(numbers, SLOTS, 4, 64)
    assert whole.tolist() == [3, 2**34, 2**64 - 2, 2**64 - 1]
    back = decoded(whole, SLOTS)
    assert back.tolist() == [3.0, 0.5, -2.0 * 2.0**-35, -0.5]
    # On a grid of 2^-20, in 32 bits: 0.5 is 2^19 steps.
    short = encoded(torch.tensor([1.0, 0.5, -(2.0**-20), 0.5]).double(), SLOTS, 4, 32, 20)
    assert short.tolist() == [1, 2**19, 2**32 - 1, 1]
    assert decoded(short, SLOTS, 20).tolist() == [1.0, 0.5, -(2.0**-20), 0.5]


@pytest.mark.parametrize(("width", "members"), [(32, 2), (32, 100), (64, 3)])
def test_no_sum_of_allowed_numbers_is_out_of_range(width: int, members: int) -> None:
    # A member may have (2^(w−1) − 1) / n steps: n of them are 2^(w−1) − 1 at most, and no overflow.
    one = [Slot("tensor", "model/w", (1,), False)]
    most = ((2 ** (width - 1) - 1) // members) * 2.0**-20
    for sign in (1, -1):
        x = encoded(torch.tensor([sign * most], dtype=torch.float64), one, members, width, 20)
        total = sum([x] * (members - 1), start=x.copy())
        assert decoded(total, one, 20).tolist() == pytest.approx([sign * most * members])
    more = torch.tensor([most * (1 + 2.0**-10) + 2.0**-20], dtype=torch.float64)
    with pytest.raises(Refused, match=f"'model/w' has a number above .* sum of {members} clients"):
        encoded(more, one, members, width, 20)
    with pytest.raises(Refused, match="has a number above"):
        encoded(torch.tensor([torch.nan]).double(), one, members, width, 20)


def test_what_stands_where_is_part_of_the_terms() -> None:
    form = Form().group("model", {"w": Like((2,))}, Mean()).group("n", {"c": Like((1,))}, Total())
    other = Form().group("model", {"w": Like((2,))}, Mean()).group("n", {"c": Like((2,))}, Total())
    one, another = (layout_digest(f) for f in (form, other))
    assert one != another
    assert one != layout_digest(form, 20)


def test_thresholds() -> None:
    # ⌈2n/3⌉ is always more than half.
    assert [threshold_of(2 / 3, n) for n in (2, 3, 4, 6, 10, 100)] == [2, 2, 3, 4, 7, 67]
    for n in range(2, 101):
        check_threshold(threshold_of(2 / 3, n), n)
        check_threshold(threshold_of(0.501, n), n)
    for threshold, n in ((2, 4), (1, 2), (4, 3), (50, 100), (60, 101)):
        with pytest.raises(Refused):
            check_threshold(threshold, n)


def test_a_desk_answers_each_step_once_and_forgets(tmp_path: Path) -> None:
    desk, one, other = Desk(tmp_path / "new"), "a" * 96, "b" * 96
    desk.begin(3, one, one[:32])
    desk.write(3, one, {"mask": "00"})
    desk.once(3, one, "open")
    for step in ("keys", "open"):
        with pytest.raises(Refused, match=f"'{step}' of this secure sum was answered before"):
            desk.once(3, one, step)
    files = sorted(path.name.partition(".")[2] for path in desk.folder.glob("3/*"))
    assert files == ["keys", "open", "secrets"]
    if os.name == "posix":
        assert all(path.stat().st_mode & 0o077 == 0 for path in desk.folder.glob("3/*"))
    # The next exchange of this client, and not of client 30, erases all of it.
    desk.begin(30, other, other[:32])
    assert desk.read(3, one) == {"mask": "00"}
    desk.begin(3, other, other[:32])
    with pytest.raises(Refused, match="not here any more"):
        desk.read(3, one)
    assert len(list(desk.folder.glob("*/*"))) == 2


def test_a_desk_of_many_clients_is_not_read_through_for_each_of_them(tmp_path: Path) -> None:
    # 20 clients with two files each, and one more.
    desk, session = Desk(tmp_path, durable=False), "a" * 96
    for client in range(20):
        desk.begin(client, session, session[:32])
        desk.write(client, session, {})
    looked: list[Path] = []

    def noting(plain: Callable[[Path], Any]) -> Callable[[Path], Any]:
        def look(path: Path) -> Any:
            looked.append(path)
            return plain(path)

        return look

    with pytest.MonkeyPatch.context() as patched:
        for name in ("scandir", "listdir"):
            patched.setattr(os, name, noting(getattr(os, name)))
        desk.begin(20, session, session[:32])
        desk.write(20, session, {})
        desk.erase(20, session)
    assert all(Path(path) == tmp_path / "20" for path in looked)
    assert len(list(tmp_path.iterdir())) == 20


def test_nothing_tells_who_took_part_when_a_sum_is_over(tmp_path: Path) -> None:
    desk, one, part = Desk(tmp_path / "desk"), "a" * 96, "a" * 32 + "b" * 64
    for session in (one, part):  # a client may be in two sums of one exchange
        desk.begin(3, session, one[:32])
        desk.write(3, session, {})
    desk.once(3, one, "open")
    desk.erase(3, one)
    left = {path.name for path in desk.folder.glob("3/*")}
    assert left == {f"{part}.keys", f"{part}.secrets"}
    # What comes after the last step is refused, and leaves no mark.
    with pytest.raises(Refused, match="not here any more"):
        desk.once(3, one, "open")
    desk.erase(3, part)
    assert list(desk.folder.iterdir()) == []
    desk.begin(3, one, one[:32])
    desk.clear()
    assert not desk.folder.exists()


@pytest.mark.parametrize("session", ["../../etc/passwd", "a" * 95, "A" * 96, ""])
def test_a_desk_makes_files_of_sessions_only(tmp_path: Path, session: str) -> None:
    with pytest.raises(Refused):
        Desk(tmp_path).once(0, session, "open")
    assert list(tmp_path.iterdir()) == []


def test_the_old_attack_finds_an_old_mask_and_none_of_these() -> None:
    # The old way folds a seed to 32 bits for NumPy's generator; 12 bits of them here. Whoever knows
    # what one number of an update is (a weight that is not trained, say) tries all seeds.
    def old_mask(seed: int) -> int:
        return int(np.random.RandomState(seed).randint(0, 2**32, dtype=np.uint32))

    masks = [old_mask(seed) for seed in range(2**12)]

    def searched(seen: int, known: int) -> list[int]:
        return [seed for seed, mask in enumerate(masks) if (known + mask) % 2**32 == seen]

    known, seed = 12345, 0xA1B
    assert seed in searched((known + old_mask(seed)) % 2**32, known)
    # The mask of a 256-bit key is none of these: 20 tries, each hit by chance once in 2^20.
    hits = 0
    for _ in range(20):
        key = derived(secrets.token_bytes(32), secrets.token_bytes(32), "mask")
        x = np.full(1, known, np.uint32)
        add_mask(x, key)
        hits += bool(searched(int(x[0]), known))
    assert hits == 0
