"""From the words of a command line to the plain data of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtail.cli.options import FLAGS
from fedtail.described import apply, load_experiment, make_experiment, parse_overrides, source_of
from fedtail.errors import FedtailError
from fedtail.experiment import Experiment
from fedtail.plugins import load_plugins, must_be_trusted, other_plugins, stored_plugins
from fedtail.study.spec import apply_method, field_meant


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
        if name == "method":
            apply_method(plain, value)
        else:
            apply(plain, FLAGS[name].path, value)
    for path, value in parse_overrides(word for word in words or [] if "=" in word):
        must_be_meant(path, plain)
        apply(plain, path, value)
        from_file = [] if path == "plugins" else from_file
    named = plugins or []
    must_be_trusted(other_plugins(from_file, named), "".join(files), trust)
    chosen = [*other_plugins(stored_plugins(plain), named), *named]
    if chosen:
        plain["plugins"] = chosen
    load_plugins(chosen)
    return _named(plain)


def must_be_meant(path: str, plain: Mapping[str, Any]) -> None:
    """Refuse the name of no field if another one has it, and say which, with its flag."""
    flags = {flag.path: name for name, flag in FLAGS.items()}
    meant = field_meant(path, plain, flags)
    if meant:
        flag = f" or --{flags[meant].replace('_', '-')}" if meant in flags else ""
        raise FedtailError(f"unknown key '{path}'; did you mean '{meant}'{flag}?")


def experiment_from(
    words: list[str] | None,
    flags: Mapping[str, Any],
    plugins: list[str] | None,
    trust: bool = False,
) -> Experiment:
    """Return the checked experiment."""
    return make_experiment(described(words, flags, plugins, trust))


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
    if isinstance(data, dict) and "name" not in data and source_of(str(data.get("path", ""))):
        data["name"] = source_of(str(data["path"]))
    return plain
