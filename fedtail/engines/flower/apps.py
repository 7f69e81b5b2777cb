"""Both halves behind ``fedtail run --engine flower`` and ``--engine ray``.

Both are told by the run's configuration where the description of the experiment is, and make
everything else from it, as an embedded run does. All processes are on one machine (or one Ray
cluster) and see the same files; a federation of machines has an app of its own (see `new`).
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedtail.callbacks import Callback, own_callbacks
from fedtail.described import load_experiment, make_experiment
from fedtail.engines.flower.engine import loop_over
from fedtail.engines.flower.executor import FlowerExecutor, RunTerms
from fedtail.engines.flower.records import Content
from fedtail.engines.flower.roster import Roster
from fedtail.engines.flower.status import ForwardWarnings, StatusFiles
from fedtail.engines.flower.store import Files
from fedtail.engines.flower.worker import answer_content
from fedtail.engines.runtime import numerics
from fedtail.folder import RunFolder
from fedtail.lock import locked
from fedtail.plugins import load_plugins
from fedtail.privacy.plan import protection
from fedtail.setting import Setting, prepare

server_app = ServerApp()


@server_app.main()
def serve_run(grid: Grid, context: Context) -> None:
    """Run the loop, and leave word of how it ended."""
    config = context.run_config
    folder = RunFolder(Path(str(config["out"])))
    status = StatusFiles(folder.path)
    with status.attended():
        run_loop(grid, folder, status, config)


def run_loop(grid: Grid, folder: RunFolder, status: StatusFiles, config: Any) -> None:
    """Run all rounds that are left."""
    setting = described_setting(str(folder.experiment))
    experiment = setting.experiment
    with numerics(experiment.threads), ExitStack() as stack:
        stack.enter_context(locked(status.folder))
        watchers: list[Callback] = [ForwardWarnings(status), *own_callbacks(experiment, folder)]
        for watcher in watchers:
            stack.callback(watcher.close)
        roster = Roster(grid, int(config["nodes"]), float(config["join"]), warn=status.warn)
        roster.assemble(float(config["join"]))
        terms = RunTerms(
            run=folder.path.name,
            deadline=float(config["deadline"]),
            threads=experiment.threads,
            checkpoint_every=experiment.checkpoint_every,
        )
        executor = FlowerExecutor(grid, roster, terms, setting.runtime(), status.journal)
        protected = stack.enter_context(protection(setting))
        loop = loop_over(executor, setting, protected, folder, watchers)
        loop.run(bool(config["resume"]))


def answer_described(content: Content, context: Context) -> Content:
    """Do the tasks of one message; `node` has it done in a process that stays."""
    folder = RunFolder(Path(str(context.run_config["out"])))
    return answer_content(
        content,
        context,
        lambda notes: described_setting(str(folder.experiment)).runtime(),
        Files(folder.client_states),
    )


@cache  # whoever serves a node lives as long as its run, and so does the data
def described_setting(path: str) -> Setting:
    """Return the real things behind the description in a file."""
    plain = load_experiment(Path(path))
    load_plugins(plain.get("plugins", []))
    return prepare(make_experiment(plain)).with_features()
