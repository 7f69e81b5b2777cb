"""Sending messages and waiting for the answers, never longer than agreed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedtail.engines.flower.bridge import from_records, wire_bytes
from fedtail.errors import FedtailError
from fedtail.protocol import Payload

NodeId = int
POLL = 0.2
"""Seconds between two looks at most; Flower's own `send_and_receive` looks every three."""
POLL_SHARE = 0.05
"""What waiting for the next look may add to the time that an answer takes."""
EXTRA_SECONDS = 60.0
"""Seconds that a message stays valid beyond the time that its answer is waited for."""

WORDS = {
    1: "its client app could not be loaded (see its SuperNode's log)",
    2: "its client app failed outside of fedtail (see its SuperNode's log)",
    3: "the message expired, or its node is unknown",
    4: "its answer was lost",
    5: "its node went offline",
    7: "its node refused the app (see its SuperNode's log)",
    8: "its client app was killed",
}
RAISED = (1, 2)
"""Those of them that say that code of the client raised something."""


@dataclass(frozen=True)
class Answer:
    """What came from one node: payloads and notes, or the reason why not.

    An answer without notes is not the client's own: it did not answer, or could not be understood.

    Attributes
    ----------
    raised
        Whether the reason is that code of the client raised something.
    """

    payloads: list[Payload]
    notes: dict[str, Any]
    wire: int = 0
    reason: str = ""
    raised: bool = False


def ask(
    grid: Grid, kind: str, contents: Mapping[NodeId, RecordDict], seconds: float, group: str = ""
) -> dict[NodeId, Answer]:
    """Send each node its message and return what each one answered in time.

    Parameters
    ----------
    grid
        Flower's door to the nodes.
    kind
        The type of the messages, such as ``train``.
    contents
        What each node is sent.
    seconds
        How long to wait for all answers together.
    group
        What Flower's own log calls these messages.
    """
    began = time.monotonic()
    until = began + seconds
    nodes = list(contents)
    messages = [
        Message(contents[node], node, kind, ttl=seconds + EXTRA_SECONDS, group_id=group)
        for node in nodes
    ]
    ids = list(grid.push_messages(messages))
    waiting = {sent: node for node, sent in zip(nodes, ids, strict=False) if sent}
    answers = {
        node: failed("the message could not be sent")
        for node in nodes
        if node not in waiting.values()
    }
    while waiting:
        late = time.monotonic() > until  # asked first: there is always one look after the deadline
        for reply in grid.pull_messages(list(waiting)):
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                answers[node] = read(reply)
        if late:
            break
        if waiting:
            time.sleep(min(POLL, max(0.01, POLL_SHARE * (time.monotonic() - began))))
    for node in waiting.values():
        answers[node] = failed(f"no answer within {seconds:.0f} s")
    return {node: answers[node] for node in nodes}


def read(reply: Message) -> Answer:
    """Return what a reply says; an error of Flower's becomes a reason."""
    if reply.has_error():
        code = reply.error.code
        return Answer([], {}, reason=explained(code), raised=code in RAISED)
    try:
        payloads, notes = from_records(reply.content)
    except FedtailError as error:
        return failed(str(error))
    if notes.get("kind") == "failed":
        return Answer([], notes, reason=str(notes.get("reason", "it gave no reason")), raised=True)
    return Answer(payloads, notes, wire_bytes(reply.content))


def failed(reason: str) -> Answer:
    """Return the answer of a node that did not answer."""
    return Answer([], {}, reason=reason)


def explained(code: int) -> str:
    """Put Flower's error codes into words; its texts repeat exceptions, and are left out."""
    return WORDS.get(code, f"Flower error {code}")
