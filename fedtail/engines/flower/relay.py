"""A client app that does nothing itself: messages are passed on to a process that stays.

A SuperNode starts a new process for every message. This one imports no PyTorch, reads no data and
makes no model: it finds the node's resident process (`resident`), starts it if there is none, and
hands over the message. Where Flower keeps its processes, as on Ray, the work is done in them.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedtail.engines.flower.link import NamedArrays, receive_arrays, send_arrays
from fedtail.engines.flower.processes import RESIDENTS
from fedtail.engines.flower.records import Content, sealed, unsealed
from fedtail.engines.flower.scrubbing import PublicError, reply
from fedtail.errors import FedtailError
from fedtail.lock import locked

ATTEMPTS = 3
"""How often a message is handed over to a resident that ends before it has answered."""
STATE_GROUP = "@states"
"""The group of arrays, beside those of the message, that are states."""
STATES = re.compile(r"\d+@\d+")
"""The records of Flower's context that hold the states of our clients (see `store`)."""
DETACHED = """
import os, sys
if child := os.fork():
    with open(os.path.join(sys.argv[1], "pid"), "w") as file:
        file.write(str(child))
    os._exit(0)
from fedtail.engines.flower.resident import stay
stay(*sys.argv[1:])
"""
"""A program that goes on as nobody's child, before it imports anything."""
logger = logging.getLogger(__name__)


class NoResident(FedtailError):
    """There can be no resident here."""


def relayed(target: str, **given: str | None) -> ClientApp:
    """Return a client app whose messages are answered by a function elsewhere.

    Parameters
    ----------
    target
        The function, ``"module:name"``. It is given a message's content and Flower's context, and
        returns the answer's content.
    given
        What else it is given.
    """
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        content = reply(lambda: passed_on(unsealed(message.content), context, target, given))
        return Message(sealed(content), reply_to=message)

    app.train()(answer)
    app.query("hello")(answer)
    return app


def passed_on(content: Content, context: Context, target: str, given: dict[str, Any]) -> Content:
    """Have a content answered: by the node's resident, or else in this process."""
    if is_short_lived():
        try:
            return Resident(folder_of(context), os.getppid()).ask(content, context, target, given)
        except NoResident as error:
            logger.warning("every message is answered by a new process, which is slow: %s", error)
    answer: Content = object_named(target)(content, context, **given)
    return answer


def is_short_lived() -> bool:
    """Whether Flower started this process for one message, beside a node that stays."""
    return Path(sys.argv[0]).name == "flwr-clientapp" and os.name == "posix" and os.getppid() > 1


def object_named(reference: str) -> Any:
    """Return the object that ``"module:name"`` names."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def folder_of(context: Context) -> Path:
    """Return the folder of the resident of the node that this process belongs to.

    The node is whoever starts these processes: with it the resident ends.
    """
    place = os.environ.get(RESIDENTS) or Path(tempfile.gettempdir()) / f"fedtail-{os.getuid()}"
    return Path(place) / f"{os.getppid()}-{context.node_id}"


@dataclass(frozen=True)
class Resident:
    """The process that works for a node, seen from outside.

    Attributes
    ----------
    folder
        Where its socket is; nobody else may look into it.
    node
        The process that it ends with.
    """

    folder: Path
    node: int

    @property
    def place(self) -> Path:
        """Where it listens."""
        return self.folder / "socket"

    def ask(
        self, content: Content, context: Context, target: str, given: dict[str, Any]
    ) -> Content:
        """Hand over a message and return the answer; the context's states are as it left them."""
        groups, text = content
        job = {"run": context.run_id, "target": target, "given": given}
        head = {"job": job, "text": text, "context": plain(context)}
        for _ in range(ATTEMPTS):
            try:
                with self.reach() as link:
                    send_arrays(link, head, {**groups, STATE_GROUP: states_of(context.state)})
                    told, answer = receive_arrays(link)
            except NoResident:
                raise
            except (OSError, EOFError, FedtailError):
                continue  # it ended, and another one gives the same: that depends on the job alone
            if "text" in told:
                put_states(context.state, answer.pop(STATE_GROUP))
                return answer, told["text"]
        raise PublicError(f"its resident process ended {ATTEMPTS} times before it had answered")

    def reach(self) -> socket.socket:
        """Connect to it; if it does not listen, start it."""
        for folder in (self.folder.parent, self.folder):
            make_private(folder)
        with locked(self.folder, wait=True):
            try:
                return self.connect()
            except (FileNotFoundError, ConnectionRefusedError):
                self.start()
            return self.connect()

    def connect(self) -> socket.socket:
        """Connect to it."""
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(str(self.place))
        except OSError as error:
            link.close()
            if isinstance(error, FileNotFoundError | ConnectionRefusedError):
                raise
            raise NoResident(f"cannot connect to '{self.place}': {error}") from None
        return link

    def start(self) -> None:
        """Start it. It inherits a socket that listens already, so nobody has to wait for it."""
        self.place.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            try:
                listener.bind(str(self.place))
            except OSError as error:
                raise NoResident(f"cannot listen at '{self.place}': {error}") from None
            self.place.chmod(0o600)
            listener.listen()
            number = listener.fileno()
            words = [str(self.folder), str(self.node), str(number)]
            subprocess.run(
                [sys.executable, "-P", "-c", DETACHED, *words],
                stdin=subprocess.DEVNULL,  # and its output goes where this process's goes
                # Flower has put the app on the path.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=[number],
                start_new_session=True,
                check=False,
            )


def make_private(folder: Path) -> None:
    """Make a folder that only its owner may look into, or refuse one that is not so."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise NoResident(f"cannot make the folder '{folder}': {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise NoResident(f"'{folder}' is not a folder that only its owner may look into")


def plain(context: Context) -> dict[str, Any]:
    """Return a context as plain data, without its states."""
    return {
        "run_id": context.run_id,
        "node_id": context.node_id,
        "node_config": dict(context.node_config),
        "run_config": dict(context.run_config),
    }


def states_of(records: RecordDict) -> NamedArrays:
    """Return the states of our clients that Flower keeps for the node."""
    held = {n: r["state"] for n, r in records.config_records.items() if STATES.fullmatch(n)}
    return {n: np.frombuffer(data, np.uint8) for n, data in held.items() if isinstance(data, bytes)}


def put_states(records: RecordDict, states: NamedArrays) -> None:
    """Let Flower keep these states, and no others of our clients."""
    for name in [name for name in records.config_records if STATES.fullmatch(name)]:
        del records[name]
    for name, data in states.items():
        records[name] = ConfigRecord({"state": data.tobytes()})
