"""Where a client keeps its state between tasks: on its own machine, one version after another.

The server holds only the number of the version that counts. Each task names the version it starts
from and the number under which the result is kept, so that the client goes back with the server: to
the last checkpoint when a run is resumed, and to the version before an update that was refused.

Flower's own `Context.state` is in the memory of a SuperNode. It is gone when that process ends or
another run begins, and large ones are lost without a word, so it is used only where no folder was
given and the state is small.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flwr.app import ConfigRecord, Context
from torch import Tensor

from fedtail.engines.flower.scrubbing import PublicError
from fedtail.files import make_folder, remove, write_atomic
from fedtail.protocol import ClientId
from fedtail.tensors import pack_tensors, unpack_tensors

ClientState = dict[str, Tensor]
SMALL = 1_000_000
"""Bytes of a state that `Context.state` is trusted with; losses were seen from 100 MB on."""


class StateLost(PublicError):
    """The client does not have the version that the server counts on."""


class Store(Protocol):
    """Keeps versions of clients' states; version 0 is the empty state of a new client."""

    def load(self, client: ClientId, version: int) -> ClientState:
        """Return a version, or raise `StateLost`."""

    def save(self, client: ClientId, version: int, state: ClientState, keep: Iterable[int]) -> None:
        """Keep a state under a number, and of the others those that are still needed."""


@dataclass(frozen=True)
class Files:
    """One file a version, written beside and renamed."""

    folder: Path

    def load(self, client: ClientId, version: int) -> ClientState:
        """Read a version."""
        if not version:
            return {}
        path = self._path(client, version)
        if not path.is_file():
            raise state_lost(client, version)
        return unpack_tensors(path.read_bytes(), f"the state of client {client}")

    def save(self, client: ClientId, version: int, state: ClientState, keep: Iterable[int]) -> None:
        """Write a version, then remove those that nobody goes back to."""
        path = self._path(client, version)
        make_folder(path.parent)
        write_atomic(path, pack_tensors(state))
        kept = {path.name, *(self._path(client, v).name for v in keep)}
        for other in path.parent.iterdir():
            if other.name not in kept:
                remove(other)

    def _path(self, client: ClientId, version: int) -> Path:
        return self.folder / f"client-{client}" / f"{version:09d}.safetensors"


@dataclass(frozen=True)
class InContext:
    """Small states in Flower's context, large ones in files."""

    context: Context
    files: Files

    def load(self, client: ClientId, version: int) -> ClientState:
        """Return a version from wherever it is."""
        held = self.context.state.config_records.get(f"{client}@{version}")
        if held is None:
            return self.files.load(client, version)
        data = held["state"]
        return unpack_tensors(
            data if isinstance(data, bytes) else b"damaged", f"the state of client {client}"
        )

    def save(self, client: ClientId, version: int, state: ClientState, keep: Iterable[int]) -> None:
        """Keep a version where it fits, and forget those that nobody goes back to."""
        keep = set(keep)
        data = pack_tensors(state)
        kept = {f"{client}@{other}" for other in keep}
        for name in [n for n in self.context.state.config_records if n.startswith(f"{client}@")]:
            if name not in kept:
                del self.context.state[name]
        if len(data) > SMALL:
            self.files.save(client, version, state, keep)
        else:
            self.context.state[f"{client}@{version}"] = ConfigRecord({"state": data})


def state_lost(client: ClientId, version: int) -> StateLost:
    """Return the error for a version that is not there."""
    return StateLost(
        f"has lost its state (version {version}): its node was restarted without a state folder, "
        "or the folder was removed; it begins afresh in its next round"
    )


def open_store(context: Context, run: str) -> Store:
    """Return the store of a node: its ``state-dir``, or else its context.

    Parameters
    ----------
    context
        What Flower gives the client app; ``node_config`` may name a ``state-dir``.
    run
        What tells runs apart; a resumed run has the same.
    """
    # The name comes from the server, and becomes a folder.
    run = "".join(letter if letter.isalnum() else "-" for letter in run)
    given = context.node_config.get("state-dir")
    if given:
        return Files(Path(str(given)) / run)
    return InContext(context, Files(Path.home() / ".fedtail" / "flower" / run))
