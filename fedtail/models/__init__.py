"""Models: descriptions by name, and any `nn.Module` seen as features and classifier."""

from fedtail.models.balancefl import BalanceFLDNN, BalanceFLResNet8
from fedtail.models.cnn import CNN, DigitsCNN, McMahanCNN, SmallCNN
from fedtail.models.experts import ExpertModel, experts, with_cosine_heads, with_experts
from fedtail.models.factory import ModelLike, build, fitted, made
from fedtail.models.heads import CosineHead, ScaledHead, class_axis
from fedtail.models.hf import HuggingFaceModel
from fedtail.models.mlp import MLP
from fedtail.models.resnet import ResNet8, ResNet32, ResNet32Experts, ResNet56
from fedtail.models.resnet_large import ResNet18, ResNet50, ResNeXt50
from fedtail.models.signal import SignalCNN
from fedtail.models.spec import ModelSpec
from fedtail.models.split_model import Output, SplitModel

__all__ = [
    "CNN",
    "MLP",
    "BalanceFLDNN",
    "BalanceFLResNet8",
    "CosineHead",
    "DigitsCNN",
    "ExpertModel",
    "HuggingFaceModel",
    "McMahanCNN",
    "ModelLike",
    "ModelSpec",
    "Output",
    "ResNeXt50",
    "ResNet8",
    "ResNet18",
    "ResNet32",
    "ResNet32Experts",
    "ResNet50",
    "ResNet56",
    "ScaledHead",
    "SignalCNN",
    "SmallCNN",
    "SplitModel",
    "build",
    "class_axis",
    "experts",
    "fitted",
    "made",
    "with_cosine_heads",
    "with_experts",
]
