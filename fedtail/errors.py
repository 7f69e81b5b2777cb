"""Errors that speak: one sentence saying what is wrong, where, and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

# What pydantic says of Python types, in the words of someone who writes TOML.
PLAIN_WORDS = {
    "model_type": "give a name, or a table of fields",
    "model_attributes_type": "give a name, or a table of fields",
    "dict_type": "give a table of fields",
    "tuple_type": 'give a list, such as ["a", "b"]',
    "int_type": "give a whole number",
    "int_parsing": "give a whole number",
    "int_from_float": "give a whole number",
    "float_type": "give a number",
    "float_parsing": "give a number",
    "bool_type": "give true or false",
    "bool_parsing": "give true or false",
    "string_type": "give text",
}


class FedtailError(ValueError):
    """Wrong input. The message is one sentence for a person; the command line exits with 2."""


class RunStopped(RuntimeError):
    """A run that began well had to stop (too few clients, a worker died); exit code 1."""


class ClientFailed(RunStopped):
    """A method's client half raised in another process; its traceback there is a note."""


BLAMED = "raised by the method: "


def blame(error: Exception, where: str) -> None:
    """Note on an error in which part of a method's own code it was raised."""
    error.add_note(f"{BLAMED}{where}")


@contextmanager
def blaming(where: str) -> Iterator[None]:
    """Blame whatever is raised in the block on a part of a method's own code."""
    try:
        yield
    except Exception as error:
        blame(error, where)
        raise


def is_wrong_input(error: BaseException) -> bool:
    """Whether an error is a sentence for who gave the input; the rest is a bug or ill luck.

    A file that a method's own code does not find, say, is a bug of the method.
    """
    if any(note.startswith(BLAMED) for note in getattr(error, "__notes__", ())):
        return isinstance(error, FedtailError)
    return isinstance(error, FedtailError | OSError)


def unknown_name(kind: str, name: str, allowed: Iterable[str]) -> FedtailError:
    """Return the error for a name that nobody registered, suggesting the nearest one."""
    known = sorted(allowed)
    listed = f"known: {', '.join(known)}" if known else "there are none here"
    return FedtailError(f"unknown {kind} '{name}'{suggestion(name, known)} ({listed})")


def missing_extra(what: str, package: str, extra: str) -> FedtailError:
    """Return the error for an optional library that is not there, with the command that brings it.

    Parameters
    ----------
    what
        What cannot be done without it.
    package
        The library, by the name that people know.
    extra
        The extra of ``pyproject.toml`` that it is in.
    """
    command = f"pip install '.[{extra}]'"  # from a clone: fedtail is on no index
    return FedtailError(
        f"{what} needs {package}, which is not installed: run {command} in a clone of fedtail"
    )


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a half-sentence with the nearest of the known names, or nothing."""
    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""


def sentence(error: ValidationError, where: str = "") -> str:
    """Turn the first complaint of a pydantic error into one sentence."""
    first = error.errors(include_url=False)[0]
    path = ".".join([*([where] if where else []), *map(str, first["loc"])])
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, FedtailError):
        return f"{path}: {inner}" if path else str(inner)
    if first["type"] == "missing":
        return f"'{path}' is required"
    return f"'{path or error.title}' = {shown(first['input'])} is refused: {_reason(first)}"


def _reason(complaint: Mapping[str, Any]) -> str:
    message = PLAIN_WORDS.get(complaint["type"]) or complaint["msg"]
    message = f"{message[0].lower()}{message[1:]}"
    if complaint["type"] == "literal_error":
        # The choices are only there as text: 'auto', 'cpu' or 'cuda'.
        choices = complaint["ctx"]["expected"].split("'")[1::2]
        return f"{message}{suggestion(str(complaint['input']), choices)}"
    return message


def shown(value: Any, most: int = 80) -> str:
    """Return a value for a message; an array or a whole table is cut, and never has line breaks."""
    text = " ".join(repr(value).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def some(items: Sequence[int | str], most: int = 10) -> str:
    """Return the first of many numbers or names for a message."""
    return ", ".join([*map(str, items[:most]), *(["..."] if items[most:] else [])])
