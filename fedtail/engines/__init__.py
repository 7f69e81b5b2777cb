"""Engines drive a method: in this process, in worker processes, or across machines."""

from fedtail.engines.base import Dropped, Engine, Replies
from fedtail.engines.embedded import Embedded
from fedtail.engines.runtime import Runtime

__all__ = ["Dropped", "Embedded", "Engine", "Replies", "Runtime"]
