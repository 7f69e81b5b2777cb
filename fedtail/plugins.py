"""A user's own components, from a file or an installed module."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from fedtail.errors import FedtailError


def load_plugins(plugins: Sequence[str]) -> None:
    """Import each plug-in once, so that what it registers is found by name.

    A plug-in is the path of a Python file, or the name of an installed module.
    """
    for plugin in plugins:
        if plugin.endswith(".py"):
            _load_file(Path(plugin))
        else:
            try:
                importlib.import_module(plugin)
            except ModuleNotFoundError as error:
                raise FedtailError(f"plug-in '{plugin}' cannot be imported: {error}") from None


def _load_file(path: Path) -> None:
    # The module's name depends on the path alone: worker processes must find the same classes.
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"fedtail_plugin_{path.stem}_{place}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FedtailError(f"plug-in file '{path}' does not exist")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
