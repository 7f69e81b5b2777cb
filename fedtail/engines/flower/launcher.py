"""`fedtail run --engine flower`: a whole federation on this machine, and back to a run folder.

Real processes: one SuperLink, as many SuperNodes as asked for, and what they start. The launcher
stops exactly these, whatever happens. With ``ray`` the clients are Flower's simulation instead.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w

from fedtail.callbacks import Callback, Checkpoint, read_records
from fedtail.described import made_in_python
from fedtail.engines.embedded import Embedded
from fedtail.engines.flower.follow import RunFollower
from fedtail.engines.flower.processes import alive
from fedtail.engines.flower.status import StatusFiles
from fedtail.engines.flower.superlink import FlowerProcesses
from fedtail.errors import FedtailError, RunStopped, missing_extra, suggestion
from fedtail.experiment import Experiment
from fedtail.files import write_atomic
from fedtail.folder import RunFolder
from fedtail.lock import locked
from fedtail.longer import take_up
from fedtail.loop import Loop
from fedtail.metrics import shipped_record
from fedtail.models.split_model import load_tested
from fedtail.predictor import predictor_of
from fedtail.privacy.plan import protection
from fedtail.privacy.secure.desk import desk_beside
from fedtail.result import Result
from fedtail.setting import Setting, prepare
from fedtail.settled import restore_inputs
from fedtail.signals import ended_by_signals

FOLLOW_EVERY = 0.3
COMPONENTS = {
    "serverapp": "fedtail.engines.flower.apps:server_app",
    "clientapp": "fedtail.engines.flower.node:node_app",
}
"""Where Flower finds the two halves of a run."""
START = 300.0
"""Seconds that the server app may take to begin."""


@dataclass(frozen=True)
class Launch:
    """How a federation on this machine is made.

    Attributes
    ----------
    engine
        ``flower`` for SuperNodes, ``ray`` for simulated clients.
    nodes
        How many; each serves as many clients as it must.
    tls
        Let nodes prove who they are by keys of their own, too.
    deadline
        Seconds that an exchange may take; who has not answered by then is left out of it.
    join
        Seconds that the nodes may take to come online.
    """

    engine: Literal["flower", "ray"] = "flower"
    nodes: int = 3
    tls: bool = False
    deadline: float = 600.0
    join: float = 300.0

    def run(
        self,
        experiment: Experiment,
        out: str | Path,
        resume: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> Result:
        """Run an experiment on processes of its own and return what it left in its folder."""
        folder = RunFolder(Path(out).resolve())
        folder.must_be_a_run() if resume else folder.must_be_new()
        check_installed(self.engine)
        check_described(experiment)
        setting = prepare(experiment).with_features()
        with protection(setting):
            pass  # what the budget cannot cover is refused before anything is written
        loop = Loop(setting, Embedded(setting.runtime()), folder, callbacks)
        status = StatusFiles(folder.path)
        with ExitStack() as stack:
            stack.enter_context(locked(folder.path))
            folder.must_be_a_run() if resume else folder.must_be_new()
            if resume:
                folder.must_hold(experiment.describe())
                folder.must_be_on(setting.digests())
            done = rounds_saved(setting, folder) if resume else 0
            longer = take_up(folder, experiment, done) if resume else []
            loop.begin()
            # A server app whose launcher was killed may still be at work.
            with locked(status.folder):
                status.clear()
                write_atomic(launch_file(folder.path), json.dumps(asdict(self)))
            loop.tell_start(done)
            loop.warn(longer)
            for callback in callbacks:
                stack.callback(callback.close)
            stack.enter_context(ended_by_signals())
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedtail-")))
            stack.callback(desk_beside(folder.client_states).clear)
            federation = FlowerProcesses(home, status.folder, self.tls, self.engine == "ray")
            stack.callback(federation.close)
            self.start(federation, len(setting.federation), folder, resume)
            self.wait(federation, status, RunFollower(folder, callbacks, done))
            if setting.cohorts is not None and setting.cohorts.secret:
                status.forget_logs()
        return collect(setting, folder, callbacks)

    def start(
        self, federation: FlowerProcesses, clients: int, folder: RunFolder, resume: bool
    ) -> None:
        """Start all processes and submit the run."""
        nodes = min(self.nodes, clients)
        config = {
            "out": str(folder.path),
            "nodes": nodes,
            "deadline": self.deadline,
            "join": self.join,
            "resume": resume,
        }
        app = write_app(federation.home / "app", config)
        federation.open()
        if self.engine == "ray":
            resources = f"num-supernodes={nodes} client-resources-num-cpus=1"
            federation.submit(app, "--federation-config", resources)
            return
        for partition in range(nodes):
            federation.add_node(partition, nodes)
        federation.submit(app)

    def wait(self, federation: FlowerProcesses, status: StatusFiles, watch: RunFollower) -> None:
        """Wait for the end of the run, or for that of a process it cannot do without."""
        link = federation.started[0]
        until = time.monotonic() + START
        while True:
            federation.look()
            watch.look()
            said = status.read()
            if said.get("ended"):
                watch.look()
                return judge(said)
            if link.ended:
                raise RunStopped(f"the {link.ended}")
            watch.warn(federation.revive())
            nodes = federation.nodes.values()
            if nodes and all(node.given_up for node in nodes):
                raise RunStopped(f"all nodes are gone: {federation.nodes[0].started.ended}")
            if said and not alive(said["pid"]) and not status.read().get("ended"):
                raise RunStopped(f"the server app was killed (logs: {status.folder})")
            if not said and time.monotonic() > until:
                raise RunStopped(
                    f"the server app did not begin within {START:.0f} s (logs: {status.folder})"
                )
            time.sleep(FOLLOW_EVERY)


def launch_file(run: Path) -> Path:
    """Return the file that says how a run folder's federation was made."""
    return run / "flower" / "launch.json"


def make_launch(**fields: Any) -> Launch:
    """Return a checked launch, or say what is wrong with it."""
    launch = Launch(**fields)
    if launch.engine not in ("flower", "ray"):
        raise FedtailError(
            f"--engine {launch.engine} is refused: choose embedded, flower or ray"
            f"{suggestion(launch.engine, ['embedded', 'flower', 'ray'])}"
        )
    if launch.nodes < 1:
        raise FedtailError(f"--nodes {launch.nodes} is refused: give at least 1")
    if not 0 < launch.deadline < float("inf"):
        raise FedtailError(f"--deadline {launch.deadline:g} is refused: give seconds above 0")
    if launch.tls and launch.engine == "ray":
        raise FedtailError("--tls is of --engine flower: simulated clients send nothing")
    return launch


def stored_launch(run: Path) -> Launch | None:
    """Return how a run was launched, or nothing for one that was not."""
    path = launch_file(run)
    return Launch(**json.loads(path.read_bytes())) if path.is_file() else None


def rounds_saved(setting: Setting, folder: RunFolder) -> int:
    """Return how many rounds the checkpoint of a run stands on."""
    server = setting.server(0)
    state = setting.method.init(server.model, server)
    saved = Checkpoint(folder.checkpoint).load(type(state))
    return 0 if saved is None else saved.round


def check_installed(engine: str) -> None:
    """Refuse to begin without Flower, or without Ray where it is needed."""
    for package in ("flwr", "ray") if engine == "ray" else ("flwr",):
        if importlib.util.find_spec(package) is None:
            raise missing_extra(f"--engine {engine}", f"'{package}'", "flower")


def check_described(experiment: Experiment) -> None:
    """Refuse what another process cannot make from a description."""
    for part in made_in_python(experiment.describe()):
        raise FedtailError(
            f"the {part} of this experiment was made in Python, and other processes cannot "
            f"make it from a description: name a registered one (a plug-in may register yours)"
        )


def write_app(
    folder: Path, config: dict[str, Any], components: Mapping[str, str] = COMPONENTS
) -> Path:
    """Write a Flower app that holds nothing but names, of ours if no others are given."""
    folder.mkdir()
    project = {
        "project": {"name": "fedtail-run", "version": "1.0.0", "dependencies": []},
        "tool": {
            "flwr": {
                "app": {"publisher": "fedtail", "components": dict(components), "config": config}
            }
        },
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps(project), encoding="utf-8")
    return folder


def judge(said: dict[str, Any]) -> None:
    """Raise what the server app raised."""
    if said["ended"] == "FedtailError":
        raise FedtailError(said["reason"])
    if said["ended"] != "well":
        error = RunStopped(said["reason"])
        if "trace" in said:
            error.add_note(f"In the server app:\n{said['trace']}")
        raise error


def collect(setting: Setting, folder: RunFolder, callbacks: Sequence[Callback]) -> Result:
    """Return the result of a finished run from its folder."""
    history = read_records(folder.metrics)
    tensors = folder.shipped()
    for callback in callbacks:
        callback.on_end(shipped_record(history), tensors)
    restore_inputs(setting, folder)
    network = load_tested(tensors, setting.model, setting.base)
    model = predictor_of(setting, network)
    return Result(history, tensors, network.module, model, None, folder.path)
