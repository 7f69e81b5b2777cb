"""Local losses: one small callable a file, the formula in its docstring."""

from fedtail.losses.balanced_softmax import BalancedSoftmax
from fedtail.losses.base import LocalLoss, LossContext
from fedtail.losses.cross_entropy import CrossEntropy
from fedtail.losses.logit_calibration import LogitCalibration

__all__ = ["BalancedSoftmax", "CrossEntropy", "LocalLoss", "LogitCalibration", "LossContext"]
