"""A whole federation in this process: the server's loop, the messages and the client apps."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from local_grid import LocalGrid

from fedtail import Experiment
from fedtail.callbacks import Callback, own_callbacks
from fedtail.engines.flower.engine import Flower, loop_over
from fedtail.engines.flower.executor import FlowerExecutor, RunTerms
from fedtail.engines.flower.roster import Roster
from fedtail.engines.flower.worker import answer_message
from fedtail.engines.runtime import Runtime
from fedtail.folder import RunFolder
from fedtail.privacy.plan import protection
from fedtail.result import Result
from fedtail.setting import Setting, prepare


def app_for(runtime: Runtime) -> ClientApp:
    """Return a client app that works in a place of its own."""
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        return answer_message(message, context, lambda notes: runtime)

    app.train()(answer)
    app.query("hello")(answer)
    return app


@dataclass
class Federation:
    """One experiment on a grid."""

    experiment: Experiment
    grid: LocalGrid
    nodes: int
    deadline: float = 60.0
    journal: Path | None = None
    warnings: list[str] | None = None

    def engine(self, setting: Setting | None = None) -> Flower:
        setting = prepare(self.experiment) if setting is None else setting
        warn = print if self.warnings is None else self.warnings.append
        roster = Roster(self.grid, self.nodes, seconds=self.deadline, warn=warn)
        terms = RunTerms("r1", self.deadline, checkpoint_every=self.experiment.checkpoint_every)
        return Flower(FlowerExecutor(self.grid, roster, terms, setting.runtime(), self.journal))

    def run(
        self,
        out: Path | None = None,
        resume: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> Result:
        folder = None if out is None else RunFolder(out)
        watchers = [*own_callbacks(self.experiment, folder), *callbacks]
        setting = prepare(self.experiment)
        try:
            with protection(setting) as protected:
                executor = self.engine(setting).executor
                return loop_over(executor, setting, protected, folder, watchers).run(resume)
        finally:
            for watcher in watchers:
                watcher.close()


def federation(
    experiment: Experiment, nodes: int = 3, node_config: dict[str, Any] | None = None, **fields: Any
) -> Federation:
    """Return a federation whose clients share nothing with the server but the description."""
    runtime = copy.deepcopy(prepare(experiment).runtime())
    grid = LocalGrid(app_for(runtime), nodes, **(node_config or {}))
    return Federation(experiment, grid, nodes, **fields)
