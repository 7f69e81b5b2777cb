"""GBME's computation figures from torch's counter: 1520.42, 760.21 and 696.06 GFLOPs.

The paper does not say how it counted. Its figures come out for forward passes, in multiply-adds by
the rules of the profiler thop, of ResNet-32 on all 10,847 samples of CIFAR-100-LT at imbalance 100.
Torch's counter gives twice the multiply-adds of convolutions and matrix products. thop adds

    4 for each number out of a BatchNorm. ResNet-32 has 11 layers of 16·32², 10 of 32·16² and 10 of
    64·8² numbers, 303,104 in all; three experts have 11 of 16·32², 30 of 24·16² and 30 of 48·8²,
    456,704;
    64 + 1 for each of the 64 means of a pooling layer, 4,160

and leaves out what is not a module it knows: the multi-expert network's pooling, a function in the
authors' code, and its cosine heads, 3 · 48 · 100 multiply-adds.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedtail.data.longtail import Exponential
from fedtail.models import ResNet32, ResNet32Experts, SplitModel

SAMPLES = 10_847
LOCAL_EPOCHS = 2


def multiply_adds(model: SplitModel) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.zeros(1, 3, 32, 32))
    return int(counter.get_total_flops()) // 2


def single() -> int:
    """Return a forward pass of ResNet-32 as thop counts it."""
    # 3·16·9·32² for the first convolution; 10 of 16·16·9·32²; in both other stages half of that for
    # the convolution with stride 2, and 9 whole ones; 64·100 for the classifier.
    first, whole = 442_368, 2_359_296
    assert multiply_adds(ResNet32().build((3, 32, 32), 100)) == (
        first + 10 * whole + 2 * (whole // 2 + 9 * whole) + 6_400
    )
    return 68_868_352 + 4 * 303_104 + 4_160


def test_the_samples_are_those_of_all_clients() -> None:
    assert Exponential(imbalance=100).counts(np.full(100, 500)).sum() == SAMPLES


def test_a_round_of_fedavg_and_the_proxy_index() -> None:
    assert f"{single() * SAMPLES * LOCAL_EPOCHS / 1e9:.2f}" == "1520.42"
    # The preliminary pass is one epoch of the same.
    assert f"{single() * SAMPLES / 1e9:.2f}" == "760.21"


def test_three_experts() -> None:
    found = multiply_adds(ResNet32Experts(experts=3).build((3, 32, 32), 100))
    assert found == 100_358_208
    experts = found - 3 * 48 * 100 + 4 * 456_704
    extra = (experts - single()) * SAMPLES * LOCAL_EPOCHS
    # 696.067, printed as 696.06: twice 348.03, the half that the paper gives for an expert more.
    assert extra == 696_067_089_024
    assert 2 * round(extra / 2e9, 2) == 696.06
