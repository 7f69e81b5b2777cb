"""Methods: one file each, named as in the paper."""

from fedtail.methods.balancefl import BalanceFL
from fedtail.methods.base import Method, action
from fedtail.methods.creff import CReFF
from fedtail.methods.fedavg import FedAvg, LocalRun, ModelState
from fedtail.methods.fedlc import FedLC
from fedtail.methods.redgrape import RedGrape

__all__ = [
    "BalanceFL",
    "CReFF",
    "FedAvg",
    "FedLC",
    "LocalRun",
    "Method",
    "ModelState",
    "RedGrape",
    "action",
]
