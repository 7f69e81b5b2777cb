"""Methods: one file each, named as in the paper. `make lists` writes this file."""

from fedtail.methods.balancefl import BalanceFL
from fedtail.methods.base import Method, action
from fedtail.methods.ccvr import CCVR
from fedtail.methods.centralised import Centralised, CentralisedBSM
from fedtail.methods.climb import CLIMB
from fedtail.methods.clip2fl import CLIP2FL
from fedtail.methods.closed_form import ClosedForm
from fedtail.methods.creff import CReFF
from fedtail.methods.crt_cb import CRTCB
from fedtail.methods.crt_ib import CRTIB
from fedtail.methods.fed_grab import FedGraB
from fedtail.methods.fedalign import FedAlign
from fedtail.methods.fedavg import FedAvg, LocalRun, ModelState
from fedtail.methods.fedbe import FedBE
from fedtail.methods.feddf import FedDF
from fedtail.methods.fedetf import FedETF
from fedtail.methods.fedic import FEDIC
from fedtail.methods.fedlc import FedLC
from fedtail.methods.fedloge import FedLoGe
from fedtail.methods.fednh import FedNH, FedUH
from fedtail.methods.fednova import FedNova
from fedtail.methods.fednpc import FedNPC
from fedtail.methods.fedprox import FedProx
from fedtail.methods.fedrela import FedReLa
from fedtail.methods.fedrod import FedRoD
from fedtail.methods.fedvls import FedVLS
from fedtail.methods.fedyoyo import FedYoYo
from fedtail.methods.gbme import GBME
from fedtail.methods.gbme_p import GBMEp
from fedtail.methods.ifca import IFCA
from fedtail.methods.ldam import LDAM
from fedtail.methods.local_losses import BSM, LADE, FedFocal, FedRS
from fedtail.methods.local_only import LocalOnly
from fedtail.methods.paco import PaCo
from fedtail.methods.per_fedavg import PerFedAvg
from fedtail.methods.probe import Probe
from fedtail.methods.ratio_loss import RatioLoss
from fedtail.methods.redgrape import RedGrape
from fedtail.methods.ride import RIDE
from fedtail.methods.rucr import RUCR
from fedtail.methods.scaffold import Scaffold
from fedtail.methods.server_optimisers import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedtail.methods.slac import SLAC
from fedtail.methods.tau_norm import TauNorm

__all__ = [
    "BSM",
    "CCVR",
    "CLIMB",
    "CLIP2FL",
    "CRTCB",
    "CRTIB",
    "FEDIC",
    "GBME",
    "IFCA",
    "LADE",
    "LDAM",
    "RIDE",
    "RUCR",
    "SLAC",
    "BalanceFL",
    "CReFF",
    "Centralised",
    "CentralisedBSM",
    "ClosedForm",
    "FedAdagrad",
    "FedAdam",
    "FedAlign",
    "FedAvg",
    "FedAvgM",
    "FedBE",
    "FedDF",
    "FedETF",
    "FedFocal",
    "FedGraB",
    "FedLC",
    "FedLoGe",
    "FedNH",
    "FedNPC",
    "FedNova",
    "FedProx",
    "FedRS",
    "FedReLa",
    "FedRoD",
    "FedUH",
    "FedVLS",
    "FedYoYo",
    "FedYogi",
    "GBMEp",
    "LocalOnly",
    "LocalRun",
    "Method",
    "ModelState",
    "PaCo",
    "PerFedAvg",
    "Probe",
    "RatioLoss",
    "RedGrape",
    "Scaffold",
    "TauNorm",
    "action",
]
