"""`fedtail doctor`: what is wrong with a federation, and what to do about it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtail.cli.options import (
    FLAGS,
    OUTPUT,
    TRAINING,
    EngineName,
    Nodes,
    Plugins,
    TrustPlugins,
    Words,
    with_flags,
)
from fedtail.cli.tables import say

EXAMPLES = """Examples:

fedtail doctor --imbalance 20 --alpha 0.3 --clients 20

fedtail doctor experiment.toml --probe 8 --json

fedtail doctor --data mine.npz --partition natural --secure

fedtail doctor experiment.toml --engine flower --nodes 3
"""


@with_flags("method", "keep", "patience", "eval_every", "epsilon", "on_client_error", "min_clients")
def doctor_command(
    flags: dict[str, Any],
    words: Words = None,
    probe: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="how many probe rounds (default 5); --rounds is of the run that is planned",
            rich_help_panel=TRAINING,
            show_default=False,
        ),
    ] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="as JSON, for programs", rich_help_panel=OUTPUT)
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="the run folder of the probe, with the page (default: a new one under runs/)",
            rich_help_panel=OUTPUT,
            show_default=False,
        ),
    ] = None,
    engine: EngineName = "embedded",
    nodes: Nodes = None,
    plugin: Plugins = None,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Say what is wrong with a federation, and which method to run on it.

    A few probe rounds of plain averaging, of which the server is shown sums over groups of
    clients: is there a tail, do clients differ in labels or in inputs, is it the head or the
    features, what will it cost? Takes what `fedtail run` takes.
    """
    from fedtail.cli.describe import experiment_from
    from fedtail.cli.execute import launch_from
    from fedtail.diagnosis.doctor import doctor
    from fedtail.folder import free_folder
    from fedtail.loop import run

    experiment = experiment_from(words, flags, plugin, trust_plugins)
    launch = launch_from(engine, nodes, False, None)
    folder = out or free_folder(Path("runs"), f"{experiment.data.name}-doctor").path
    start = run if launch is None else launch.run
    found = doctor(experiment, rounds=probe, out=folder, start=start)
    words = typed(words, flags, found.method)
    where = [] if launch is None else ["--engine", engine, "--nodes", str(launch.nodes)]
    command = shlex.join(["fedtail", "run", *words, *found.words, *where])
    if as_json:
        print(json.dumps({**found.to_json(), "command": command}, indent=1, ensure_ascii=False))
        return
    say(str(found))
    say("")
    say(f"Run it: {command}")
    say(f"    or: fedtail run {shlex.quote(str(folder / 'recommended.toml'))}")
    say(f"{folder / 'doctor.html'}")


def typed(words: list[str] | None, flags: Mapping[str, Any], method: str) -> list[str]:
    """Return what was typed, as far as the method takes it.

    Fields of the method that was planned are not for it; one that does not train has no rate.
    """
    from fedtail.methods import Method

    trains = "local" in Method.registry[method.partition(",")[0]].model_fields

    def takes(path: str) -> bool:
        of_method = path.partition(".")[0] == "method"
        return not of_method or (trains and path.startswith("method.local."))

    kept = [word for word in words or [] if takes(word.partition("=")[0])]
    for name, value in flags.items():
        if takes(FLAGS[name].path):
            flag = f"--{name.replace('_', '-')}"
            kept += [flag] if value is True else [flag, str(value)]
    return kept
