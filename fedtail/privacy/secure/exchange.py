"""The server's half of a secure sum: it carries messages, and opens the sum that t members open.

Nothing here is trusted by a member. Who is lost in a step is left out of the sum; below the
threshold there is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from fedtail.engines.base import Dropped
from fedtail.engines.executor import Done
from fedtail.privacy.secure.crypto import (
    SIGNATURE_BYTES,
    Numbers,
    add_mask,
    is_signed,
    public_key,
    sha256,
)
from fedtail.privacy.secure.member import (
    ASK_AGREE,
    ASK_KEYS,
    ASK_OPEN,
    ASK_SHARES,
    BOX_BYTES,
    SECURE,
    empty_vector,
    halves,
    list_agreed,
    mask_key,
    own_mask,
    pair_mask,
    sign_key,
    usable,
)
from fedtail.privacy.secure.shamir import SHARE_BYTES, join
from fedtail.privacy.secure.terms import (
    KEYS_BYTES,
    Refused,
    Terms,
    as_tensor,
    check_threshold,
    context_of,
    pieces,
)
from fedtail.protocol import ClientId, Payload, Task

T = TypeVar("T")
Steps = Generator[list[Task], list[Done], T]
"""Yields the tasks of one step after the other, and is sent what came of them."""
DIGEST_BYTES = 32


@dataclass
class SecureExchange:
    """One secure sum as the server sees it.

    Attributes
    ----------
    terms
        What was agreed on.
    dropped, remarks
        Who was left out and why, and who did not help to open the sum, in which its update is.
    traffic
        Bytes to and from each client, beside those of the method's own action.
    failed
        Why there is no sum, if there is none.
    """

    terms: Terms
    dropped: list[Dropped] = field(default_factory=list)
    remarks: list[Dropped] = field(default_factory=list)
    traffic: dict[ClientId, list[int]] = field(default_factory=dict)
    keys: dict[ClientId, bytes] = field(default_factory=dict)
    context: bytes = b""
    boxes: dict[ClientId, dict[ClientId, bytes]] = field(default_factory=dict)
    digests: dict[ClientId, dict[ClientId, bytes]] = field(default_factory=dict)
    seeds: dict[ClientId, bytes] = field(default_factory=dict)
    failed: str = ""

    @property
    def members(self) -> list[ClientId]:
        """Who shared its secrets, and is masked against."""
        return sorted(self.seeds)

    @property
    def session(self) -> str:
        """The name of this sum."""
        return self.terms.session

    def begin(self) -> Steps[None]:
        """Have keys and shares made."""
        check_threshold(self.terms.threshold, len(self.terms.cohort))
        question = Payload({}, {"terms": self.terms.text()})
        yield from self._ask(ASK_KEYS, dict.fromkeys(self.terms.cohort, question), self._read_keys)
        self._enough(self.keys, "announced keys")
        self.context = context_of(self.terms.text(), self.keys)
        everybody = {
            "secure/members": listed(self.keys),
            "secure/keys": as_tensor(b"".join(self.keys.values()), len(self.keys)),
        }
        question = Payload(everybody, {"session": self.session})
        yield from self._ask(ASK_SHARES, dict.fromkeys(self.keys, question), self._read_shares)
        self._enough(self.seeds, "shared their secrets")

    def told(self, payload: Payload) -> Payload:
        """Return a method's payload with the name of the sum and its members."""
        sum_of = json.dumps({"session": self.session, "members": self.members})
        return replace(payload, scalars={**payload.scalars, SECURE: sum_of})

    def masks(self, delivered: Sequence[ClientId], length: int) -> Steps[Numbers]:
        """Return what the masks in a sum of vectors come to.

        Parameters
        ----------
        delivered
            Whose vectors were added up.
        length
            How many numbers a vector has.
        """
        self._enough(delivered, "delivered")
        delivered = sorted(delivered)
        lost = sorted(set(self.members) - set(delivered))
        lists = {"secure/delivered": listed(delivered), "secure/lost": listed(lost)}
        signed = yield from self._agreed(delivered, lists)
        shares = yield from self._opened(signed, lists)
        found = empty_vector(length, self.terms.width)
        for owner in delivered:
            seed = self._joined(owner, True, shares)
            add_mask(found, own_mask(seed, self.context))
        for owner in lost:
            secret = self._joined(owner, False, shares)
            for other in delivered:
                key = pair_mask(secret, self.keys[other], self.context, owner, other)
                add_mask(found, key, 1 if other < owner else -1)
        return found

    def _agreed(
        self, delivered: Sequence[ClientId], lists: Mapping[str, Tensor]
    ) -> Steps[dict[ClientId, bytes]]:
        questions = {}
        for client in delivered:
            boxes = [self.boxes[other][client] for other in self.members if other != client]
            packed = {"secure/boxes": as_tensor(b"".join(boxes), len(boxes))}
            questions[client] = Payload({**lists, **packed}, {"session": self.session})
        content = list_agreed(self.context, self.members, delivered)

        def read(client: ClientId, answer: Payload) -> bytes:
            signed = pieces(answer, "secure/signature", 1, SIGNATURE_BYTES)[0]
            if not is_signed(sign_key(self.keys[client]), signed, content):
                raise Refused("sent a signature that is not its own")
            return signed

        signed = yield from self._ask(ASK_AGREE, questions, read)
        self._enough(signed, "signed who delivered")
        return signed

    def _opened(
        self, signed: Mapping[ClientId, bytes], lists: Mapping[str, Tensor]
    ) -> Steps[dict[ClientId, list[bytes]]]:
        signatures = {
            "secure/signers": listed(signed),
            "secure/signatures": as_tensor(b"".join(signed.values()), len(signed)),
        }
        question = Payload({**lists, **signatures}, {"session": self.session})
        shares = yield from self._ask(ASK_OPEN, dict.fromkeys(signed, question), self._read_opened)
        self._enough(shares, "opened the sum")
        return shares

    def _joined(
        self, owner: ClientId, delivered: bool, shares: Mapping[ClientId, list[bytes]]
    ) -> bytes:
        """Return a member's own seed, or the mask key of one that was lost."""
        column = self.members.index(owner)
        half = slice(DIGEST_BYTES, None) if delivered else slice(DIGEST_BYTES)
        good: dict[int, bytes] = {}
        for client, row in shares.items():
            if sha256(self.context, row[column]) == self.digests[owner][client][half]:
                good[self.terms.place(client)] = row[column]
            else:
                self._remark(client, "sent a wrong share")
        t = self.terms.threshold
        if len(good) < t:
            raise Refused(
                f"{len(good)} good shares of one member's secret came back, fewer than the {t} "
                "that are needed"
            )
        secret = join(dict(list(good.items())[:t]))
        known = self.seeds[owner] if delivered else mask_key(self.keys[owner])
        if (sha256(self.context, secret) if delivered else public_key(secret)) != known:
            self._remark(owner, "shared something else than its secret")
            raise Refused("a member shared something else than its secret")
        return secret

    def _remark(self, client: ClientId, reason: str) -> None:
        told = Dropped(client, reason)
        if told not in self.remarks:
            self.remarks.append(told)

    def _enough(self, clients: Collection[ClientId], what: str) -> None:
        t = self.terms.threshold
        if len(clients) < t:
            raise Refused(f"{len(clients)} members {what}, fewer than the {t} that a sum needs")

    def _ask(
        self,
        action: str,
        questions: Mapping[ClientId, Payload],
        read: Callable[[ClientId, Payload], T],
    ) -> Steps[dict[ClientId, T]]:
        """Have a step done by many, and return what was read of good answers."""
        found: dict[ClientId, T] = {}
        tasks = [Task(client, action, question) for client, question in questions.items()]
        for task, done in zip(tasks, (yield tasks), strict=True):
            client, answer, reason = task.client, done.payload, done.reason
            both = self.traffic.setdefault(client, [0, 0])
            both[0] += task.payload.nbytes
            if answer is not None:
                both[1] += answer.nbytes
                try:
                    found[client] = read(client, answer)
                    continue
                except Refused as error:
                    reason = str(error)
            said = f"lost in step '{action}' of the secure sum: {reason}"
            if action in (ASK_KEYS, ASK_SHARES):
                self.dropped.append(Dropped(client, said))
            else:
                self._remark(client, said)
        return found

    def _read_keys(self, client: ClientId, answer: Payload) -> None:
        keys = pieces(answer, "secure/keys", 1, KEYS_BYTES)[0]
        known = {half for other in self.keys.values() for half in halves(other)}
        # The others would refuse to go on with such keys, and all for one.
        if not usable(keys) or known & halves(keys):
            raise Refused("sent keys that nobody can use")
        self.keys[client] = keys

    def _read_shares(self, client: ClientId, answer: Payload) -> None:
        everybody = list(self.keys)
        others = [other for other in everybody if other != client]
        boxes = pieces(answer, "secure/boxes", len(others), BOX_BYTES)
        digests = pieces(answer, "secure/digests", len(everybody), 2 * DIGEST_BYTES)
        seed = pieces(answer, "secure/seed", 1, DIGEST_BYTES)[0]
        self.boxes[client] = dict(zip(others, boxes, strict=True))
        self.digests[client] = dict(zip(everybody, digests, strict=True))
        self.seeds[client] = seed

    def _read_opened(self, _: ClientId, answer: Payload) -> list[bytes]:
        return pieces(answer, "secure/shares", len(self.members), SHARE_BYTES)


def listed(clients: Iterable[ClientId]) -> Tensor:
    """Return clients as a tensor."""
    return torch.tensor(list(clients), dtype=torch.int64)
