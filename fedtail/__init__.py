"""fedtail: one good global model from decentralised, non-IID and long-tailed data."""

from fedtail import methods
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
from fedtail.forms import ByClass, First, Form, Like, Mean, Number, Total
from fedtail.loop import run
from fedtail.losses import (
    BalancedSoftmax,
    CrossEntropy,
    Focal,
    LADELoss,
    LDAMLoss,
    LocalLoss,
    LogitCalibration,
    LossContext,
    PaCoLoss,
    RestrictedSoftmax,
    RIDELoss,
    WeightedCrossEntropy,
)
from fedtail.methods import *  # noqa: F403 - all methods; `make lists` writes which
from fedtail.models import ModelSpec, Output, SplitModel, experts
from fedtail.privacy.config import Privacy
from fedtail.protocol import Client, Exchange, Payload, Server, Task, Update
from fedtail.reduce import Reduced
from fedtail.result import Result
from fedtail.study.study import Study, compare
from fedtail.study.tune import Tuned, tune
from fedtail.training import (
    BatchSampler,
    ClassBalanced,
    ClassPrior,
    GlobalPrior,
    LocalPrior,
    LocalTraining,
    PrivateProxyPrior,
    ProxyPrior,
    ServerAdagrad,
    ServerAdam,
    ServerOptimizer,
    ServerSGD,
    ServerYogi,
    Shuffled,
)
from fedtail.version import __version__

__all__ = [
    "IID",
    "Arrays",
    "Augment",
    "BalancedDirichlet",
    "BalancedSoftmax",
    "BatchSampler",
    "ByClass",
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
    "FedtailError",
    "First",
    "Focal",
    "Form",
    "GlobalPrior",
    "LADELoss",
    "LDAMLoss",
    "Like",
    "LocalLoss",
    "LocalPrior",
    "LocalTraining",
    "LogitCalibration",
    "LossContext",
    "Mean",
    "ModelSpec",
    "Natural",
    "NoTail",
    "Npz",
    "Number",
    "Output",
    "PaCoLoss",
    "Partition",
    "Pathological",
    "Payload",
    "Privacy",
    "PrivateProxyPrior",
    "Progress",
    "ProxyPrior",
    "RIDELoss",
    "RedGrapeSplit",
    "Reduced",
    "RestrictedSoftmax",
    "Result",
    "RunStopped",
    "Server",
    "ServerAdagrad",
    "ServerAdam",
    "ServerOptimizer",
    "ServerSGD",
    "ServerYogi",
    "Shards",
    "Shuffled",
    "Source",
    "Split",
    "SplitModel",
    "Step",
    "Study",
    "Tail",
    "Task",
    "TauSampling",
    "Total",
    "Tuned",
    "Update",
    "WeightedCrossEntropy",
    "__version__",
    "compare",
    "experts",
    "make_split",
    "run",
    "tune",
]
__all__ += methods.__all__
