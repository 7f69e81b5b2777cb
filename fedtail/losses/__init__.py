"""Local losses: one small callable a file, the formula in its docstring."""

from fedtail.losses.balanced_softmax import BalancedSoftmax
from fedtail.losses.base import LocalLoss, LossContext
from fedtail.losses.binary_cross_entropy import BinaryCrossEntropy
from fedtail.losses.cross_entropy import CrossEntropy
from fedtail.losses.focal import Focal
from fedtail.losses.function import FunctionLoss
from fedtail.losses.lade import LADELoss
from fedtail.losses.ldam import LDAMLoss
from fedtail.losses.logit_calibration import LogitCalibration
from fedtail.losses.paco import PaCoLoss
from fedtail.losses.restricted_softmax import RestrictedSoftmax
from fedtail.losses.ride import RIDELoss
from fedtail.losses.weighted_cross_entropy import WeightedCrossEntropy

__all__ = [
    "BalancedSoftmax",
    "BinaryCrossEntropy",
    "CrossEntropy",
    "Focal",
    "FunctionLoss",
    "LADELoss",
    "LDAMLoss",
    "LocalLoss",
    "LogitCalibration",
    "LossContext",
    "PaCoLoss",
    "RIDELoss",
    "RestrictedSoftmax",
    "WeightedCrossEntropy",
]
