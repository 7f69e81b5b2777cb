"""The Flower engine: the embedded one, with the nodes of a federation for an executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedtail.callbacks import Callback
from fedtail.engines.base import ServerSide
from fedtail.engines.embedded import Embedded
from fedtail.engines.flower.demands import terms_told
from fedtail.engines.flower.executor import FlowerExecutor
from fedtail.folder import RunFolder
from fedtail.loop import Loop
from fedtail.privacy.plan import Protection
from fedtail.protocol import ClientId
from fedtail.setting import Setting


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


def loop_over(
    executor: FlowerExecutor,
    setting: Setting,
    protected: Protection | None,
    folder: RunFolder | None,
    callbacks: Sequence[Callback],
) -> Loop:
    """Return the loop of a run on nodes, protected on both sides if that is asked for.

    Parameters
    ----------
    executor
        Who carries tasks to nodes; told here what protects the updates that come back.
    setting, folder, callbacks
        Those of the loop.
    protected
        Both sides of a protection, and its budget.
    """
    if protected is None:
        side = setting.experiment.robust_side
        return Loop(setting, Flower(executor, side), folder, callbacks)
    more = {**executor.terms.more, **terms_told(protected.client)}
    executor.terms = replace(executor.terms, more=more)
    executor.runtime.client_side = protected.client
    executor.hides = protected.budget is not None and protected.budget.hides
    engine = Flower(executor, protected.server)
    return Loop(setting, engine, folder, callbacks, protected.budget)
