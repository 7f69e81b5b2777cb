"""What methods share: local training, batches, priors, averages, server optimisers."""

from fedtail.training.average import weighted_mean
from fedtail.training.class_gradients import class_gradients
from fedtail.training.local import LocalTraining, normalisable
from fedtail.training.priors import ClassPrior, GlobalPrior, LocalPrior, SmoothedPrior
from fedtail.training.proxy import PrivateProxyPrior, ProxyPrior
from fedtail.training.samplers import BatchSampler, ClassBalanced, Shuffled
from fedtail.training.schedule import Constant, Cosine, Linear, Schedule, StepDecay
from fedtail.training.server_optimizer import (
    ServerAdagrad,
    ServerAdam,
    ServerOptimizer,
    ServerSGD,
    ServerYogi,
)

__all__ = [
    "BatchSampler",
    "ClassBalanced",
    "ClassPrior",
    "Constant",
    "Cosine",
    "GlobalPrior",
    "Linear",
    "LocalPrior",
    "LocalTraining",
    "PrivateProxyPrior",
    "ProxyPrior",
    "Schedule",
    "ServerAdagrad",
    "ServerAdam",
    "ServerOptimizer",
    "ServerSGD",
    "ServerYogi",
    "Shuffled",
    "SmoothedPrior",
    "StepDecay",
    "class_gradients",
    "normalisable",
    "weighted_mean",
]
