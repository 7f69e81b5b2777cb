"""Secure sums with real members: every loss, and what a server that lies does not get."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from secure_table import MODEL, Change, Table, expected, table, terms, vector

from fedtail.engines.executor import Done
from fedtail.privacy.secure.crypto import sha256, signing_public
from fedtail.privacy.secure.exchange import listed
from fedtail.privacy.secure.member import (
    ASK_AGREE,
    ASK_KEYS,
    ASK_OPEN,
    ASK_SHARES,
    SECURE,
    Identity,
    halves,
)
from fedtail.privacy.secure.shamir import join
from fedtail.privacy.secure.terms import KEYS_BYTES, Refused, Terms, raw
from fedtail.protocol import Payload, Task


def lose(action: str, *clients: int) -> Change:
    """Lose the messages of some clients in one step."""
    return lambda task: None if task.action == action and task.client in clients else task


def begun(folder: Path, agreed: Terms | None = None) -> Table:
    seats = table(folder, agreed)
    seats.drive(seats.sum.begin())
    return seats


def test_the_sum_is_exact_and_no_vector_is_seen(tmp_path: Path) -> None:
    # 1 + 2 + 3 + 4 = 10.
    seats = begun(tmp_path)
    assert seats.total([0, 1, 2, 3]) == [10, 10, 10, 10, -10]
    assert seats.sum.dropped == seats.sum.remarks == []
    # Nothing is left of anybody's secrets.
    assert not list(tmp_path.rglob("*.secrets"))


def test_a_masked_vector_looks_like_nothing(tmp_path: Path) -> None:
    # 64-bit numbers under a mask are uniform: none of five is near what it hides, and the same
    # vector never looks the same.
    seen = [begun(tmp_path / str(n)).deliver(0) for n in range(3)]
    for x in seen:
        assert all(abs(int(a) - int(b)) > 2**20 for a, b in zip(x, vector(0), strict=True))
    assert len({x.tobytes() for x in seen}) == 3


@pytest.mark.parametrize("action", [ASK_KEYS, ASK_SHARES])
def test_who_is_lost_before_the_masks_is_left_out(tmp_path: Path, action: str) -> None:
    seats = table(tmp_path)
    seats.drive(seats.sum.begin(), lose(action, 1))
    assert [d.client for d in seats.sum.dropped] == [1]
    assert f"lost in step '{action}'" in seats.sum.dropped[0].reason
    assert seats.sum.members == [0, 2, 3]
    assert seats.total([0, 2, 3]) == expected([0, 2, 3])


def test_who_does_not_deliver_is_left_out_and_its_masks_are_rebuilt(tmp_path: Path) -> None:
    assert begun(tmp_path).total([0, 2, 3]) == [8, 8, 8, 8, -8]


@pytest.mark.parametrize("action", [ASK_AGREE, ASK_OPEN])
def test_who_is_lost_after_the_masks_is_in_the_sum(tmp_path: Path, action: str) -> None:
    seats = begun(tmp_path)
    assert seats.total([0, 1, 2, 3], lose(action, 1)) == expected([0, 1, 2, 3])
    assert [r.client for r in seats.sum.remarks] == [1]


def test_one_is_lost_in_every_step(tmp_path: Path) -> None:
    # Eleven are asked, and six must stay to the end: clients 0 to 4 go one after the other.
    seats = table(tmp_path, terms(range(11), 6))
    steps = {ASK_KEYS: 0, ASK_SHARES: 1, ASK_AGREE: 3, ASK_OPEN: 4}

    def lost(task: Task) -> Task | None:
        gone = task.client == steps[task.action] or (task.action == ASK_OPEN and task.client == 3)
        return None if gone else task

    seats.drive(seats.sum.begin(), lost)
    assert seats.sum.members == list(range(2, 11))
    assert seats.total(range(3, 11), lost) == expected(range(3, 11))
    assert [d.client for d in seats.sum.dropped] == [0, 1]
    assert [r.client for r in seats.sum.remarks] == [3, 4]


@pytest.mark.parametrize(
    ("action", "what"), [(ASK_KEYS, "announced keys"), (ASK_SHARES, "shared their secrets")]
)
def test_below_the_threshold_nobody_masks(tmp_path: Path, action: str, what: str) -> None:
    seats = table(tmp_path)
    with pytest.raises(Refused, match=f"2 members {what}, fewer than the 3 that a sum needs"):
        seats.drive(seats.sum.begin(), lose(action, 1, 2))


@pytest.mark.parametrize(
    ("action", "what"),
    [("", "delivered"), (ASK_AGREE, "signed who delivered"), (ASK_OPEN, "opened the sum")],
)
def test_below_the_threshold_there_is_no_sum(tmp_path: Path, action: str, what: str) -> None:
    seats = begun(tmp_path)
    delivered = [0, 1, 2, 3] if action else [0, 3]
    with pytest.raises(Refused, match=f"2 members {what}, fewer than the 3 that a sum needs"):
        seats.total(delivered, lose(action, 1, 2))


def test_a_wrong_share_is_named_and_not_used(tmp_path: Path) -> None:
    seats = begun(tmp_path)
    ask = seats.ask

    def spoiled(task: Task | None) -> Done:
        done = ask(task)
        if task is not None and task.client == 2 and task.action == ASK_OPEN and done.payload:
            done.payload.tensors["secure/shares"][0] ^= 1
        return done

    seats.ask = spoiled  # type: ignore[method-assign]
    assert seats.total([0, 1, 2, 3]) == expected([0, 1, 2, 3])
    assert [(r.client, r.reason) for r in seats.sum.remarks] == [(2, "sent a wrong share")]


def test_a_member_that_shares_something_else_is_named(tmp_path: Path) -> None:
    # The digest of its seed is another's: all shares are good, and give something else.
    seats = begun(tmp_path)
    seats.sum.seeds[1] = seats.sum.seeds[0]
    with pytest.raises(Refused, match="shared something else than its secret"):
        seats.total([0, 1, 2, 3])
    assert seats.sum.remarks[0].client == 1


def test_boxes_that_nobody_can_open_cost_shares_and_no_more(tmp_path: Path) -> None:
    seats = begun(tmp_path)
    seats.sum.boxes[1][2] = bytes(len(seats.sum.boxes[1][2]))
    assert seats.total([0, 1, 2, 3]) == expected([0, 1, 2, 3])
    assert [r.client for r in seats.sum.remarks] == [2]  # has no share of client 1 to give


def test_a_late_vector_is_dropped_and_stays_hidden(tmp_path: Path) -> None:
    # Client 1 comes late: its mask key is rebuilt, so its masks of pairs are known, but its own
    # seed is not: what is left of its vector is under a mask of 256 bits.
    seats = begun(tmp_path)
    late = seats.deliver(1)
    assert seats.total([0, 2, 3]) == expected([0, 2, 3])
    told = Task(1, ASK_AGREE, Payload({}, {"session": seats.sum.session}))
    assert "no list" in seats.ask(told).reason
    assert all(int(a) != int(b) for a, b in zip(late, vector(1), strict=True))


# What a lying server does not get


def changed(action: str, client: int, **tensors: torch.Tensor) -> Callable[[Task], Task]:
    """Send one client other tensors in one step."""

    def change(task: Task) -> Task:
        if task.action != action or task.client != client:
            return task
        new = {f"secure/{name}": tensor for name, tensor in tensors.items()}
        payload = replace(task.payload, tensors={**task.payload.tensors, **new})
        return replace(task, payload=payload)

    return change


def refused(seats: Table, *clients: int) -> list[str]:
    """Return what some clients said in the place of an answer."""
    return [r.reason.partition("sum: ")[2] for r in seats.sum.remarks if r.client in clients]


@pytest.mark.parametrize("action", [ASK_AGREE, ASK_OPEN])
@pytest.mark.parametrize(
    ("delivered", "lost", "reason"),
    [
        ([0, 1, 2, 3], [1], "is said to have delivered, and to be lost"),
        ([0, 1, 2], [], "are not the members it masked against"),
        ([0, 1, 2, 3], [4], "are not the members it masked against"),
        ([0, 0, 1, 2, 3], [], "are not the members it masked against"),
        ([0, 1], [2, 3], "2 members delivered, fewer than the 3 agreed on"),
        ([1, 2, 3], [0], "is not among those who delivered"),
    ],
)
def test_lists_that_would_show_more_are_refused(
    tmp_path: Path, action: str, delivered: list[int], lost: list[int], reason: str
) -> None:
    seats = begun(tmp_path)
    lists = {"delivered": listed(delivered), "lost": listed(lost)}
    seats.total([0, 1, 2, 3], changed(action, 0, **lists))
    (said,) = refused(seats, 0)
    assert reason in said


def test_both_kinds_of_shares_of_one_member_are_not_to_be_had(tmp_path: Path) -> None:
    # The sum is opened with everybody in it; then the server says that client 3 was lost.
    seats = begun(tmp_path)
    questions: list[Task] = []

    def noted(task: Task) -> Task:
        questions.append(task)
        return task

    seats.total([0, 1, 2, 3], noted)
    lists = {"delivered": listed([0, 1, 2]), "lost": listed([3])}
    for task in [t for t in questions if t.client == 0]:
        for again in (task, changed(task.action, 0, **lists)(task)):
            reason = seats.ask(again).reason
            assert "was answered before" in reason or "not here any more" in reason


def test_two_lists_are_not_signed_by_enough(tmp_path: Path) -> None:
    # Half of the members are told that client 3 delivered, half that client 2 did, so that the one
    # half gives shares of b and the other of s: 2t > n, and neither list has t signatures.
    seats = begun(tmp_path)
    [seats.deliver(client) for client in range(4)]
    one = {"delivered": listed([0, 1, 3]), "lost": listed([2])}
    other = {"delivered": listed([0, 1, 2]), "lost": listed([3])}

    def halved(task: Task) -> Task:
        lists = one if task.client in (0, 3) else other
        return changed(task.action, task.client, **lists)(task)

    with pytest.raises(Refused, match="0 members signed who delivered"):
        seats.drive(seats.sum.masks([0, 1, 2, 3], 5), halved)  # no signature is of its list
    # Nor do members open on the signatures of their half.
    signed = torch.zeros(2, 64, dtype=torch.uint8)
    told = {**{f"secure/{n}": t for n, t in one.items()}, "secure/signers": listed([0, 3])}
    question = Payload({**told, "secure/signatures": signed}, {"session": seats.sum.session})
    assert (
        "0 members signed this list, fewer than the 3"
        in seats.ask(Task(0, ASK_OPEN, question)).reason
    )


def test_forged_and_repeated_signatures_do_not_count(tmp_path: Path) -> None:
    seats = begun(tmp_path)

    def repeated(task: Task) -> Task:
        if task.action != ASK_OPEN:
            return task
        # The signature of client 0 in the name of all.
        first = task.payload.tensors["secure/signatures"][:1].repeat(4, 1)
        return changed(ASK_OPEN, task.client, signatures=first)(task)

    with pytest.raises(Refused, match="0 members opened the sum"):
        seats.total([0, 1, 2, 3], repeated)
    assert all("1 members signed this list" in said for said in refused(seats, 0, 1, 2, 3))


def test_a_replay_is_refused(tmp_path: Path) -> None:
    seats = table(tmp_path)
    sent: list[Task] = []

    def noted(task: Task) -> Task:
        sent.append(task)
        return task

    seats.drive(seats.sum.begin(), noted)
    for task in sent:
        assert "was answered before" in seats.ask(task).reason
    seats.deliver(0)
    with pytest.raises(Refused, match="'masked' of this secure sum was answered before"):
        seats.deliver(0)  # two vectors under one mask would show their difference


def test_who_asks_for_a_sum_once_more_gets_other_keys(tmp_path: Path) -> None:
    # Nothing is left of a sum that is over, so that nothing of it can be masked or shared again.
    seats = table(tmp_path)
    sent: list[Task] = []

    def noted(task: Task) -> Task:
        sent.append(task)
        return task

    seats.drive(seats.sum.begin(), noted)
    before = dict(seats.sum.keys)
    seats.total([0, 1, 2, 3])
    asked = {task.action: task for task in sent if task.client == 0}
    assert "not here any more" in seats.ask(asked[ASK_SHARES]).reason
    again = seats.ask(asked[ASK_KEYS]).payload
    assert again is not None
    assert not halves(before[0]) & halves(raw(again.tensors["secure/keys"]))
    # The others' keys of then do not help: this client's own are not among them.
    assert "another key than this client's" in seats.ask(asked[ASK_SHARES]).reason


def test_a_restart_does_not_undo_an_answer(tmp_path: Path) -> None:
    # Killed between the mark and the answer: the secrets are there, and stay shut.
    seats = begun(tmp_path)
    [seats.deliver(client) for client in range(4)]
    desk = seats.member(0).desk
    desk.once(0, seats.sum.session, "open")
    masks = seats.drive(seats.sum.masks([0, 1, 2, 3], 5))
    assert masks is not None and "was answered before" in refused(seats, 0)[0]
    assert "mask" in desk.read(0, seats.sum.session)


def test_a_step_before_its_time_is_refused(tmp_path: Path) -> None:
    seats = begun(tmp_path)
    lists = {"secure/delivered": listed([0, 1, 2]), "secure/lost": listed([3])}
    for action in (ASK_AGREE, ASK_OPEN):
        told = Payload(lists, {"session": seats.sum.session})
        assert "before the steps that come first" in seats.ask(Task(0, action, told)).reason


def test_other_keys_than_its_own_are_refused_by_their_owner(tmp_path: Path) -> None:
    seats = table(tmp_path)

    def swapped(task: Task) -> Task:
        if task.action != ASK_SHARES:
            return task
        keys = task.payload.tensors["secure/keys"].clone()
        keys[1] = torch.frombuffer(bytearray(secrets.token_bytes(KEYS_BYTES)), dtype=torch.uint8)
        return changed(ASK_SHARES, task.client, keys=keys)(task)

    seats.drive(seats.sum.begin(), swapped)
    assert "another key than this client's" in seats.sum.dropped[0].reason


def test_swapped_keys_leave_masks_standing(tmp_path: Path) -> None:
    # Client 0 is told another key of client 1 than everybody else: its context is another, its
    # boxes and masks are of no use, and what comes out is noise.
    seats = table(tmp_path)
    keys: list[torch.Tensor] = []

    def swapped(task: Task) -> Task:
        if task.action != ASK_SHARES or task.client != 0:
            return task
        keys.append(task.payload.tensors["secure/keys"].clone())
        keys[0][1, 32:64] = torch.frombuffer(bytearray(secrets.token_bytes(32)), dtype=torch.uint8)
        return changed(ASK_SHARES, 0, keys=keys[0])(task)

    seats.drive(seats.sum.begin(), swapped)
    with pytest.raises(Refused):
        seats.total([0, 1, 2, 3])


def identities(clients: int) -> dict[int, Identity]:
    private = {client: secrets.token_bytes(32) for client in range(clients)}
    pinned = {client: signing_public(key) for client, key in private.items()}
    return {client: Identity(key, pinned) for client, key in private.items()}


def test_pinned_keys(tmp_path: Path) -> None:
    seats = table(tmp_path / "honest")
    seats.identities = identities(4)
    seats.drive(seats.sum.begin())
    assert seats.total([0, 1, 2, 3]) == expected([0, 1, 2, 3])

    # A server that plays client 1 itself has no key that the others have pinned.
    other = table(tmp_path / "lying")
    other.identities = {**identities(4), 1: identities(4)[1]}
    with pytest.raises(Refused, match="0 members shared their secrets"):
        other.drive(other.sum.begin())
    assert "the keys of client 1 are not signed by its pinned key" in other.sum.dropped[0].reason


def test_unusable_keys_are_the_fault_of_who_sent_them(tmp_path: Path) -> None:
    seats = table(tmp_path)
    ask = seats.ask

    def spoiled(task: Task | None) -> Done:
        done = ask(task)
        if task is not None and task.client == 2 and task.action == ASK_KEYS and done.payload:
            done.payload.tensors["secure/keys"][0, :32] = 0  # all would agree with it on zero
        return done

    seats.ask = spoiled  # type: ignore[method-assign]
    seats.drive(seats.sum.begin())
    assert [d.client for d in seats.sum.dropped] == [2]
    assert seats.total([0, 1, 3]) == expected([0, 1, 3])


def test_another_model_than_the_others_get_is_refused(tmp_path: Path) -> None:
    seats = begun(tmp_path)
    special = Payload({"model/w": torch.tensor([0.5, -1.25])}, {"lr": 0.1})
    with pytest.raises(Refused, match="something else than the members of this secure sum agreed"):
        seats.deliver(0, seats.sum.told(special))
    with pytest.raises(Refused, match="something else than the members of this secure sum agreed"):
        seats.deliver(1, action="show")
    with pytest.raises(Refused, match="outside of a secure sum"):
        seats.deliver(0, MODEL)


@pytest.mark.parametrize("members", [[0, 1], [1, 2, 3], [0, 1, 2, 7], [0, 0, 1]])
def test_members_that_would_show_more_are_refused(tmp_path: Path, members: list[int]) -> None:
    seats = begun(tmp_path)
    told = json.dumps({"session": seats.sum.session, "members": members})
    with pytest.raises(Refused, match="members"):
        seats.deliver(0, replace(MODEL, scalars={**MODEL.scalars, SECURE: told}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"threshold": 2}, "cannot have the threshold 2"),
        ({"width": 16}, "numbers of 16 bits"),
        ({"cohort": (0, 0, 1)}, "stands there twice"),
        ({"version": 1}, "version 1"),
        ({"addends": 3}, "room for 3 vectors, and 4 are asked"),
        ({"attempt": "../x"}, "no name"),
        ({"cohort": (1, 2, 3)}, "is not asked"),
    ],
)
def test_bad_terms_are_refused(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    wrong = replace(terms(), **change)  # type: ignore[arg-type]
    seats = table(tmp_path)
    assert reason in seats.ask(Task(0, ASK_KEYS, Payload({}, {"terms": wrong.text()}))).reason
    assert "cannot be read" in seats.ask(Task(0, ASK_KEYS, Payload({}, {"terms": "{}"}))).reason


def test_t_minus_one_colluders_have_no_secret(tmp_path: Path) -> None:
    # t = 3: three of four put their shares of client 0's seed together, and then two of them.
    seats = begun(tmp_path)
    [seats.deliver(client) for client in range(4)]
    steps = seats.sum.masks([0, 1, 2, 3], 5)
    signed = [seats.ask(task) for task in next(steps)]
    shares = {}
    for task in steps.send(signed)[1:]:
        row = seats.ask(task).payload
        assert row is not None
        shares[task.client + 1] = bytes(row.tensors["secure/shares"][0].tolist())
    assert sha256(seats.sum.context, join(shares)) == seats.sum.seeds[0]
    del shares[4]
    assert sha256(seats.sum.context, join(shares)) != seats.sum.seeds[0]
