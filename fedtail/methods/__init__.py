"""Methods: one file each, named as in the paper."""

from fedtail.methods.base import Method, action
from fedtail.methods.fedavg import FedAvg, LocalRun, ModelState
from fedtail.methods.fedlc import FedLC

__all__ = ["FedAvg", "FedLC", "LocalRun", "Method", "ModelState", "action"]
