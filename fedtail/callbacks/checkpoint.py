"""Checkpoints: after a kill at any instant, the run goes on from the last round that was saved.

``checkpoint/manifest-ROUND.json`` names the files that belong together, with the SHA-256 of each
and of itself. It is written last and in one step, so the files it names are always whole. The
newest two are kept: if a disk damages one, the run goes on from the other. Files that neither names
are left-overs. What clients remember is in packs (`client_packs`), and a state is written only when
it changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor

from fedtail.callbacks.base import Best, Callback, Snapshot
from fedtail.callbacks.client_packs import ClientPacks, DamagedCheckpoint, read_checked
from fedtail.callbacks.jsonl import json_ready
from fedtail.errors import FedtailError
from fedtail.files import make_folder, remove, sync_folder, write_atomic
from fedtail.state import flatten, restore
from fedtail.tensors import pack_tensors
from fedtail.version import __version__

CHECKPOINT_FORMAT = 3
KEPT = 2
"""How many checkpoints are kept."""
Entry = dict[str, str]  # {"file": name, "sha256": ...}


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
        self._packs = ClientPacks(folder)
        self._news: set[int] = set()  # whose states are newer than the last checkpoint
        self._kept: list[set[str]] = []  # the files of each checkpoint but packs, the newest last
        self._tidied = False

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Save, if it is time to."""
        self._news.update(snapshot.news)
        if snapshot.round % self.every == 0 or snapshot.last:
            self.save(snapshot)

    def save(self, snapshot: Snapshot) -> None:
        """Write the new files, then the manifest, then remove what no manifest names."""
        make_folder(self.folder)
        tree, tensors = flatten(snapshot.state)
        doomed, news = self._packs.doomed, self._news.union(snapshot.news)
        with ThreadPoolExecutor(1) as pool:  # two syncs at once cost little more than one
            writing = pool.submit(self._write, f"server-{snapshot.round:06d}", tensors)
            clients = self._packs.save(snapshot.round, snapshot.client_states, news)
            server = writing.result()
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
            "clients": clients,
        }
        name = f"manifest-{snapshot.round:06d}.json"
        write_atomic(self.folder / name, json.dumps({**manifest, "sha256": _digest(manifest)}))
        self._news = set()
        self._kept.append({name, *_files(manifest)})
        self._tidy(doomed)

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
            self._keep(manifests[at : at + KEPT])
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
            packs = ClientPacks.replayed(self.folder, manifest["clients"])
            states = packs.read()
            done, record = int(manifest["round"]), dict(manifest["record"])
            best = self._restored_best(manifest.get("best"))
        except (KeyError, TypeError, AttributeError):
            raise DamagedCheckpoint(f"the checkpoint '{path}' does not describe this run") from None
        self._packs = packs
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
        return read_checked(self.folder / entry["file"], entry["sha256"])

    def _keep(self, manifests: Sequence[Path]) -> None:
        """Keep what these name, the newest of which was loaded; a damaged one names nothing."""
        self._kept = []
        for path in reversed(manifests):
            try:
                manifest = _manifest(path)
                packs = ClientPacks.replayed(self.folder, manifest["clients"])
            except FedtailError:
                continue
            self._kept.append({path.name, *_files(manifest)})
            self._packs.doomed |= packs.files - self._packs.files

    def _tidy(self, doomed: set[str]) -> None:
        """Remove files of earlier rounds; the first time half-written ones, too, and strays.

        Parameters
        ----------
        doomed
            Packs that the last two manifests do not name, but the one before them.
        """
        gone, self._kept = self._kept[:-KEPT], self._kept[-KEPT:]
        named = set().union(*self._kept)
        useless = doomed.union(*gone) - named
        if not self._tidied:
            named |= self._packs.files | self._packs.doomed
            strays = ("*.safetensors", "manifest*.json", ".*.tmp")
            useless = {p.name for stray in strays for p in self.folder.glob(stray)} - named
            self._tidied = True
        for name in sorted(useless):
            remove(self.folder / name)


def _files(manifest: Mapping[str, Any]) -> set[str]:
    best = manifest.get("best")
    return {entry["file"] for entry in (manifest["server"], *([best] if best else []))}


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
