"""What clients remember, on disk: a checkpoint writes the cohort's states, not everybody's.

A checkpoint packs the states that are new into ``clients-ROUND.safetensors`` and adds a line to
``clients.jsonl``: the file, its SHA-256 and whose states it holds. A client's state is in the last
pack that names it. The manifest says how long the journal was and what its SHA-256 was up to there;
what comes after is of no account, and is cut off before the next line. So the cost of a checkpoint
does not grow with the clients that were ever used.

A pack of which half is out of date is dissolved: what lives of it moves to the next pack. Moving
then never costs more than the writing of what went out of date, and the packs hold at most twice
what the clients remember.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from fedtail.errors import FedtailError
from fedtail.files import write_after, write_atomic
from fedtail.tensors import pack_tensors, unpack_tensors

JOURNAL = "clients.jsonl"
States = Mapping[int, Mapping[str, Tensor]]


class DamagedCheckpoint(FedtailError):
    """A checkpoint that is not what was written."""


@dataclass(frozen=True, eq=False)
class Pack:
    """A file with states of clients, some of which may be out of date."""

    file: str
    sha256: str
    clients: tuple[int, ...]


class ClientPacks:
    """The packs of one checkpoint folder, as its journal names them.

    Parameters
    ----------
    folder
        Where they are.

    Attributes
    ----------
    doomed
        Packs that the newest manifest does not need, but the one before it does.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.doomed: set[str] = set()
        self._where: dict[int, Pack] = {}
        self._alive: Counter[Pack] = Counter()
        self._journal, self._length = hashlib.sha256(), 0

    @classmethod
    def replayed(cls, folder: Path, told: Mapping[str, Any] | None) -> Self:
        """Return the packs as they were when a manifest was written.

        Parameters
        ----------
        folder
            Where they are.
        told
            What `save` returned for the manifest.
        """
        packs = cls(folder)
        if told is None:
            return packs
        path = folder / JOURNAL
        try:
            with path.open("rb") as file:
                journal = file.read(told["bytes"])
        except OSError:
            journal = b""
        if hashlib.sha256(journal).hexdigest() != told["sha256"]:
            raise _damaged(path)
        for line in journal.splitlines(keepends=True):
            packs._count_on(line)
        packs.doomed.clear()
        return packs

    @property
    def files(self) -> set[str]:
        """The packs that are needed, by name."""
        return {pack.file for pack in self._alive}

    def save(self, round: int, states: States, changed: Collection[int]) -> dict[str, Any] | None:
        """Write what is new, and return what the manifest says of the journal, if there is one."""
        self.doomed = set()
        if changed:
            self._add(round, states, sorted({*changed, *self._dissolved(changed)}))
        if not self._length:
            return None
        return {"bytes": self._length, "sha256": self._journal.hexdigest()}

    def read(self) -> dict[int, dict[str, Tensor]]:
        """Return what the clients remember."""
        states: dict[int, dict[str, Tensor]] = {client: {} for client in self._where}
        for pack in self._alive:
            for named, tensor in read_checked(self.folder / pack.file, pack.sha256).items():
                client, _, name = named.partition("/")
                if self._where[int(client)] is pack:
                    states[int(client)][name] = tensor
        return states

    def _dissolved(self, changed: Iterable[int]) -> list[int]:
        """Return who lives in the packs of which half is out of date once these states are."""
        dead = Counter(self._where[client] for client in changed if client in self._where)
        stale = [p for p, n in dead.items() if 2 * (self._alive[p] - n) <= len(p.clients)]
        return [client for p in stale for client in p.clients if self._where[client] is p]

    def _add(self, round: int, states: States, clients: list[int]) -> None:
        """Write a pack and its line, and then count on them."""
        named = {f"{client}/{name}": t for client in clients for name, t in states[client].items()}
        file, data = f"clients-{round:06d}.safetensors", pack_tensors(named)
        write_atomic(self.folder / file, data, last=False)
        entry = {"file": file, "sha256": hashlib.sha256(data).hexdigest(), "clients": clients}
        line = f"{json.dumps(entry)}\n".encode()
        write_after(self.folder / JOURNAL, self._length, line)
        self._count_on(line)

    def _count_on(self, line: bytes) -> None:
        """Take a line of the journal for true."""
        self._journal.update(line)
        self._length += len(line)
        entry = json.loads(line)
        new = Pack(entry["file"], entry["sha256"], tuple(entry["clients"]))
        for client in new.clients:
            old = self._where.get(client)
            self._where[client] = new
            if old is not None:
                self._alive[old] -= 1
                if not self._alive[old]:
                    del self._alive[old]
                    self.doomed.add(old.file)
        self._alive[new] = len(new.clients)


def read_checked(path: Path, sha256: str) -> dict[str, Tensor]:
    """Return the tensors of a file; one that is not what was written is refused."""
    try:
        data = path.read_bytes()
    except OSError:
        data = None
    if data is None or hashlib.sha256(data).hexdigest() != sha256:
        raise _damaged(path)
    return unpack_tensors(data, str(path))


def _damaged(path: Path) -> DamagedCheckpoint:
    return DamagedCheckpoint(f"the checkpoint file '{path}' is missing, truncated or changed")
