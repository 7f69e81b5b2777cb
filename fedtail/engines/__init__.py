"""Engines drive a method: in this process, in worker processes, or across machines.

What is here is imported when it is first asked for: a Flower node's short-lived processes need none
of it, and must not wait for PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtail.engines.base import Dropped, Engine, Replies
    from fedtail.engines.embedded import Embedded
    from fedtail.engines.runtime import Runtime

__all__ = ["Dropped", "Embedded", "Engine", "Replies", "Runtime"]

_WHERE = {"Embedded": "embedded", "Runtime": "runtime"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_WHERE.get(name, 'base')}"), name)
