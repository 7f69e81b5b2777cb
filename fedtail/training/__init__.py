"""What clients share when they train: optimiser, batches, priors, averages."""

from fedtail.training.average import weighted_mean
from fedtail.training.class_gradients import class_gradients, mean_by_class
from fedtail.training.local import LocalTraining, normalisable
from fedtail.training.priors import ClassPrior, GlobalPrior, LocalPrior
from fedtail.training.proxy import PrivateProxyPrior, ProxyPrior
from fedtail.training.samplers import BatchSampler, ClassBalanced, Shuffled
from fedtail.training.schedule import Constant, Cosine, Linear, Schedule, StepDecay

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
    "Shuffled",
    "StepDecay",
    "class_gradients",
    "mean_by_class",
    "normalisable",
    "weighted_mean",
]
