"""The Flower engine: the embedded one, with the nodes of a federation for an executor."""

from __future__ import annotations

from fedtail.engines.base import ServerSide
from fedtail.engines.embedded import Embedded
from fedtail.engines.flower.executor import FlowerExecutor
from fedtail.protocol import ClientId


class Flower(Embedded):
    """Carries tasks to the nodes of a Flower federation and updates back.

    Turns, random streams, the refusal of bad updates and the order of good ones are those of the
    embedded engine, so the bits are, too. A client's state stays on its machine; what stands in
    `states` and in checkpoints is the number of its version. A client that raises is left out:
    one machine of many must not end the run.
    """

    executor: FlowerExecutor

    def __init__(self, executor: FlowerExecutor, server_side: ServerSide | None = None) -> None:
        super().__init__(executor.runtime, server_side=server_side)
        self.executor = executor

    def announced(self, client: ClientId) -> int | None:
        """Return what the client's node said when it came, if only the node has the data."""
        if self.executor.terms.method is None:
            return super().announced(client)
        return self.executor.roster.samples.get(client)
