"""The Flower engine: the same methods, across processes and machines.

What is here needs the extra ``flower``; it is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedtail.errors import missing_extra

if TYPE_CHECKING:
    from fedtail.engines.flower.client import client_app
    from fedtail.engines.flower.launcher import Launch
    from fedtail.engines.flower.serving import serve
    from fedtail.engines.flower.strategy import as_strategy
    from fedtail.engines.flower.user_client import handle

__all__ = ["Launch", "as_strategy", "client_app", "handle", "serve"]

_WHERE = {
    "Launch": "launcher",
    "as_strategy": "strategy",
    "client_app": "client",
    "handle": "user_client",
    "serve": "serving",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    try:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise missing_extra(name, "Flower", "flower") from None
