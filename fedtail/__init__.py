"""fedtail: one good global model from decentralised, non-IID and long-tailed data."""

from fedtail.callbacks import Callback, Progress
from fedtail.data.augment import Augment
from fedtail.data.dataset import Source
from fedtail.data.longtail import Exponential, NoTail, Step, Tail
from fedtail.data.partitions import (
    IID,
    BalancedDirichlet,
    CReFFSplit,
    Dirichlet,
    Natural,
    Partition,
    Pathological,
    RedGrapeSplit,
    Shards,
    TauSampling,
)
from fedtail.data.sources import Arrays, Digits, Npz
from fedtail.data.split import Split, make_split
from fedtail.errors import FedtailError, RunStopped
from fedtail.experiment import Experiment
from fedtail.loop import Result, run
from fedtail.losses import BalancedSoftmax, CrossEntropy, LocalLoss, LogitCalibration, LossContext
from fedtail.methods import (
    GBME,
    BalanceFL,
    CReFF,
    FedAvg,
    FedLC,
    GBMEp,
    LocalRun,
    Method,
    ModelState,
    RedGrape,
    action,
)
from fedtail.models import ModelSpec, Output, SplitModel, experts
from fedtail.protocol import Client, Exchange, Payload, Server, Task, Update
from fedtail.training import (
    BatchSampler,
    ClassBalanced,
    ClassPrior,
    GlobalPrior,
    LocalPrior,
    LocalTraining,
    PrivateProxyPrior,
    ProxyPrior,
    Shuffled,
)
from fedtail.version import __version__

__all__ = [
    "GBME",
    "IID",
    "Arrays",
    "Augment",
    "BalanceFL",
    "BalancedDirichlet",
    "BalancedSoftmax",
    "BatchSampler",
    "CReFF",
    "CReFFSplit",
    "Callback",
    "ClassBalanced",
    "ClassPrior",
    "Client",
    "CrossEntropy",
    "Digits",
    "Dirichlet",
    "Exchange",
    "Experiment",
    "Exponential",
    "FedAvg",
    "FedLC",
    "FedtailError",
    "GBMEp",
    "GlobalPrior",
    "LocalLoss",
    "LocalPrior",
    "LocalRun",
    "LocalTraining",
    "LogitCalibration",
    "LossContext",
    "Method",
    "ModelSpec",
    "ModelState",
    "Natural",
    "NoTail",
    "Npz",
    "Output",
    "Partition",
    "Pathological",
    "Payload",
    "PrivateProxyPrior",
    "Progress",
    "ProxyPrior",
    "RedGrape",
    "RedGrapeSplit",
    "Result",
    "RunStopped",
    "Server",
    "Shards",
    "Shuffled",
    "Source",
    "Split",
    "SplitModel",
    "Step",
    "Tail",
    "Task",
    "TauSampling",
    "Update",
    "__version__",
    "action",
    "experts",
    "make_split",
    "run",
]
