"""The flags that commands share: each stands for one field of the experiment."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtail.errors import FedtailError
from fedtail.experiment import (
    Experiment,
    load_experiment,
    make_experiment,
    override,
    parse_overrides,
)
from fedtail.plugins import load_plugins
from fedtail.training import LocalTraining

# flag -> (field of the experiment, type, help where the field's own description is not enough)
FLAGS: dict[str, tuple[str, type, str]] = {
    "method": ("method", str, "what is trained, and how: see `fedtail methods`"),
    "data": ("data", str, "a source (see `fedtail data list`) or the path of your own .npz file"),
    "model": ("model", str, "the network; by default one that fits the data"),
    "imbalance": (
        "tail.imbalance",
        float,
        "largest class over smallest class in the training data",
    ),
    "tail": ("tail", str, "shape of the long tail: exponential, step or none"),
    "partition": ("partition", str, "how samples are shared out: dirichlet, iid, natural, ..."),
    "alpha": ("partition.alpha", float, "concentration of a Dirichlet partition; small is skewed"),
    "clients": ("clients", int, ""),
    "per_round": ("per_round", int, ""),
    "rounds": ("rounds", int, ""),
    "epochs": ("method.local.epochs", float, ""),
    "batch_size": ("method.local.batch_size", int, ""),
    "lr": ("method.local.lr", float, ""),
    "seed": ("seed", int, ""),
    "workers": ("workers", int, ""),
    "threads": ("threads", int, ""),
    "device": ("device", str, ""),
    "min_clients": ("min_clients", int, ""),
    "eval_every": ("eval_every", int, ""),
}

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE.toml] [SECTION.FIELD=VALUE]...",
        help="an experiment file, and any field of it: method.local.momentum=0.9",
        show_default=False,
    ),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option("--plugin", metavar="FILE.py", help="a Python file with components of your own"),
]


def with_flags(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the shared flags; it receives those that were set as ``flags``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        chosen = [name for name in FLAGS if name not in left_out]

        def wrapper(**values: Any) -> None:
            flags = {name: values.pop(name) for name in chosen}
            command(flags={k: v for k, v in flags.items() if v is not None}, **values)

        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [p for p in own if p.name != "flags"] + [_parameter(name) for name in chosen]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__name__
        return wrapper

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    path, kind, text = FLAGS[name]
    option = typer.Option(
        f"--{name.replace('_', '-')}", help=text or _description(path), show_default=False
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _description(path: str) -> str:
    *_, last = path.split(".")
    fields = {**LocalTraining.model_fields, **Experiment.model_fields}
    field = fields[last]
    default = "" if field.default is None else f" [default: {field.default}]"
    return f"{field.description}{default}"


def described(
    words: list[str] | None, flags: Mapping[str, Any], plugins: list[str] | None
) -> dict[str, Any]:
    """Return the experiment as plain data: the file, then the flags, then the words."""
    files = [word for word in words or [] if "=" not in word]
    if len(files) > 1:
        raise FedtailError(f"one experiment file at most, not {' and '.join(files)}")
    plain = load_experiment(Path(files[0])) if files else {}
    for name, value in flags.items():
        apply(plain, FLAGS[name][0], value)
    for path, value in parse_overrides(word for word in words or [] if "=" in word):
        apply(plain, path, value)
    if plugins:
        plain["plugins"] = [*plain.get("plugins", []), *plugins]
    load_plugins(plain.get("plugins", []))
    tail = plain.get("tail", {})
    if isinstance(tail, dict) and "imbalance" in tail:
        tail.setdefault("name", "exponential")
    return plain


def apply(plain: dict[str, Any], path: str, value: Any) -> None:
    """Set one field; a section set to a name keeps, of what stood there, only what still fits."""
    if path == "data" and isinstance(value, str) and value.endswith(".npz"):
        value = {"name": "npz", "path": value}
    if isinstance(value, str) and isinstance(plain.get(path), dict):
        value = {**_carried(path, plain[path], value), "name": value}
    override(plain, path, value)


def _carried(section: str, old: Mapping[str, Any], name: str) -> dict[str, Any]:
    if "name" not in old or old["name"] == name:
        return dict(old)
    # Another method under the same protocol: how clients train stays, the method's own fields go.
    return {"local": old["local"]} if section == "method" and "local" in old else {}


def experiment_from(
    words: list[str] | None, flags: Mapping[str, Any], plugins: list[str] | None
) -> Experiment:
    """Return the checked experiment."""
    return make_experiment(described(words, flags, plugins))
