"""An experiment as plain data: read from TOML, changed word by word, and made."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedtail.config import Config, fields_of, value_at
from fedtail.data.dataset import Source
from fedtail.data.formats.tables import TABLE_SUFFIXES
from fedtail.errors import FedtailError
from fedtail.experiment import Experiment
from fedtail.methods import Method

# Where a description can only name what it was made from, and the key that says so.
MADE_IN_PYTHON = {
    "data": ("data", "shapes"),
    "transform": ("data", "transform"),
    "model": ("model", "python"),
    "loss": ("method.loss", "function"),
}


def load_experiment(path: Path) -> dict[str, Any]:
    """Return the plain data of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FedtailError(f"cannot read '{path}': {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedtailError(f"'{path}' is not valid TOML: {error}") from None


def made_in_python(plain: Mapping[str, Any]) -> list[str]:
    """Return the parts of a description that it can only name."""
    return [
        part
        for part, (path, mark) in MADE_IN_PYTHON.items()
        if isinstance(found := value_at(plain, path), Mapping) and mark in found
    ]


def make_experiment(plain: Mapping[str, Any]) -> Experiment:
    """Return the experiment that plain data describes, or one sentence about what is wrong."""
    for part in made_in_python(plain):
        raise FedtailError(
            f"this run's {part} was made in Python; resume it there, with "
            "fedtail.run(experiment, out=..., resume=True)"
        )
    return Experiment.model_validate(plain)


def override(plain: dict[str, Any], path: str, value: Any) -> None:
    """Set ``section.field`` in plain data, in place."""
    *sections, last = path.split(".")
    at = plain
    for section in sections:
        inner = at.get(section, {})
        inner = fields_of(inner) if isinstance(inner, Config) else inner
        if not isinstance(inner, str | Mapping):
            raise FedtailError(f"'{path}' cannot be set: '{section}' is {inner!r}, without fields")
        at[section] = {"name": inner} if isinstance(inner, str) else dict(inner)
        at = at[section]
    # Naming a component anew forgets the fields of the one that stood there.
    at[last] = value


def apply(plain: dict[str, Any], path: str, value: Any) -> None:
    """Set one field; a section set to a name keeps, of what stood there, only what still fits."""
    if path == "data" and isinstance(value, str) and source_of(value):
        value = {"name": source_of(value), "path": value}
    if isinstance(value, str) and isinstance(plain.get(path), dict):
        value = {**_carried(path, plain[path], value), "name": value}
    override(plain, path, value)


def source_of(path: str) -> str | None:
    """Return the source that reads a file of that name, if its ending tells and no name does."""
    suffix = "" if path.partition(":")[0] in Source.registry else Path(path).suffix.lower()
    return "npz" if suffix == ".npz" else "table" if suffix in TABLE_SUFFIXES else None


def _carried(section: str, old: Mapping[str, Any], name: str) -> dict[str, Any]:
    # Another method under the same protocol: how clients train stays (if they train at all), the
    # method's own fields go.
    known = section == "method" and name in Method.registry
    trains = not known or "local" in Method.registry[name].model_fields
    kept = {key: value for key, value in old.items() if trains or key != "local"}
    if "name" not in old or old["name"] == name:
        return kept
    return {"local": kept["local"]} if section == "method" and "local" in kept else {}


def parse_value(text: str) -> Any:
    """Read a value from the command line as TOML does, and anything else as text."""
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return read["value"] if len(read) == 1 else text


def parse_overrides(items: Iterable[str]) -> list[tuple[str, Any]]:
    """Read ``section.field=value`` words."""
    pairs = []
    for item in items:
        path, equals, text = item.partition("=")
        if not equals or not path:
            raise FedtailError(f"'{item}' is not of the form section.field=value")
        pairs.append((path.strip(), parse_value(text.strip())))
    return pairs
