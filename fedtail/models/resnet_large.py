"""The usual ResNet-18, ResNet-50 and ResNeXt-50, for large and for small images."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from pydantic import Field

from fedtail.models.blocks import Block, basic, bottleneck, large_stem, residual, small_stem
from fedtail.models.spec import ModelSpec, Shape
from fedtail.models.split_model import SplitModel

Stem = Literal["cifar", "imagenet"]
_STEM = "first layers: cifar (3x3, keeps 32x32) or imagenet (7x7 and pool, a quarter of the size)"


@ModelSpec.register("resnet18")
class ResNet18(ModelSpec):
    """ResNet-18; with the cifar stem the usual one for 32×32 images."""

    stem: Stem = Field(default="cifar", description=_STEM)

    def build(self, input_shape: Shape, num_classes: int) -> SplitModel:
        """Return the network for images of at least 8x8, or 32x32 with the imagenet stem."""
        return _build(self, self.stem, basic, (2, 2, 2, 2), input_shape, num_classes)


@ModelSpec.register("resnet50")
class ResNet50(ModelSpec):
    """ResNet-50: bottlenecks 3, 4, 6, 3 and 2048 features."""

    stem: Stem = Field(default="imagenet", description=_STEM)

    def build(self, input_shape: Shape, num_classes: int) -> SplitModel:
        """Return the network for images of at least 32x32, or 8x8 with the cifar stem."""
        return _build(self, self.stem, bottleneck, (3, 4, 6, 3), input_shape, num_classes)


@ModelSpec.register("resnext50")
class ResNeXt50(ModelSpec):
    """ResNeXt-50 32x4d: ResNet-50 with convolutions of 32 groups, twice as wide inside."""

    stem: Stem = Field(default="imagenet", description=_STEM)

    def build(self, input_shape: Shape, num_classes: int) -> SplitModel:
        """Return the network for images of at least 32x32, or 8x8 with the cifar stem."""
        block = partial(bottleneck, groups=32, inner=2)
        return _build(self, self.stem, block, (3, 4, 6, 3), input_shape, num_classes)


def _build(
    spec: ModelSpec,
    stem: Stem,
    block: Callable[[int, int, int], Block],
    depths: tuple[int, ...],
    input_shape: Shape,
    num_classes: int,
) -> SplitModel:
    channels, _, _ = spec.image(input_shape, smallest=8 if stem == "cifar" else 32)
    first = (small_stem if stem == "cifar" else large_stem)(channels, 64)
    return SplitModel(residual(first, block, (64, 128, 256, 512), depths, num_classes), "fc")
