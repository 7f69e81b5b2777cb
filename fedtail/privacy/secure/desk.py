"""Where a client keeps the secrets of a running secure sum, and marks what it has answered.

Not among the states that a server may go back to: a client that could be taken back would give out
both kinds of shares, or two vectors under one mask. So a mark that cannot be made twice is on the
disk before an answer leaves, as long as there are secrets to answer with. These are gone after the
last answer, or when the next sum begins, and the marks with them: a server that asks for the same
sum once more gets other keys, as for any other sum.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtail.files import make_folder, sync_folder
from fedtail.privacy.secure.terms import Refused
from fedtail.protocol import ClientId


@dataclass(frozen=True)
class Desk:
    """A folder with one for each client, of the secrets and marks of a secure sum.

    Attributes
    ----------
    durable
        Whether marks have to outlive a power cut; not where the secrets do not.
    """

    folder: Path
    durable: bool = True

    def begin(self, client: ClientId, session: str, attempt: str) -> None:
        """Erase what earlier exchanges left, and mark that this sum begins."""
        own = self._own(client)
        make_folder(own) if self.durable else own.mkdir(parents=True, exist_ok=True)
        for old in own.iterdir():
            if not old.name.startswith(attempt):
                old.unlink(missing_ok=True)
        self.once(client, session, "keys")

    def once(self, client: ClientId, session: str, step: str) -> None:
        """Mark a step as answered, or refuse one that was, or that comes after the last."""
        if step != "keys" and not self._path(client, session, "secrets").exists():
            raise self._unknown()
        try:
            mark = os.open(
                self._path(client, session, step), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600
            )
        except FileExistsError:
            raise Refused(f"'{step}' of this secure sum was answered before") from None
        try:
            if self.durable:
                os.fsync(mark)
        finally:
            os.close(mark)
        self._sync(client)

    def write(self, client: ClientId, session: str, secrets: dict[str, Any]) -> None:
        """Keep the secrets of a sum, for the client's own user alone."""
        path = self._path(client, session, "secrets")
        beside = path.with_suffix(".new")
        with os.fdopen(os.open(beside, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
            json.dump(secrets, file)
        beside.replace(path)

    def read(self, client: ClientId, session: str) -> dict[str, Any]:
        """Return the secrets of a sum that is not over."""
        try:
            text = self._path(client, session, "secrets").read_text(encoding="utf-8")
        except FileNotFoundError:
            raise self._unknown() from None
        found: dict[str, Any] = json.loads(text)
        return found

    def erase(self, client: ClientId, session: str) -> None:
        """Forget the secrets of a sum, and then that there was one."""
        self._path(client, session, "secrets").unlink()
        self._sync(client)  # no power cut may bring secrets back without their marks
        own = self._own(client)
        for mark in own.glob(f"{session}.*"):
            mark.unlink(missing_ok=True)
        with suppress(OSError):  # the client is in another sum of the exchange
            own.rmdir()

    def clear(self) -> None:
        """Forget every sum: where a run is over, one that broke off has nothing to come back to."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, client: ClientId, session: str, suffix: str) -> Path:
        if not re.fullmatch("[0-9a-f]{96}", session):  # the server says it, and it names a file
            raise self._unknown()
        return self._own(client) / f"{session}.{suffix}"

    def _own(self, client: ClientId) -> Path:
        """Return the client's own folder: one for all would be read through for each of them."""
        return self.folder / str(client)

    def _sync(self, client: ClientId) -> None:
        if self.durable:
            sync_folder(self._own(client))

    @staticmethod
    def _unknown() -> Refused:
        return Refused("the keys of this secure sum are not here any more, or never were")


def desk_beside(states: Path) -> Desk:
    """Return the desk of a node whose clients' states are in a folder."""
    return Desk(states / "secure")
