"""Which node holds which clients.

Flower's node ids are random numbers, other ones after each restart. So each node is asked once, by
``query.hello``, which partition it holds. With fewer nodes than clients a node serves several:
client k is served by partition k modulo the number of nodes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from flwr.serverapp import Grid

from fedtail.engines.flower.bridge import to_records
from fedtail.engines.flower.rpc import POLL, NodeId, ask
from fedtail.errors import RunStopped
from fedtail.protocol import ClientId
from fedtail.version import __version__

HELLO = "query.hello"
TRIES = 3
"""How often a node is asked that does not answer; a busy machine may lose a client's process."""


@dataclass
class Roster:
    """Who is there.

    Attributes
    ----------
    nodes
        How many partitions there are.
    seconds
        How long a node may take to say which one it holds.
    kind
        The type of the message that asks; a stock client app has only ``train``.
    warn
        Is told of what is odd.
    samples
        How many samples each client has whose data only its node knows, as first announced.
    private
        Whether nobody is asked for that number.
    """

    grid: Grid
    nodes: int
    seconds: float = 120.0
    kind: str = HELLO
    warn: Callable[[str], None] = print
    samples: dict[ClientId, int] = field(default_factory=dict)
    places: dict[int, NodeId] = field(default_factory=dict)
    met: set[NodeId] = field(default_factory=set)
    tries: Counter[NodeId] = field(default_factory=Counter)
    private: bool = field(default=False, kw_only=True)

    def assemble(self, seconds: float) -> None:
        """Wait until every partition is there; stop the run if that takes too long."""
        until = time.monotonic() + seconds
        while len(self.refresh()) < self.nodes:
            if time.monotonic() > until:
                missing = sorted(set(range(self.nodes)) - self.places.keys())
                raise RunStopped(
                    f"{len(self.places)} of {self.nodes} nodes came online within {seconds:.0f} s "
                    f"(missing: partition-id {', '.join(map(str, missing[:10]))})"
                )
            time.sleep(POLL)

    def refresh(self) -> dict[int, NodeId]:
        """Ask nodes that are new, and return the node of each partition that is online."""
        online = set(self.grid.get_node_ids())
        self._meet(sorted(online - self.met))
        return {part: node for part, node in self.places.items() if node in online}

    def partition(self, client: ClientId) -> int:
        """Return the partition that serves a client."""
        return client % self.nodes

    def _meet(self, strangers: Iterable[NodeId]) -> None:
        hello = {"kind": "hello", "private": self.private}
        contents = {node: to_records([], hello) for node in strangers}
        if not contents:
            return
        for node, answer in ask(self.grid, self.kind, contents, self.seconds, "hello").items():
            self.tries[node] += 1
            if answer.notes or self.tries[node] == TRIES:
                self.met.add(node)
            if answer.reason:
                self.warn(f"node {node} is not used: {answer.reason}")
                continue
            part, versions = answer.notes.get("partition"), answer.notes.get("versions")
            if not isinstance(part, int) or not isinstance(versions, dict):
                self.warn(f"node {node} is not used: it does not say its partition-id and versions")
                continue
            if not 0 <= part < self.nodes:
                wrong = f"partition-id {part} is none of 0 to {self.nodes - 1}"
                self.warn(f"node {node} is not used: {wrong}")
                continue
            # A node that comes back has a new id, while its old one may be listed for a minute.
            self.places[part] = node
            samples = answer.notes.get("samples")
            if isinstance(samples, int) and samples >= 0:
                self.samples.setdefault(part, samples)
            self._compare(part, versions)

    def _compare(self, part: int, theirs: dict[str, str]) -> None:
        ours = {"fedtail": __version__, "torch": str(torch.__version__)}
        for name, version in ours.items():
            if theirs.get(name) != version:
                self.warn(
                    f"partition {part} has {name} {theirs.get(name)} and the server {version}: "
                    "the last bits of a result may differ"
                )
