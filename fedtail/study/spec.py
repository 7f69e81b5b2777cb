"""A method as it stands in one word: ``fedavg,loss=balanced_softmax,local.lr=0.1``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from fedtail.described import apply, parse_overrides
from fedtail.errors import FedtailError
from fedtail.experiment import Experiment
from fedtail.methods import Method
from fedtail.training import LocalTraining

LONGEST = 120
"""Letters of a folder's name; a user has to read it."""
LONGEST_BYTES = 200
"""Of a folder's name; file systems allow 255, and a letter may be four."""


def split_spec(spec: str) -> list[str]:
    """Return the method's name and its ``field=value`` words.

    A comma inside brackets or quotes belongs to the value: ``local.schedule.at=[0.5,0.8]``.
    """
    parts, depth, quote = [""], 0, ""
    for letter in spec:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and depth <= 0:
            parts.append("")
            continue
        parts[-1] += letter
    return [part.strip() for part in parts]


def safe_name(text: str) -> str:
    """Return a name for a folder that is safe in any file system."""
    safe = "".join(c if c.isalnum() or c in "-._=" else "-" for c in text)
    cut = safe[:LONGEST].encode()[:LONGEST_BYTES].decode(errors="ignore")
    return safe if cut == safe else told_apart(cut, text)


def told_apart(name: str, text: str) -> str:
    """Return a name that ends in what only this text gives."""
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def folder_name(spec: str, seed: int) -> str:
    """Return the name of a run's folder among those of other methods and seeds."""
    return f"{safe_name(spec)}-seed{seed}"


def apply_method(plain: dict[str, Any], spec: str) -> str:
    """Set the method of an experiment's plain data from a spec, and return the words of it."""
    name, *fields = split_spec(spec)
    apply(plain, "method", name)
    for path, value in parse_overrides(fields):
        meant = field_meant(f"method.{path}", plain)
        if meant:
            shown = meant.removeprefix("method.")
            raise FedtailError(f"--method {spec}: unknown key '{path}'; did you mean '{shown}'?")
        apply(plain, f"method.{path}", value)
    return ",".join([name, *fields])


def method_class(plain: Mapping[str, Any]) -> type[Method[Any]]:
    """Return the class of the method that plain data names."""
    return Method.registry[_method_name(plain)]


def _method_name(plain: Mapping[str, Any]) -> str:
    held, default = plain.get("method", {}), Experiment.model_fields["method"].default
    return str(held.get("name", default.name) if isinstance(held, Mapping) else held)


def field_meant(path: str, plain: Mapping[str, Any], others: Iterable[str] = ()) -> str:
    """Return the field that was meant by a name that is none; nothing if it is one, or unclear.

    ``lr`` and ``method.lr`` are meant for ``method.local.lr``, ``sampler`` for ``method.sampler``.

    Parameters
    ----------
    path
        What was typed.
    plain
        The experiment so far, which has a method or the default one.
    others
        More fields that can be meant.
    """
    if _method_name(plain) not in Method.registry:
        return ""  # a plug-in may bring it, or it is refused later
    root, _, rest = path.partition(".")
    method = method_class(plain).model_fields
    inner = rest.partition(".")[0]
    if root in Experiment.model_fields and (root != "method" or inner in {"", "name", *method}):
        return ""
    local = LocalTraining.model_fields if "local" in method else ()
    more = [o for o in others if local or not o.startswith("method.local.")]
    places = [*(f"method.{f}" for f in method), *(f"method.local.{f}" for f in local), *more]
    last = path if root in method else path.rpartition(".")[2]
    return next((place for place in places if place.endswith(f".{last}")), "")
