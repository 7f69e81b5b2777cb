"""The process that stays beside a node and does its work: data, model and methods are loaded once.

`relay` starts it and talks to it through a socket, one message at a time. It works for one run. It
ends when the node's process is gone, when a message of another run comes, when nobody has asked for
ten minutes, and when whoever asked is gone before the answer: nobody waits for that any more, and
what it is stuck in may never end.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import psutil
from flwr.app import Context, RecordDict

from fedtail.engines.flower.link import ArrayGroups, receive_arrays, send_arrays
from fedtail.engines.flower.processes import running
from fedtail.engines.flower.relay import STATE_GROUP, object_named, put_states, states_of
from fedtail.engines.flower.scrubbing import reply
from fedtail.errors import FedtailError
from fedtail.lock import locked

IDLE_SECONDS = 600.0
"""Seconds without a message after which it ends; the next message starts another one."""
LOOK_EVERY = 0.2
"""Seconds between two looks at who it works for."""


class Watch(threading.Thread):
    """Ends this process when its node has ended, or who waits for an answer."""

    def __init__(self, folder: Path, node: int) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.node = psutil.Process(node)
        self.asking: socket.socket | None = None

    def run(self) -> None:
        """Look, now and then."""
        while running(self.node) and not self.deserted():
            time.sleep(LOOK_EVERY)
        end(self.folder)

    def deserted(self) -> bool:
        """Whether who asked has gone."""
        asking = self.asking
        if asking is None:
            return False
        try:
            said = asking.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:  # nothing to read, or no longer open
            return False
        return not said and asking is self.asking  # it may have got its answer meanwhile


def leave(folder: Path) -> None:
    """Take this process's folder away; the next message makes another one.

    While it listens nobody else starts one there: what is removed is its own.
    """
    if folder.exists():
        with suppress(FedtailError, OSError), locked(folder, wait=True):
            shutil.rmtree(folder)


def end(folder: Path) -> NoReturn:
    """Leave nothing behind, and end at once, whatever is being done."""
    leave(folder)
    os._exit(0)


def serve_node(listener: socket.socket, watch: Watch) -> None:
    """Answer messages until there is no more to do here."""
    job: Any = None
    listener.settimeout(IDLE_SECONDS)
    while True:
        try:
            link, _ = listener.accept()
        except TimeoutError:
            return
        with link, suppress(OSError, EOFError):  # who asked may be gone at any time
            link.settimeout(None)
            head, groups = receive_arrays(link)
            if job not in (None, head["job"]):
                leave(watch.folder)  # before whoever asked is told to start another one
                with suppress(OSError):
                    send_arrays(link, {}, {})
                os._exit(0)
            job, watch.asking = head["job"], link
            answer = answer_request(head, groups)
            watch.asking = None
            send_arrays(link, *answer)


def answer_request(head: dict[str, Any], groups: ArrayGroups) -> tuple[dict[str, str], ArrayGroups]:
    """Return the answer to one message, and the states that Flower is to keep."""
    context = Context(state=RecordDict(), **head["context"])
    put_states(context.state, groups.pop(STATE_GROUP))
    job = head["job"]
    answer, text = reply(
        lambda: object_named(job["target"])((groups, head["text"]), context, **job["given"])
    )
    return {"text": text}, {**answer, STATE_GROUP: states_of(context.state)}


def stay(place: str, node: str, number: str) -> None:
    """Be the resident of a node.

    Parameters
    ----------
    place
        Its folder.
    node
        The number of the node's process.
    number
        That of the socket it listens at, which it has inherited.
    """
    folder = Path(place)
    signal.signal(signal.SIGTERM, lambda *_: end(folder))
    try:
        watch = Watch(folder, int(node))
    except psutil.NoSuchProcess:
        end(folder)
    watch.start()
    serve_node(socket.socket(fileno=int(number)), watch)
    end(folder)
