"""Everything that watches a run is a callback: it is told, and it cannot change the run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class RunInfo:
    """What is known of a run before its first round.

    Attributes
    ----------
    name
        What the run is called in tables and trackers.
    settings
        The whole experiment as plain data (see `Config.describe`).
    rounds, done
        How many rounds there will be, and how many were done before this start (resume).
    folder
        The run folder, or nothing for a run that leaves no files.
    classes, class_counts
        Class names, and how many training samples of each all clients hold together.
    clients
        What the clients are called; a record has their numbers.
    features
        A clause on features of a frozen body: that they are computed once, or why not.
    """

    name: str
    settings: Mapping[str, Any]
    rounds: int
    done: int
    folder: Path | None
    classes: tuple[str, ...]
    class_counts: tuple[int, ...]
    clients: tuple[str, ...] = ()
    features: str = ""


@dataclass(frozen=True)
class Best:
    """The best validated round so far.

    Attributes
    ----------
    round, value
        Which round it is, and its score.
    waited
        How many validations since then were not better.
    model
        Its tensors, if they are what is to be shipped; else empty.
    """

    round: int
    value: float
    waited: int
    model: Mapping[str, Tensor]


@dataclass(frozen=True)
class Snapshot:
    """What a run needs to go on from the end of a round: the server's state and the clients'.

    The record is that of the round itself, so that no run goes on without the numbers it stands on.

    Attributes
    ----------
    client_states
        What clients remember now: it changes as the run goes on.
    best
        The best validated round so far, if rounds are validated.
    last
        Whether the run ends here.
    changed
        Whose state is newer than the snapshot before; none: everybody's.
    """

    round: int
    state: Any
    client_states: Mapping[int, dict[str, Tensor]]
    record: Mapping[str, Any] = field(default_factory=dict)
    best: Best | None = None
    last: bool = False
    changed: Collection[int] | None = None

    @property
    def news(self) -> Collection[int]:
        """Whose state is newer than the snapshot before."""
        return self.client_states.keys() if self.changed is None else self.changed


Record = Mapping[str, Any]
"""One round as it stands in ``metrics.jsonl``: plain JSON values, `None` where not evaluated."""


class Callback:
    """Hooks, all optional, called in this order; `close` is called whatever happens."""

    def on_start(self, info: RunInfo) -> None:
        """Before the first round of this start."""

    def on_round(self, record: Record) -> None:
        """After each round."""

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """After `on_round`, with everything that the next round starts from."""

    def on_saved(self, snapshot: Snapshot) -> None:
        """After all have had the snapshot, and it is saved if it is to be."""

    def on_warning(self, message: str) -> None:
        """When a client is dropped, or a round keeps the old model."""

    def on_end(self, record: Record, model: Mapping[str, Tensor]) -> None:
        """At the end, with the record of the round that is shipped, and its tensors."""

    def close(self) -> None:
        """Let go of files and connections."""
