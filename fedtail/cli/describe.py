"""From the words of a command line to the plain data of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtail.cli.options import FLAGS
from fedtail.errors import FedtailError
from fedtail.experiment import (
    Experiment,
    load_experiment,
    make_experiment,
    override,
    parse_overrides,
)
from fedtail.plugins import load_plugins, must_be_trusted, other_plugins, stored_plugins


def described(
    words: list[str] | None,
    flags: Mapping[str, Any],
    plugins: list[str] | None,
    trust: bool = False,
) -> dict[str, Any]:
    """Return the experiment as plain data: the file, then the flags, then the words.

    Plug-ins that only the file names are refused without trust: the file may be somebody else's.
    """
    files = [word for word in words or [] if "=" not in word]
    plain = _file(files)
    from_file = stored_plugins(plain)
    for name, value in flags.items():
        apply(plain, FLAGS[name].path, value)
    for path, value in parse_overrides(word for word in words or [] if "=" in word):
        apply(plain, path, value)
        from_file = [] if path == "plugins" else from_file
    named = plugins or []
    must_be_trusted(other_plugins(from_file, named), "".join(files), trust)
    chosen = [*other_plugins(stored_plugins(plain), named), *named]
    if chosen:
        plain["plugins"] = chosen
    load_plugins(chosen)
    return _named(plain)


def experiment_from(
    words: list[str] | None,
    flags: Mapping[str, Any],
    plugins: list[str] | None,
    trust: bool = False,
) -> Experiment:
    """Return the checked experiment."""
    return make_experiment(described(words, flags, plugins, trust))


def apply(plain: dict[str, Any], path: str, value: Any) -> None:
    """Set one field; a section set to a name keeps, of what stood there, only what still fits."""
    if path == "data" and isinstance(value, str) and value.endswith(".npz"):
        value = {"name": "npz", "path": value}
    if isinstance(value, str) and isinstance(plain.get(path), dict):
        value = {**_carried(path, plain[path], value), "name": value}
    override(plain, path, value)


def _file(files: list[str]) -> dict[str, Any]:
    if len(files) > 1:
        raise FedtailError(f"one experiment file at most, not {' and '.join(files)}")
    if files and not files[0].endswith(".toml") and not Path(files[0]).exists():
        raise FedtailError(f"'{files[0]}' is neither an experiment file nor section.field=value")
    return load_experiment(Path(files[0])) if files else {}


def _named(plain: dict[str, Any]) -> dict[str, Any]:
    """Name the component that fields without a name can only mean."""
    tail, data = plain.get("tail"), plain.get("data")
    if isinstance(tail, dict) and "imbalance" in tail:
        tail.setdefault("name", "exponential")
    if isinstance(data, dict) and str(data.get("path", "")).endswith(".npz"):
        data.setdefault("name", "npz")
    return plain


def _carried(section: str, old: Mapping[str, Any], name: str) -> dict[str, Any]:
    if "name" not in old or old["name"] == name:
        return dict(old)
    # Another method under the same protocol: how clients train stays, the method's own fields go.
    return {"local": old["local"]} if section == "method" and "local" in old else {}
