"""fedtail: one good global model from decentralised, non-IID and long-tailed data."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedtail.version import __version__ as __version__

if TYPE_CHECKING:
    from fedtail.methods import *  # noqa: F403 - mypy does not follow the list in the other
    from fedtail.public import *  # noqa: F403 - all that stands there, and nothing else
else:
    # What needs PyTorch, which takes more than a second, is imported when it is first asked for:
    # not for `fedtail --help`, and not in a process that only needs one part.
    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return __dir__()
        if not name.startswith("_"):
            public = import_module("fedtail.public")
            if name in public.__all__:
                return getattr(public, name)
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return ["__version__", *import_module("fedtail.public").__all__]
