"""What a power cut may leave of a folder, from a recording of every write, rename and sync.

A file system keeps what was synced. Of the rest it may keep anything: this model tries nothing,
half and all of what was written to files since their last sync, and of the names that were made,
renamed and removed since their folder's last sync none, all, the first ones, or a single one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Event = tuple[Any, ...]
Disk = dict[str, bytes | None]
"""Paths with their contents; a folder has none."""
CONTENTS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "lost": lambda synced, new: synced,
    "half": lambda synced, new: new[: (len(synced) + len(new)) // 2],
    "kept": lambda synced, new: new,
}


class Recorder:
    """Records what is done to files under a folder, while it is done."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.events: list[Event] = []
        self._open: dict[int, str] = {}
        self._real = {name: getattr(os, name) for name in ("open", "write", "fsync", "close")}
        self._real["ftruncate"] = os.ftruncate
        self._real |= {name: getattr(os, name) for name in ("replace", "unlink", "mkdir", "rmdir")}
        for name in self._real:
            patch.setattr(os, name, getattr(self, name))

    def _inside(self, path: Any) -> str | None:
        if not isinstance(path, str | os.PathLike):
            return None
        whole = Path(path).absolute()
        return str(whole.relative_to(self.root)) if whole.is_relative_to(self.root) else None

    def open(self, path: Any, flags: int, *rest: Any, **more: Any) -> int:
        name = self._inside(path)
        new = name is not None and flags & os.O_CREAT and not Path(path).exists()
        file: int = self._real["open"](path, flags, *rest, **more)
        if name is not None:
            self._open[file] = name
            if new:
                self.events.append(("create", name))
            elif flags & os.O_TRUNC:
                self.events.append(("empty", name))
        return file

    def write(self, file: int, data: Any) -> int:
        written: int = self._real["write"](file, data)
        if file in self._open:
            self.events.append(("write", self._open[file], bytes(data)[:written]))
        return written

    def ftruncate(self, file: int, length: int) -> None:
        self._real["ftruncate"](file, length)
        if file in self._open:
            self.events.append(("cut", self._open[file], length))

    def fsync(self, file: int) -> None:
        self._real["fsync"](file)
        if file in self._open:
            self.events.append(("sync", self._open[file]))

    def close(self, file: int) -> None:
        self._open.pop(file, None)
        self._real["close"](file)

    def replace(self, old: Any, new: Any, **more: Any) -> None:
        self._real["replace"](old, new, **more)
        if self._inside(new) is not None:
            self.events.append(("rename", self._inside(old), self._inside(new)))

    def unlink(self, path: Any, **more: Any) -> None:
        self._real["unlink"](path, **more)
        if self._inside(path) is not None:
            self.events.append(("remove", self._inside(path)))

    def mkdir(self, path: Any, *rest: Any, **more: Any) -> None:
        self._real["mkdir"](path, *rest, **more)
        if self._inside(path) is not None:
            self.events.append(("folder", self._inside(path)))

    def rmdir(self, path: Any, **more: Any) -> None:
        self._real["rmdir"](path, **more)
        if self._inside(path) is not None:
            self.events.append(("remove", self._inside(path)))


@dataclass
class Inode:
    """A file: what the disk surely has, and what was written. A folder has neither."""

    synced: bytes = b""
    content: bytes = b""
    folder: bool = False


@dataclass
class Model:
    """A file system with its cache."""

    names: dict[str, Inode] = field(default_factory=dict)  # as the processes see them
    durable: dict[str, Inode] = field(default_factory=dict)  # as a power cut leaves them
    pending: list[tuple[str, Event]] = field(default_factory=list)  # by folder, not yet synced

    @classmethod
    def of(cls, disk: Disk) -> Model:
        """Return one that holds this, all of it synced."""
        inodes = {n: Inode(c or b"", c or b"", folder=c is None) for n, c in disk.items()}
        return cls(dict(inodes), dict(inodes))

    def apply(self, event: Event) -> None:
        """Do what was recorded."""
        kind, name, *rest = event
        if kind == "write":
            self.names[name].content += rest[0]
        elif kind == "empty":
            self.names[name].content = b""
        elif kind == "cut":
            self.names[name].content = self.names[name].content[: rest[0]]
        elif kind == "sync" and name in self.names and not self.names[name].folder:
            self.names[name].synced = self.names[name].content
        elif kind == "sync":
            for parent, waiting in self.pending:
                if parent == name:
                    enact(self.durable, waiting)
            self.pending = [one for one in self.pending if one[0] != name]
        else:
            if kind in ("create", "folder"):
                event = (kind, name, Inode(folder=kind == "folder"))
            elif kind == "rename":  # the new name may reach the disk before the old one does
                event = (kind, name, rest[0], self.names[name])
            enact(self.names, event)
            self.pending.append((str(Path(name).parent), event))

    def disks(self) -> Iterator[Disk]:
        """Give what a power cut may leave now."""
        waiting = [event for _, event in self.pending]
        firsts = [waiting[:n] for n in range(len(waiting) + 1)]
        for chosen in [*firsts, *([event] for event in waiting)]:
            names = dict(self.durable)
            for event in chosen:
                enact(names, event)
            reachable = {n: i for n, i in names.items() if whole_path(n, names)}
            for keep in CONTENTS.values():
                yield {
                    name: None if inode.folder else keep(inode.synced, inode.content)
                    for name, inode in reachable.items()
                }

    def now(self) -> Disk:
        """Return what processes see."""
        return {name: None if i.folder else i.content for name, i in self.names.items()}


def enact(names: dict[str, Inode], event: Event) -> None:
    """Change names."""
    kind, name, *rest = event
    if kind == "rename":
        names.pop(name, None)
        names[rest[0]] = rest[1]
    elif kind == "remove":
        names.pop(name, None)
    else:
        names[name] = rest[0]


def whole_path(name: str, names: dict[str, Inode]) -> bool:
    """Whether all folders above a name are there."""
    above = [str(parent) for parent in Path(name).parents][:-1]
    return all(parent in names for parent in above)


def lay_out(disk: Disk, root: Path) -> None:
    """Write a disk to a real folder."""
    for name in sorted(disk):
        content = disk[name]
        if content is None:
            (root / name).mkdir(parents=True)
        else:
            (root / name).write_bytes(content)


def read_in(root: Path) -> Disk:
    """Return a real folder as a disk."""
    found = list(root.rglob("*"))
    return {str(p.relative_to(root)): None if p.is_dir() else p.read_bytes() for p in found}
