"""A Flower grid without processes: each message is answered by the client app in this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


class LocalGrid(Grid):
    """Nodes 100, 101, ... hold partitions 0, 1, ...; each has a context of its own.

    Attributes
    ----------
    silent
        Nodes that never answer.
    offline
        Nodes that are not listed.
    spoil
        Changes a reply before the server sees it.
    """

    def __init__(self, app: ClientApp, nodes: int, **node_config: Any) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.app = app
        self.contexts = {
            100 + part: Context(
                1, 100 + part, {"partition-id": part, **node_config}, RecordDict(), {}
            )
            for part in range(nodes)
        }
        self.silent: set[int] = set()
        self.offline: set[int] = set()
        self.spoil: Callable[[int, Message], Message] = lambda node, reply: reply
        self.sent: list[Message] = []
        self._replies: dict[str, Message] = {}

    # Flower's interface has these three; the library must do without them, so they fail if called.

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.contexts.keys() - self.offline)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            number = f"m{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = number
            self.sent.append(message)
            ids.append(number)
            node = message.metadata.dst_node_id
            if node not in self.silent:
                self._replies[number] = self.spoil(node, self._answer(node, message))
        return ids

    def _answer(self, node: int, message: Message) -> Message:
        if node in self.offline:
            return Message(Error(5, "node unavailable"), reply_to=message)
        try:
            return self.app(message, self.contexts[node])
        except Exception as error:
            return Message(Error(2, f"secret: {error}"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        # In the wrong order: it must not matter.
        return [self._replies.pop(i) for i in reversed(list(message_ids)) if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))
