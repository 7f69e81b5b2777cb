"""Errors that speak: one sentence saying what is wrong, where, and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pydantic import ValidationError


class FedtailError(ValueError):
    """Wrong input. The message is one sentence for a person; the command line exits with 2."""


class RunStopped(RuntimeError):
    """A run that began well had to stop (too few clients, a worker died); exit code 1."""


def unknown_name(kind: str, name: str, allowed: Iterable[str]) -> FedtailError:
    """Return the error for a name that nobody registered, suggesting the nearest one."""
    known = sorted(allowed)
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return FedtailError(f"unknown {kind} '{name}'{hint} (known: {', '.join(known)})")


def sentence(error: ValidationError, where: str = "") -> str:
    """Turn the first complaint of a pydantic error into one sentence."""
    first = error.errors(include_url=False)[0]
    path = ".".join([*([where] if where else []), *map(str, first["loc"])])
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, FedtailError):
        return f"{path}: {inner}" if path else str(inner)
    if first["type"] == "missing":
        return f"'{path}' is required"
    message = first["msg"]
    return f"'{path}' = {first['input']!r} is refused: {message[0].lower()}{message[1:]}"
