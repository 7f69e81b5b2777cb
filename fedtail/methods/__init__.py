"""Methods: one file each, named as in the paper."""

from fedtail.methods.balancefl import BalanceFL
from fedtail.methods.base import Method, action
from fedtail.methods.centralised import Centralised, CentralisedBSM
from fedtail.methods.creff import CReFF
from fedtail.methods.fedavg import FedAvg, LocalRun, ModelState
from fedtail.methods.fedlc import FedLC
from fedtail.methods.gbme import GBME, GBMEState
from fedtail.methods.gbme_p import GBMEp
from fedtail.methods.redgrape import RedGrape

__all__ = [
    "GBME",
    "BalanceFL",
    "CReFF",
    "Centralised",
    "CentralisedBSM",
    "FedAvg",
    "FedLC",
    "GBMEState",
    "GBMEp",
    "LocalRun",
    "Method",
    "ModelState",
    "RedGrape",
    "action",
]
