"""Components of others: from a user's file or module, and from packages that are installed."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtail.errors import FedtailError

if TYPE_CHECKING:
    from fedtail.config import Registry

ENTRY_POINTS = "fedtail.plugins"
"""The group of entry points under which installed packages name their modules."""
PREFIX = "fedtail_plugin_"
"""How modules are called that are files of users."""


def load_plugins(plugins: Sequence[str]) -> None:
    """Import each plug-in once, so that what it registers is found by name.

    A plug-in is the path of a Python file, or the name of an installed module.
    """
    for plugin in plugins:
        if plugin.endswith(".py"):
            _load_file(Path(plugin))
        else:
            with _explained(plugin):
                importlib.import_module(plugin)


def stored_plugins(plain: Mapping[str, Any]) -> list[str]:
    """Return the plug-ins that plain data names, or say that they are no list."""
    listed = plain.get("plugins", [])
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        raise FedtailError(f"'plugins' = {listed!r} is refused: give a list, such as [\"mine.py\"]")
    return listed


def must_be_trusted(plugins: Sequence[str], file: Path | str, trust: bool) -> None:
    """Refuse to run code because a file says so: the file may be somebody else's.

    Parameters
    ----------
    plugins
        What the file names, without what the user named too.
    file
        The file, for the sentence.
    trust
        Whether the user said that these plug-ins may run.
    """
    if plugins and not trust:
        listed = ", ".join(map(repr, plugins))  # a name may hold anything, line breaks too
        raise FedtailError(
            f"'{file}' names plug-ins, which are code that would run here: {listed}; "
            "nothing was run; if you trust them, add --trust-plugins (in Python trust_plugins=True)"
        )


def other_plugins(plugins: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return those plug-ins that are not among the known ones, however their paths are written."""
    places = set(map(_resolved, known))
    return [plugin for plugin in plugins if _resolved(plugin) not in places]


def _resolved(plugin: str) -> str:
    return str(Path(plugin).resolve()) if plugin.endswith(".py") else plugin


def find_installed(name: str, known: Container[str]) -> list[str]:
    """Import installed plug-ins until a name is known; return what was wrong with some of them.

    The entry point of that name comes first, and if it cannot be imported, that is the error: it is
    what was asked for. Of the others a broken one is no reason to stop.
    """
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        _load_entry(entry)
    return [] if name in known else load_installed()


def load_installed() -> list[str]:
    """Import the plug-ins of all installed packages; return a sentence for each that fails."""
    failed = []
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            _load_entry(entry)
        except FedtailError as error:
            failed.append(str(error))
    return failed


def _load_entry(entry: EntryPoint) -> None:
    package = f" of the installed package '{entry.dist.name}'" if entry.dist else ""
    with _explained(entry.value, package):
        entry.load()


def registered_by(plugin: str, registry: Registry[Any]) -> list[str]:
    """Return the names in a registry that a loaded plug-in has entered."""
    module = _module_name(Path(plugin)) if plugin.endswith(".py") else plugin
    return [n for n in registry if f"{registry[n].__module__}.".startswith(f"{module}.")]


def place_beneath(error: BaseException) -> str:
    """Return the line of a plug-in from which an error came that it did not raise itself.

    It is for a sentence; nothing if there is none. What a plug-in itself raises is its own words.
    """
    frames = [*traceback.walk_tb(error.__traceback__)]
    own = [str(frame.f_globals.get("__name__")).startswith(PREFIX) for frame, _ in frames]
    if not any(own) or own[-1]:
        return ""
    frame, line = frames[max(place for place, mine in enumerate(own) if mine)]
    return f" ({Path(frame.f_code.co_filename).name}, line {line})"


def _module_name(path: Path) -> str:
    # It depends on the path alone: worker processes must find the same classes.
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    return f"{PREFIX}{path.stem}_{place}"


def _load_file(path: Path) -> None:
    name = _module_name(path)
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FedtailError(f"plug-in file '{path}' does not exist")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _explained(str(path)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


@contextmanager
def _explained(plugin: str, package: str = "") -> Iterator[None]:
    """Turn what importing a plug-in raises into one sentence with its place in the file."""
    named = f"plug-in '{plugin}'{package}"
    try:
        yield
    except FedtailError as error:
        raise FedtailError(f"{named}: {error}") from None
    except Exception as error:
        raise FedtailError(
            f"{named} cannot be imported: {first_line(error)}{place(error, plugin)}"
        ) from error


def first_line(error: BaseException) -> str:
    """Return what an error of someone else's code says, in one line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")


def first_line_and_place(error: BaseException) -> str:
    """Return what an error says, and the file and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{first_line(error)}{at}"


def place(error: Exception, file: str) -> str:
    """Return the last line of a file that was running when the error came, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).name == Path(file).name]
    return f" (line {own[-1].lineno})" if own else ""
