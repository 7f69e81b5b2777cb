"""Everything that `import fedtail` offers: each name once, from the module that defines it."""

from fedtail import methods
from fedtail.callbacks import Callback, Progress
from fedtail.data.augment import Augment
from fedtail.data.dataset import Source
from fedtail.data.held_out import Validation
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
from fedtail.data.sources import Arrays, Digits, Npz, TorchData
from fedtail.data.split import Split, make_split
from fedtail.diagnosis.doctor import Diagnosis, doctor
from fedtail.errors import FedtailError, RunStopped
from fedtail.experiment import Experiment
from fedtail.finish import ClosedFormFinish, Finish, NoFinish
from fedtail.forms import ByClass, First, Form, Like, Mean, Number, Total
from fedtail.loop import run
from fedtail.losses import (
    BalancedSoftmax,
    BinaryCrossEntropy,
    CrossEntropy,
    Focal,
    FunctionLoss,
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
from fedtail.predictor import Predictor, load
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
    SmoothedPrior,
)
from fedtail.training.closed_heads import LDA, BalancedRidge, ClosedHead, NearestMean

__all__ = [
    "IID",
    "LDA",
    "Arrays",
    "Augment",
    "BalancedDirichlet",
    "BalancedRidge",
    "BalancedSoftmax",
    "BatchSampler",
    "BinaryCrossEntropy",
    "ByClass",
    "CReFFSplit",
    "Callback",
    "ClassBalanced",
    "ClassPrior",
    "Client",
    "ClosedFormFinish",
    "ClosedHead",
    "CrossEntropy",
    "Diagnosis",
    "Digits",
    "Dirichlet",
    "Exchange",
    "Experiment",
    "Exponential",
    "FedtailError",
    "Finish",
    "First",
    "Focal",
    "Form",
    "FunctionLoss",
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
    "NearestMean",
    "NoFinish",
    "NoTail",
    "Npz",
    "Number",
    "Output",
    "PaCoLoss",
    "Partition",
    "Pathological",
    "Payload",
    "Predictor",
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
    "SmoothedPrior",
    "Source",
    "Split",
    "SplitModel",
    "Step",
    "Study",
    "Tail",
    "Task",
    "TauSampling",
    "TorchData",
    "Total",
    "Tuned",
    "Update",
    "Validation",
    "WeightedCrossEntropy",
    "compare",
    "doctor",
    "experts",
    "load",
    "make_split",
    "run",
    "tune",
]
__all__ += methods.__all__
