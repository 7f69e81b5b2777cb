"""The parts of residual networks.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016; Xie et al., "Aggregated
Residual Transformations for Deep Neural Networks", CVPR 2017.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn


class FanInConv(nn.Conv2d):
    """A convolution without bias whose weight is drawn from N(0, 2 / (k²·in))."""

    def reset_parameters(self) -> None:
        """Draw the weight again."""
        nn.init.kaiming_normal_(self.weight, mode="fan_in", nonlinearity="relu")


class FanOutConv(nn.Conv2d):
    """A convolution without bias whose weight is drawn from N(0, 2 / (k²·out))."""

    def reset_parameters(self) -> None:
        """Draw the weight again."""
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")


Conv = type[nn.Conv2d]


class PadShortcut(nn.Module):
    """He's option A: take every stride-th pixel and pad the new channels with zeros."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.outputs = outputs
        self.stride = stride
        self.before = (outputs - inputs) // 2
        self.after = outputs - inputs - self.before

    def forward(self, x: Tensor) -> Tensor:
        """Return the thinned, padded input."""
        thin = x[:, :, :: self.stride, :: self.stride]
        return F.pad(thin, (0, 0, 0, 0, self.before, self.after))


class Block(nn.Module):
    """A residual block: relu(body(x) + shortcut(x))."""

    def __init__(self, outputs: int, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.outputs = outputs
        self.body = body
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def basic(
    inputs: int, width: int, stride: int, conv: Conv = FanOutConv, pad: bool = False
) -> Block:
    """Return two 3×3 convolutions of `width`; `pad` takes the shortcut without parameters."""
    body = OrderedDict[str, nn.Module](
        conv1=conv(inputs, width, 3, stride, padding=1, bias=False),
        bn1=nn.BatchNorm2d(width),
        relu=nn.ReLU(inplace=True),
        conv2=conv(width, width, 3, padding=1, bias=False),
        bn2=nn.BatchNorm2d(width),
    )
    return Block(width, nn.Sequential(body), _shortcut(inputs, width, stride, conv, pad))


def bottleneck(
    inputs: int, width: int, stride: int, conv: Conv = FanOutConv, groups: int = 1, inner: int = 1
) -> Block:
    """Return 1×1, 3×3 and 1×1 convolutions: `inner`·width channels inside, 4·width out."""
    middle, outputs = inner * width, 4 * width
    body = OrderedDict[str, nn.Module](
        conv1=conv(inputs, middle, 1, bias=False),
        bn1=nn.BatchNorm2d(middle),
        relu1=nn.ReLU(inplace=True),
        conv2=conv(middle, middle, 3, stride, padding=1, groups=groups, bias=False),
        bn2=nn.BatchNorm2d(middle),
        relu2=nn.ReLU(inplace=True),
        conv3=conv(middle, outputs, 1, bias=False),
        bn3=nn.BatchNorm2d(outputs),
    )
    return Block(outputs, nn.Sequential(body), _shortcut(inputs, outputs, stride, conv, False))


def _shortcut(inputs: int, outputs: int, stride: int, conv: Conv, pad: bool) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    if pad:
        return PadShortcut(inputs, outputs, stride)
    parts = OrderedDict[str, nn.Module](
        conv=conv(inputs, outputs, 1, stride, bias=False), bn=nn.BatchNorm2d(outputs)
    )
    return nn.Sequential(parts)


def small_stem(channels: int, width: int, conv: Conv = FanOutConv) -> OrderedDict[str, nn.Module]:
    """Return the 3×3 beginning that keeps the resolution, for images of about 32×32."""
    return OrderedDict[str, nn.Module](
        conv1=conv(channels, width, 3, padding=1, bias=False),
        bn1=nn.BatchNorm2d(width),
        relu=nn.ReLU(inplace=True),
    )


def large_stem(channels: int, width: int, conv: Conv = FanOutConv) -> OrderedDict[str, nn.Module]:
    """Return the 7×7 beginning that quarters the resolution, for images of about 224×224."""
    return OrderedDict[str, nn.Module](
        conv1=conv(channels, width, 7, 2, padding=3, bias=False),
        bn1=nn.BatchNorm2d(width),
        relu=nn.ReLU(inplace=True),
        maxpool=nn.MaxPool2d(3, 2, padding=1),
    )


def stages(
    stem: OrderedDict[str, nn.Module],
    block: Callable[[int, int, int], Block],
    widths: Sequence[int],
    depths: Sequence[int],
) -> tuple[OrderedDict[str, nn.Module], int]:
    """Return the stem with stages ``layer1``… behind it, and how many channels come out.

    `block` is given its input channels, its width and its stride: 2 where a stage but the first
    begins.
    """
    layers = OrderedDict(stem)
    inputs = next(
        layer.num_features for layer in stem.values() if isinstance(layer, nn.BatchNorm2d)
    )
    for number, (width, depth) in enumerate(zip(widths, depths, strict=True), 1):
        stage = nn.Sequential()
        for place in range(depth):
            new = block(inputs, width, 2 if number > 1 and place == 0 else 1)
            stage.append(new)
            inputs = new.outputs
        layers[f"layer{number}"] = stage
    return layers, inputs


def pooled_network(layers: OrderedDict[str, nn.Module], head: nn.Module) -> nn.Sequential:
    """Return the layers, the average over all pixels, and the head ``fc``, as one chain."""
    return nn.Sequential(
        OrderedDict(
            [
                *layers.items(),
                ("pool", nn.AdaptiveAvgPool2d(1)),
                ("flatten", nn.Flatten()),
                ("fc", head),
            ]
        )
    )


def residual(
    stem: OrderedDict[str, nn.Module],
    block: Callable[[int, int, int], Block],
    widths: Sequence[int],
    depths: Sequence[int],
    num_classes: int,
) -> nn.Sequential:
    """Return a whole residual network with a linear head; see `stages`."""
    layers, outputs = stages(stem, block, widths, depths)
    return pooled_network(layers, nn.Linear(outputs, num_classes))
