"""The flags that commands share: each stands for one field of the experiment."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

EXPERIMENT, DATA, TRAINING, RUNNING, OUTPUT = "Experiment", "Data", "Training", "Running", "Output"
"""The groups that `--help` shows, in this order."""
LISTS = json.loads(Path(__file__).with_name("lists.json").read_text(encoding="utf-8"))
"""What fields say of themselves: `make lists` writes it, because to ask them takes PyTorch."""


@dataclass(frozen=True)
class Flag:
    """A flag and the field that it sets.

    Attributes
    ----------
    path
        The field of the experiment.
    kind
        What the value is read as.
    metavar
        What stands for the value in the help.
    group
        Under which heading the help shows it.
    text
        The help, where the field's own description is not enough; the default is added to both.
    """

    path: str
    kind: type
    metavar: str
    group: str
    text: str = ""


FLAGS = {
    "method": Flag("method", str, "NAME", EXPERIMENT, "what is trained: see `fedtail methods`"),
    "data": Flag(
        "data",
        str,
        "NAME|FILE",
        DATA,
        "a source: see `fedtail data list`; or your own .npz, .csv, .tsv or .jsonl file, or "
        "folder:FOLDER",
    ),
    "model": Flag(
        "model",
        str,
        "NAME|hf:NAME",
        EXPERIMENT,
        "the network, such as resnet8, or a pretrained one (default: fits the data)",
    ),
    "train": Flag("train", str, "WHAT", EXPERIMENT),
    "imbalance": Flag(
        "tail.imbalance", float, "RATIO", DATA, "cut a long tail: largest class over smallest class"
    ),
    "tail": Flag(
        "tail",
        str,
        "SHAPE",
        DATA,
        "its shape: exponential (default with --imbalance), step or none",
    ),
    "partition": Flag(
        "partition",
        str,
        "NAME",
        DATA,
        "who gets what: dirichlet, iid, natural, shards, ...",
    ),
    "alpha": Flag(
        "partition.alpha", float, "ALPHA", DATA, "of dirichlet: small gives clients few classes"
    ),
    "clients": Flag("clients", int, "N", DATA),
    "per_round": Flag("per_round", int, "N", TRAINING),
    "rounds": Flag("rounds", int, "N", TRAINING),
    "epochs": Flag("method.local.epochs", float, "E", TRAINING),
    "batch_size": Flag("method.local.batch_size", int, "N", TRAINING),
    "lr": Flag("method.local.lr", float, "RATE", TRAINING),
    "seed": Flag("seed", int, "N", EXPERIMENT),
    "workers": Flag("workers", str, "N|auto", RUNNING),
    "together": Flag("together", str, "N|auto", RUNNING),
    "threads": Flag("threads", int, "N", RUNNING),
    "device": Flag(
        "device", str, "NAME", RUNNING, "where models train: auto, cpu, cuda, cuda:1 or mps"
    ),
    "precision": Flag("precision", str, "TYPE", RUNNING),
    "secure": Flag("secure", bool, "", RUNNING),
    "epsilon": Flag(
        "privacy.epsilon",
        float,
        "E",
        TRAINING,
        "differential privacy of whole clients: the budget of the run (default: none)",
    ),
    "min_clients": Flag("min_clients", int, "N", RUNNING),
    "on_client_error": Flag("on_client_error", str, "stop|drop", RUNNING),
    "validation": Flag(
        "validation.share",
        float,
        "SHARE",
        DATA,
        "hold out this share at every client, to choose by (see also validation.by)",
    ),
    "keep": Flag("keep", str, "last|best", TRAINING),
    "patience": Flag("patience", int, "N", TRAINING),
    "eval_every": Flag("eval_every", int, "N", RUNNING),
}

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE.toml] [SECTION.FIELD=VALUE]...",
        show_default=False,
        hidden=True,  # the usage line and the text of each command say it better than a table
    ),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="a Python file with components of your own; may be repeated",
        rich_help_panel=EXPERIMENT,
        show_default=False,
    ),
]

Grids = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        metavar="FIELD=VALUE,VALUE...",
        help="values to try, of the experiment or of a method; every combination of all grids",
        rich_help_panel=EXPERIMENT,
        show_default=False,
    ),
]
JobCount = Annotated[
    str,
    typer.Option(
        metavar="N|auto",
        help="how many runs go side by side, each in a process; same numbers (default auto: as "
        "many as cores are free, if it is worth it)",
        rich_help_panel=RUNNING,
        show_default=False,
    ),
]
TrustPlugins = Annotated[
    bool,
    typer.Option(
        "--trust-plugins",
        help="run the plug-ins that a file or run folder names; they are code",
        rich_help_panel=EXPERIMENT,
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="where clients train: embedded, flower (SuperNodes on this machine) or ray "
        "(Flower's simulation); the model is the same (default embedded)",
        rich_help_panel=RUNNING,
        show_default=False,
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="of flower and ray: how many nodes serve the clients (default 3)",
        rich_help_panel=RUNNING,
        show_default=False,
    ),
]


def known(kind: str) -> Callable[[str], list[str]]:
    """Return what a shell asks for the names of a kind of thing that begin with some letters."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in LISTS["names"].get(kind, ()) if name.startswith(incomplete)]

    return complete


def with_flags(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the shared flags; it receives those that were set as ``flags``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        chosen = [name for name in FLAGS if name not in left_out]

        def wrapper(**values: Any) -> None:
            flags = {name: values.pop(name) for name in chosen}
            command(flags={k: v for k, v in flags.items() if v is not None}, **values)

        own = [
            parameter
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.name != "flags"
        ]
        _pretend(wrapper, command, in_order([*own, *(_parameter(name) for name in chosen)]))
        return wrapper

    return decorate


def in_order(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """Return the parameters group by group: the help shows groups as they first appear."""
    order = ["", EXPERIMENT, DATA, TRAINING, RUNNING, OUTPUT]
    # Plug-ins come last in their group: most people never need them.
    return sorted(parameters, key=lambda p: (order.index(_group(p)), "plugin" in p.name))


def _group(parameter: inspect.Parameter) -> str:
    return getattr(parameter.annotation.__metadata__[0], "rich_help_panel", None) or ""


def _pretend(
    wrapper: Callable[..., None],
    command: Callable[..., None],
    parameters: list[inspect.Parameter],
) -> None:
    """Give a function that takes anything the face of one that takes these parameters."""
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    wrapper.__dict__["__signature__"] = inspect.Signature(keyword)
    wrapper.__annotations__ = {p.name: p.annotation for p in keyword}
    wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__name__


def _parameter(name: str) -> inspect.Parameter:
    flag = FLAGS[name]
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        metavar=flag.metavar or None,
        help=LISTS["help"].get(name),  # a flag that was just written has none yet
        rich_help_panel=flag.group,
        show_default=False,
        autocompletion=known(name),
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[flag.kind | None, option],
    )
