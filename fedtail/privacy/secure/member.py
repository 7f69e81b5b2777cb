"""A client's half of a secure sum: every step once, and refusals in the place of trust.

Whatever the server sends, a client gives out one masked vector in a sum, and of each other member
either a share of its own seed (it delivered) or of its mask key (it was lost), never both.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedtail.errors import FedtailError
from fedtail.privacy.secure.crypto import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    TAG_BYTES,
    Numbers,
    add_mask,
    agreed,
    derived,
    is_signed,
    locked_box,
    public_key,
    sha256,
    signature,
    signing_public,
    unlocked,
)
from fedtail.privacy.secure.desk import Desk
from fedtail.privacy.secure.shamir import SHARE_BYTES, shared_out
from fedtail.privacy.secure.terms import (
    KEYS_BYTES,
    Refused,
    Terms,
    as_tensor,
    clients_in,
    context_of,
    payload_digest,
    pieces,
    read_terms,
)
from fedtail.protocol import ClientId, Payload, Task

ASK_KEYS, ASK_SHARES, ASK_AGREE, ASK_OPEN = (
    "secure_keys",
    "secure_shares",
    "secure_agree",
    "secure_open",
)
ACTIONS = frozenset({ASK_KEYS, ASK_SHARES, ASK_AGREE, ASK_OPEN})
"""What a client is asked beside the method's own action, which has a masked answer."""
SECURE = "secure"
"""The scalar of a method's task that names the secure sum and its members."""
BOX_BYTES = 2 * SHARE_BYTES + TAG_BYTES


@dataclass(frozen=True)
class Identity:
    """Who a client is to the others, whatever the server says.

    Attributes
    ----------
    private
        An Ed25519 key of its own.
    pinned
        The public keys of all who may take part, itself included.
    """

    private: bytes
    pinned: Mapping[ClientId, bytes]


@dataclass(frozen=True)
class Member:
    """Answers the steps of secure sums for the clients of one place."""

    desk: Desk
    identity: Identity | None = None

    def perform(self, task: Task) -> Payload:
        """Answer a step that is no method's action."""
        steps = {
            ASK_KEYS: self.keys,
            ASK_SHARES: self.shares,
            ASK_AGREE: self.agree,
            ASK_OPEN: self.open_sum,
        }
        return steps[task.action](task.client, task.payload)

    def keys(self, client: ClientId, told: Payload) -> Payload:
        """Make keys for this sum alone, and announce their public halves."""
        text = str(told.scalars.get("terms"))
        terms = read_terms(text)
        session = terms.session
        if client not in terms.cohort:
            raise Refused("this client is not asked for this secure sum")
        self.desk.begin(client, session, terms.attempt)
        private = [secrets.token_bytes(KEY_BYTES) for _ in range(3)]
        box, mask, sign = private
        public = public_key(box) + public_key(mask) + signing_public(sign)
        vouched = bytes(SIGNATURE_BYTES)
        if self.identity is not None:
            vouched = signature(self.identity.private, announcement(session, client, public))
        held = {"box": box.hex(), "mask": mask.hex(), "sign": sign.hex(), "terms": text}
        self.desk.write(client, session, held)
        return Payload({"secure/keys": as_tensor(public + vouched)})

    def shares(self, client: ClientId, told: Payload) -> Payload:
        """Share the mask key and an own seed with everybody who announced keys."""
        held, session, terms = self._held(client, told, "shares")
        members = clients_in(told, "secure/members")
        rows = pieces(told, "secure/keys", len(members), KEYS_BYTES)
        keys = dict(zip(members, rows, strict=True))
        self._check_keys(keys, held, client, session, terms)
        context, seed = context_of(held["terms"], keys), secrets.token_bytes(KEY_BYTES)
        places = [terms.place(c) for c in members]
        of_mask = shared_out(bytes.fromhex(held["mask"]), terms.threshold, places)
        of_seed = shared_out(seed, terms.threshold, places)
        boxes, digests, own = [], [], ""
        for other, s, b in zip(members, of_mask, of_seed, strict=True):
            digests.append(sha256(context, s) + sha256(context, b))
            if other == client:
                own = (s + b).hex()
                continue
            key = box_key(bytes.fromhex(held["box"]), keys[other], context, client, other)
            boxes.append(locked_box(key, s + b, context))
        held |= {
            "keys": {c: keys[c].hex() for c in members},
            "context": context.hex(),
            "seed": seed.hex(),
            "own": own,
        }
        self.desk.write(client, session, held)
        return Payload(
            {
                "secure/boxes": as_tensor(b"".join(boxes), len(boxes)),
                "secure/digests": as_tensor(b"".join(digests), len(digests)),
                "secure/seed": as_tensor(sha256(context, seed)),
            }
        )

    def terms(self, task: Task) -> Terms:
        """Return the terms of the secure sum that a method's task belongs to."""
        session, _ = told_of(task.payload)
        return read_terms(self.desk.read(task.client, session)["terms"])

    def masked(self, task: Task, layout: str, x: Numbers) -> None:
        """Put the masks over a vector, in place.

        Parameters
        ----------
        task
            Whose it is, and what it answers, which must be what the terms say.
        layout
            The digest of what stands where in the vector.
        x
            The vector.
        """
        client, (session, members) = task.client, told_of(task.payload)
        self.desk.once(client, session, "masked")
        held = self.desk.read(client, session)
        terms, keys = read_terms(held["terms"]), known_keys(held)
        sent = payload_digest(task.payload, SECURE)
        if terms.kind[1:] != (task.action, sent, layout):
            raise Refused("was sent something else than the members of this secure sum agreed on")
        if client not in members or not set(members) <= keys.keys():
            raise Refused("the members of this secure sum are not those who announced keys")
        if len(members) != len(set(members)) or len(members) < terms.threshold:
            raise Refused(f"{len(members)} members are fewer than the {terms.threshold} agreed on")
        context, mask = bytes.fromhex(held["context"]), bytes.fromhex(held["mask"])
        add_mask(x, own_mask(bytes.fromhex(held["seed"]), context))
        for other in members:
            if other != client:
                key = pair_mask(mask, keys[other], context, client, other)
                add_mask(x, key, 1 if client < other else -1)
        self.desk.write(client, session, held | {"members": sorted(members)})

    def agree(self, client: ClientId, told: Payload) -> Payload:
        """Take the others' shares, and sign who delivered."""
        held, session, terms = self._held(client, told, "agree", "members")
        delivered = self._checked_lists(client, told, held, terms)
        context, keys = bytes.fromhex(held["context"]), known_keys(held)
        others = [c for c in held["members"] if c != client]
        shares = {client: held["own"]}
        for other, box in zip(
            others, pieces(told, "secure/boxes", len(others), BOX_BYTES), strict=True
        ):
            key = box_key(bytes.fromhex(held["box"]), keys[other], context, other, client)
            content = unlocked(key, box, context)
            # Of who sent nonsense others may have a share.
            shares[other] = "" if content is None else content.hex()
        signed = signature(
            bytes.fromhex(held["sign"]), list_agreed(context, held["members"], delivered)
        )
        self.desk.write(client, session, held | {"shares": shares, "delivered": delivered})
        return Payload({"secure/signature": as_tensor(signed)})

    def open_sum(self, client: ClientId, told: Payload) -> Payload:
        """Give out one share of each member, once, if enough signed the same list."""
        held, session, terms = self._held(client, told, "open", "delivered")
        delivered = self._checked_lists(client, told, held, terms)
        if delivered != held["delivered"]:
            raise Refused("is asked to open another list than it signed")
        keys = known_keys(held)
        agreed_on = list_agreed(bytes.fromhex(held["context"]), held["members"], delivered)
        signers = clients_in(told, "secure/signers")
        rows = pieces(told, "secure/signatures", len(signers), SIGNATURE_BYTES)
        signed = {c: row for c, row in zip(signers, rows, strict=True) if c in delivered}
        good = [c for c, row in signed.items() if is_signed(sign_key(keys[c]), row, agreed_on)]
        if len(good) < terms.threshold:
            raise Refused(
                f"{len(good)} members signed this list, fewer than the {terms.threshold} agreed on"
            )
        given = b""
        for other in held["members"]:
            both = bytes.fromhex(held["shares"][str(other)]) or bytes(2 * SHARE_BYTES)
            given += both[SHARE_BYTES:] if other in delivered else both[:SHARE_BYTES]
        self.desk.erase(client, session)
        return Payload({"secure/shares": as_tensor(given, len(held["members"]))})

    def _held(
        self, client: ClientId, told: Payload, step: str, needed: str = "terms"
    ) -> tuple[dict[str, Any], str, Terms]:
        """Mark a step and return the secrets of its sum, which must have come so far."""
        session = str(told.scalars.get("session"))
        self.desk.once(client, session, step)
        held = self.desk.read(client, session)
        if needed not in held:
            raise Refused(f"is asked for '{step}' before the steps that come first")
        return held, session, read_terms(held["terms"])

    def _check_keys(
        self,
        keys: Mapping[ClientId, bytes],
        held: Mapping[str, Any],
        client: ClientId,
        session: str,
        terms: Terms,
    ) -> None:
        box, mask, sign = (bytes.fromhex(held[name]) for name in ("box", "mask", "sign"))
        own = public_key(box) + public_key(mask) + signing_public(sign)
        if keys.get(client, b"")[: len(own)] != own:
            raise Refused("the server told the others another key than this client's")
        if not keys.keys() <= set(terms.cohort) or len(keys) < terms.threshold:
            raise Refused(
                f"keys of {len(keys)} members are there, of whom {terms.threshold} must be of the "
                "cohort"
            )
        if len(set().union(*map(halves, keys.values()))) < 3 * len(keys):
            raise Refused("two members have the same key")
        if self.identity is None:
            return
        for other, key in keys.items():
            public, vouched = key[:-SIGNATURE_BYTES], key[-SIGNATURE_BYTES:]
            pinned = self.identity.pinned.get(other, b"")
            if not is_signed(pinned, vouched, announcement(session, other, public)):
                raise Refused(f"the keys of client {other} are not signed by its pinned key")

    @staticmethod
    def _checked_lists(
        client: ClientId, told: Payload, held: Mapping[str, Any], terms: Terms
    ) -> list[ClientId]:
        """Return who delivered, or refuse lists that could show more than the sum."""
        delivered = sorted(clients_in(told, "secure/delivered"))
        lost = sorted(clients_in(told, "secure/lost"))
        if set(delivered) & set(lost):
            raise Refused("a member is said to have delivered, and to be lost")
        if sorted(delivered + lost) != held["members"]:
            raise Refused("who delivered and who is lost are not the members it masked against")
        if len(delivered) < terms.threshold:
            raise Refused(
                f"{len(delivered)} members delivered, fewer than the {terms.threshold} agreed on"
            )
        if client not in delivered:
            raise Refused("is not among those who delivered")
        return delivered


def told_of(task: Payload) -> tuple[str, list[ClientId]]:
    """Return the name of the secure sum that a method's task belongs to, and its members."""
    try:
        told = json.loads(str(task.scalars[SECURE]))
        return str(told["session"]), [int(client) for client in told["members"]]
    except (KeyError, ValueError, TypeError):
        raise Refused("was asked for an update outside of a secure sum") from None


def announcement(session: str, client: ClientId, public: bytes) -> bytes:
    """Return what a client's own key vouches for."""
    return sha256(b"fedtail keys", session.encode(), str(client).encode(), public)


def list_agreed(
    context: bytes, members: Sequence[ClientId], delivered: Sequence[ClientId]
) -> bytes:
    """Return what is signed of who delivered."""
    lists = json.dumps([sorted(members), sorted(delivered)]).encode()
    return sha256(b"fedtail agreement", context, lists)


def known_keys(held: Mapping[str, Any]) -> dict[ClientId, bytes]:
    """Return the announced keys."""
    return {int(c): bytes.fromhex(key) for c, key in held["keys"].items()}


def halves(keys: bytes) -> set[bytes]:
    """Return the three public keys that a member announced."""
    return {keys[start : start + KEY_BYTES] for start in range(0, 3 * KEY_BYTES, KEY_BYTES)}


def usable(keys: bytes) -> bool:
    """Whether somebody can agree on secrets with what a member announced."""
    try:
        for public in (keys[:KEY_BYTES], mask_key(keys)):
            agreed(secrets.token_bytes(KEY_BYTES), public, b"", "")
    except FedtailError:
        return False
    return len(halves(keys)) == 3


def mask_key(keys: bytes) -> bytes:
    """Return the public key of masks in what a member announced."""
    return keys[KEY_BYTES : 2 * KEY_BYTES]


def sign_key(keys: bytes) -> bytes:
    """Return the public key of signatures in what a member announced."""
    return keys[2 * KEY_BYTES : 3 * KEY_BYTES]


def box_key(
    private: bytes, other: bytes, context: bytes, sender: ClientId, receiver: ClientId
) -> bytes:
    """Return the key of the box that one member sends another."""
    return agreed(private, other[:KEY_BYTES], context, f"box {sender} {receiver}")


def pair_mask(
    private: bytes, other: bytes, context: bytes, client: ClientId, neighbour: ClientId
) -> bytes:
    """Return the key of the mask that two members share: one adds it, the other subtracts it."""
    first, second = sorted((client, neighbour))
    return agreed(private, mask_key(other), context, f"mask {first} {second}")


def own_mask(seed: bytes, context: bytes) -> bytes:
    """Return the key of the mask that a member has alone."""
    return derived(seed, context, "own mask")


def empty_vector(length: int, width: int) -> Numbers:
    """Return room for a vector."""
    return np.zeros(length, np.uint32 if width == 32 else np.uint64)


def as_signed(numbers: Numbers) -> torch.Tensor:
    """Return numbers modulo 2^w as a tensor of signed ones, which add up in the same way."""
    return torch.from_numpy(numbers.view(np.int32 if numbers.itemsize == 4 else np.int64))
