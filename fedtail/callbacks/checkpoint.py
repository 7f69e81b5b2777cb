"""Checkpoints: after a kill at any instant, the run goes on from the last round that was saved.

``checkpoint/manifest-ROUND.json`` names the files that belong together, with the SHA-256 of each
and of itself. It is written last and in one step, so the files it names are always whole. The
newest two are kept: if a disk damages one, the run goes on from the other. Files that neither names
are left-overs. A client's state is written only when it changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor

from fedtail.callbacks.base import Best, Callback, Snapshot
from fedtail.callbacks.jsonl import json_ready
from fedtail.errors import FedtailError
from fedtail.files import make_folder, remove, sync_folder, write_atomic
from fedtail.state import flatten, restore
from fedtail.tensors import pack_tensors, unpack_tensors
from fedtail.version import __version__

CHECKPOINT_FORMAT = 2
KEPT = 2
"""How many checkpoints are kept."""
WRITERS = 16
"""How many files are written at once: their syncs together cost little more than one."""
Entry = dict[str, str]  # {"file": name, "sha256": ...}


class DamagedCheckpoint(FedtailError):
    """A checkpoint that is not what was written."""


class Checkpoint(Callback):
    """Saves every so many rounds, and the last one.

    Parameters
    ----------
    folder
        Where to.
    every
        After how many rounds.

    Attributes
    ----------
    damage
        What was wrong with newer checkpoints than the one that was loaded.
    """

    def __init__(self, folder: Path, every: int = 1) -> None:
        self.folder = folder
        self.every = every
        self.damage: list[str] = []
        self._best: tuple[Mapping[str, Tensor], Entry] | None = None
        self._clients: dict[int, tuple[Mapping[str, Tensor], Entry]] = {}
        self._kept: list[set[str]] = []  # the files of each checkpoint, the newest last

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Save, if it is time to."""
        if snapshot.round % self.every == 0 or snapshot.last:
            self.save(snapshot)

    def save(self, snapshot: Snapshot) -> None:
        """Write the new files, then the manifest, then remove what no manifest names."""
        make_folder(self.folder)
        tree, tensors = flatten(snapshot.state)
        new = {
            client: state
            for client, state in snapshot.client_states.items()
            if client not in self._clients or self._clients[client][0] is not state
        }
        owners = ("server", *(f"client-{client}" for client in new))
        names = [f"{owner}-{snapshot.round:06d}" for owner in owners]
        with ThreadPoolExecutor(WRITERS) as pool:
            server, *entries = pool.map(self._write, names, (tensors, *new.values()))
        self._clients |= {c: (new[c], entry) for c, entry in zip(new, entries, strict=True)}
        best = self._saved_best(snapshot.best)
        sync_folder(self.folder)
        manifest = {
            "format": CHECKPOINT_FORMAT,
            "version": __version__,
            "round": snapshot.round,
            "record": json_ready(snapshot.record),
            "state": tree,
            "server": server,
            "best": best,
            "clients": {str(client): entry for client, (_, entry) in self._clients.items()},
        }
        name = f"manifest-{snapshot.round:06d}.json"
        write_atomic(self.folder / name, json.dumps({**manifest, "sha256": _digest(manifest)}))
        self._kept = [*self._kept, {name, *_files(manifest)}][-KEPT:]
        self._tidy(set().union(*self._kept))

    def _saved_best(self, best: Best | None) -> dict[str, Any] | None:
        """Write the best model, if it is a new one, and return what the manifest says of it."""
        if best is None:
            return None
        if self._best is None or self._best[0] is not best.model:
            self._best = best.model, self._write(f"best-{best.round:06d}", best.model)
        told = {"round": best.round, "value": best.value, "waited": best.waited}
        return {**told, **self._best[1]}

    def load(self, kind: type[Any]) -> Snapshot | None:
        """Return the newest whole checkpoint as a snapshot with a state of this kind, or nothing.

        What is wrong with newer ones is in `damage`; if none is whole, that is the error.
        """
        self.damage = []
        manifests = self._manifests()
        for at, path in enumerate(manifests):
            try:
                found = self._restored(kind, path)
            except DamagedCheckpoint as error:
                self.damage.append(str(error))
                continue
            self._kept = [files for kept in manifests[at : at + KEPT][::-1] for files in _of(kept)]
            return found
        if self.damage:
            raise FedtailError(
                f"no checkpoint is whole: {', and '.join(self.damage)}; "
                f"if you remove '{self.folder}', the run starts again"
            )
        return None

    def _manifests(self) -> list[Path]:
        """Return the manifests, the newest first; format 1 had one, without a round."""
        numbered = [
            path for path in self.folder.glob("manifest-*.json") if path.stem[9:].isdecimal()
        ]
        newest_first = sorted(numbered, key=lambda path: int(path.stem[9:]), reverse=True)
        return newest_first or list(self.folder.glob("manifest.json"))

    def _restored(self, kind: type[Any], path: Path) -> Snapshot:
        manifest = _manifest(path)
        try:
            state = restore(kind, manifest["state"], self._read(manifest["server"]))
            entries = {int(client): entry for client, entry in manifest["clients"].items()}
            states = {client: self._read(entry) for client, entry in entries.items()}
            done, record = int(manifest["round"]), dict(manifest["record"])
            best = self._restored_best(manifest.get("best"))
        except (KeyError, TypeError, AttributeError):
            raise DamagedCheckpoint(f"the checkpoint '{path}' does not describe this run") from None
        self._clients = {client: (states[client], entry) for client, entry in entries.items()}
        return Snapshot(done, state, states, record, best)

    def _restored_best(self, saved: Mapping[str, Any] | None) -> Best | None:
        if saved is None:
            return None
        entry = {key: saved[key] for key in ("file", "sha256")}
        best = Best(saved["round"], saved["value"], saved["waited"], self._read(entry))
        self._best = best.model, entry
        return best

    def _write(self, name: str, tensors: Mapping[str, Tensor]) -> Entry:
        data = pack_tensors(tensors)
        write_atomic(self.folder / f"{name}.safetensors", data, last=False)
        return {"file": f"{name}.safetensors", "sha256": hashlib.sha256(data).hexdigest()}

    def _read(self, entry: Entry) -> dict[str, Tensor]:
        path = self.folder / entry["file"]
        try:
            data = path.read_bytes()
        except OSError:
            data = None
        if data is None or hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise DamagedCheckpoint(
                f"the checkpoint file '{path}' is missing, truncated or changed"
            )
        return unpack_tensors(data, str(path))

    def _tidy(self, named: set[str]) -> None:
        """Remove files of earlier rounds, and half-written ones that a kill left."""
        for pattern in ("*.safetensors", "manifest*.json", ".*.tmp"):
            for path in self.folder.glob(pattern):
                if path.name not in named:
                    remove(path)


def _files(manifest: Mapping[str, Any]) -> set[str]:
    best = manifest.get("best")
    entries = [manifest["server"], *manifest["clients"].values(), *([best] if best else [])]
    return {entry["file"] for entry in entries}


def _of(path: Path) -> list[set[str]]:
    """Return what a manifest names, itself included, in a list that is empty if it is damaged."""
    try:
        return [{path.name, *_files(_manifest(path))}]
    except FedtailError:
        return []


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest: Any = json.loads(path.read_bytes())
    except (OSError, ValueError):
        manifest = None
    if not isinstance(manifest, dict):
        raise DamagedCheckpoint(f"the checkpoint '{path}' is truncated or not JSON")
    if manifest.get("format") != CHECKPOINT_FORMAT:
        raise FedtailError(
            f"the checkpoint '{path}' was written by fedtail {manifest.get('version', '?')} in "
            f"format {manifest.get('format')}; fedtail {__version__} reads format "
            f"{CHECKPOINT_FORMAT}"
        )
    if manifest.pop("sha256", None) != _digest(manifest):
        raise DamagedCheckpoint(f"the checkpoint '{path}' was changed")
    return manifest


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
