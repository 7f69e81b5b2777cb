"""The residual networks for CIFAR-sized images of CReFF, RedGrape and GBME.

They are three different families; the file says which paper each belongs to.
"""

from __future__ import annotations

from functools import partial

from pydantic import Field
from torch import nn

from fedtail.models.blocks import FanInConv, basic, bottleneck, residual, small_stem
from fedtail.models.experts import ExpertModel, experts
from fedtail.models.spec import ModelSpec, Shape
from fedtail.models.split_model import SplitModel


@ModelSpec.register("resnet8")
class ResNet8(ModelSpec):
    """CReFF's ResNet-8: three stages of one basic block, widths 64, 128, 256."""

    width: int = Field(default=64, ge=1, description="channels of the first stage")

    def build(self, input_shape: Shape, num_classes: int) -> SplitModel:
        """Return the network for images of at least 4x4."""
        channels, _, _ = self.image(input_shape, smallest=4)
        widths = (self.width, 2 * self.width, 4 * self.width)
        stem = small_stem(channels, self.width)
        return SplitModel(residual(stem, basic, widths, (1, 1, 1), num_classes), "fc")


@ModelSpec.register("resnet56")
class ResNet56(ModelSpec):
    """RedGrape's ResNet-56: three stages of six bottlenecks, widths 16, 32, 64, 256 features.

    Not the ResNet-56 of He et al., which has basic blocks.
    """

    def build(self, input_shape: Shape, num_classes: int) -> SplitModel:
        """Return the network for images of at least 4x4."""
        channels, _, _ = self.image(input_shape, smallest=4)
        stem = small_stem(channels, 16)
        return SplitModel(residual(stem, bottleneck, (16, 32, 64), (6, 6, 6), num_classes), "fc")


@ModelSpec.register("resnet32")
class ResNet32(ModelSpec):
    """GBME's single ResNet-32: three stages of five basic blocks, shortcuts without parameters."""

    def build(self, input_shape: Shape, num_classes: int) -> SplitModel:
        """Return the network for images of at least 4x4."""
        channels, _, _ = self.image(input_shape, smallest=4)
        return SplitModel(_resnet32(channels, (16, 32, 64), num_classes), "fc")


@ModelSpec.register("resnet32_experts")
class ResNet32Experts(ModelSpec):
    """GBME's multi-expert ResNet-32: stage 1 is shared, stages of 24 and 48 are an expert's own."""

    experts: int = Field(default=3, ge=1, description="number of experts, M")
    scale: float = Field(default=30.0, gt=0, description="factor of the cosine heads")

    def build(self, input_shape: Shape, num_classes: int) -> ExpertModel:
        """Return the network for images of at least 4x4."""
        channels, _, _ = self.image(input_shape, smallest=4)
        single = _resnet32(channels, (16, 24, 48), num_classes)
        return experts(single, "layer2", self.experts, cosine=True, scale=self.scale)


def _resnet32(channels: int, widths: tuple[int, int, int], num_classes: int) -> nn.Sequential:
    stem = small_stem(channels, widths[0], FanInConv)
    block = partial(basic, conv=FanInConv, pad=True)
    return residual(stem, block, widths, (5, 5, 5), num_classes)
