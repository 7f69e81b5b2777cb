"""Methods: one file each, named as in the paper."""

from fedtail.methods.base import Method, action
from fedtail.methods.fedavg import FedAvg, LocalRun, ModelState

__all__ = ["FedAvg", "LocalRun", "Method", "ModelState", "action"]
