"""Checkpoints: after a kill at any instant, the run goes on from the last round that was saved.

``checkpoint/manifest.json`` names the files that belong together, with the SHA-256 of each. It is
replaced last and in one step, so the files it names are always whole; files that it does not name
are left-overs. A client's state is written only when it changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedtail.callbacks.base import Callback, RunInfo, Snapshot
from fedtail.engines.wire import pack_tensors, unpack_tensors
from fedtail.errors import FedtailError
from fedtail.files import make_folder, write_atomic
from fedtail.state import flatten, restore
from fedtail.version import __version__

FORMAT = 1
MANIFEST = "manifest.json"
Entry = dict[str, str]  # {"file": name, "sha256": ...}


class Checkpoint(Callback):
    """Saves every so many rounds, and the last one.

    Parameters
    ----------
    folder
        Where to.
    every
        After how many rounds.
    """

    def __init__(self, folder: Path, every: int = 1) -> None:
        self.folder = folder
        self.every = every
        self._rounds = 0
        self._clients: dict[int, tuple[Mapping[str, Tensor], Entry]] = {}

    def on_start(self, info: RunInfo) -> None:
        """Learn when the last round is."""
        self._rounds = info.rounds

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Save, if it is time to."""
        if snapshot.round % self.every == 0 or snapshot.round == self._rounds:
            self.save(snapshot)

    def save(self, snapshot: Snapshot) -> None:
        """Write the new files, then the manifest, then remove what it no longer names."""
        make_folder(self.folder)
        tree, tensors = flatten(snapshot.state)
        server = self._write(f"server-{snapshot.round:06d}", tensors)
        for client, state in snapshot.client_states.items():
            if client not in self._clients or self._clients[client][0] is not state:
                entry = self._write(f"client-{client}-{snapshot.round:06d}", state)
                self._clients[client] = (state, entry)
        manifest = {
            "format": FORMAT,
            "version": __version__,
            "round": snapshot.round,
            "state": tree,
            "server": server,
            "clients": {str(client): entry for client, (_, entry) in self._clients.items()},
        }
        write_atomic(self.folder / MANIFEST, json.dumps(manifest))
        self._tidy({server["file"], *(entry["file"] for _, entry in self._clients.values())})

    def load(self, kind: type[Any]) -> Snapshot | None:
        """Return what was saved as a snapshot with a state of this kind, or nothing."""
        path = self.folder / MANIFEST
        if not path.exists():
            return None
        manifest = _manifest(path)
        try:
            state = restore(kind, manifest["state"], self._read(manifest["server"]))
            entries = {int(client): entry for client, entry in manifest["clients"].items()}
            states = {client: self._read(entry) for client, entry in entries.items()}
            done = int(manifest["round"])
        except (KeyError, TypeError, AttributeError):
            raise FedtailError(f"the checkpoint '{path}' does not describe this run") from None
        self._clients = {client: (states[client], entry) for client, entry in entries.items()}
        return Snapshot(done, state, states)

    def _write(self, name: str, tensors: Mapping[str, Tensor]) -> Entry:
        data = pack_tensors(tensors)
        write_atomic(self.folder / f"{name}.safetensors", data)
        return {"file": f"{name}.safetensors", "sha256": hashlib.sha256(data).hexdigest()}

    def _read(self, entry: Entry) -> dict[str, Tensor]:
        path = self.folder / entry["file"]
        data = path.read_bytes() if path.exists() else b""
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise FedtailError(f"the checkpoint file '{path}' is missing, truncated or changed")
        return unpack_tensors(data, str(path))

    def _tidy(self, named: set[str]) -> None:
        """Remove files of earlier rounds, and half-written ones that a kill left."""
        for path in [*self.folder.glob("*.safetensors"), *self.folder.glob(".*.tmp")]:
            if path.name not in named:
                path.unlink(missing_ok=True)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest: Any = json.loads(path.read_bytes())
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict):
        raise FedtailError(f"the checkpoint '{path}' is truncated or not JSON") from None
    if manifest.get("format") != FORMAT:
        raise FedtailError(
            f"the checkpoint '{path}' was written by fedtail {manifest.get('version', '?')} in "
            f"format {manifest.get('format')}; fedtail {__version__} reads format {FORMAT}"
        )
    return manifest
