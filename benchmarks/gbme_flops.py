"""What GBME computes in a round, by torch's counter, beside the figures of its paper.

The paper gives 1520.42 GFLOPs for a round of FedAvg with ResNet-32 on CIFAR-100-LT (imbalance 100),
760.21 more for the proxy index in the first round, and 696.06 more a round for three experts. They
come out as multiply-adds of forward passes by the rules of the profiler thop: beside convolutions
and linear layers, 4 for each number that BatchNorm gives and one for each that enters or leaves a
pooling layer. It sees modules only, so in the authors' multi-expert network neither the pooling nor
the cosine heads. Samples are those of all clients, not of the cohort.

Torch counts 2 for a multiply-add, convolutions and matrix products only, but backward passes too.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.results_file import save
from fedtail.data.longtail import Exponential
from fedtail.models import ExpertModel, ResNet32, ResNet32Experts, SplitModel

SHAPE, CLASSES = (3, 32, 32), 100
CLIENTS, COHORT, EPOCHS, EXPERTS = 100, 20, 2, 3
SAMPLES = int(Exponential(imbalance=100).counts(torch.full((CLASSES,), 500).numpy()).sum())


def flops(model: SplitModel, train: bool) -> int:
    """Return what torch counts for one image: a forward pass, or a step of training."""
    x, y = torch.zeros(2, *SHAPE), torch.zeros(2, dtype=torch.int64)
    model.train(train)
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(train):
        logits = model(x)
        if train:
            torch.autograd.backward(functional.cross_entropy(logits, y))
    return int(counter.get_total_flops()) // len(x)


def multiply_adds(model: SplitModel, pooling: bool, heads: bool) -> int:
    """Return the operations of a forward pass of one image as thop counts them."""
    extra: list[int] = []

    def norm(_: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> None:
        extra.append(4 * out.numel())

    def pool(_: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        extra.append(inputs[0].numel() + out.numel())

    hooks = []
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            hooks.append(module.register_forward_hook(norm))
        if isinstance(module, nn.AdaptiveAvgPool2d) and pooling:
            hooks.append(module.register_forward_hook(pool))
    with torch.no_grad():
        model.eval()(torch.zeros(1, *SHAPE))
    for hook in hooks:
        hook.remove()
    classifier = 0 if heads else cast(nn.Linear, model.classifier).in_features * CLASSES
    return flops(model, train=False) // 2 - classifier + sum(extra)


def giga(operations: float) -> float:
    """Return 10⁹ operations, with the paper's two digits."""
    return round(operations / 1e9, 2)


def main() -> None:
    """Count and save."""
    single = ResNet32().build(SHAPE, CLASSES)
    several: ExpertModel = ResNet32Experts(experts=EXPERTS).build(SHAPE, CLASSES)
    plain = multiply_adds(single, pooling=True, heads=True)
    both = {m: ResNet32Experts(experts=m).build(SHAPE, CLASSES) for m in (2, EXPERTS)}
    extra = {m: multiply_adds(net, pooling=False, heads=False) - plain for m, net in both.items()}
    in_cohort = COHORT * SAMPLES / CLIENTS * EPOCHS
    trained = flops(several.train_only(0), train=True)
    save(
        "gbme_flops",
        {
            "samples": SAMPLES,
            "as_in_the_paper": {
                "multiply_adds_of_a_sample": plain,
                "fedavg_round": {"paper": 1520.42, "counted": giga(plain * SAMPLES * EPOCHS)},
                "proxy_index": {"paper": 760.21, "counted": giga(plain * SAMPLES)},
                "three_experts": {
                    "paper": 696.06,
                    "counted": giga(extra[EXPERTS] * SAMPLES * EPOCHS),
                },
                "two_experts": {"counted": giga(extra[2] * SAMPLES * EPOCHS)},
            },
            "forward_flops_of_a_sample": {
                "resnet32": flops(single, train=False),
                "resnet32_experts": flops(several, train=False),
            },
            "training_flops_of_a_sample": {
                "resnet32": flops(single, train=True),
                "resnet32_experts_one_trained": trained,
                "resnet32_experts_all_trained": flops(several.train_only(None), train=True),
            },
            "gigaflops_of_a_round_with_backward_passes": {
                "fedavg": giga(flops(single, train=True) * in_cohort),
                "gbme": giga(EXPERTS * trained * in_cohort),
                "proxy_index_once": giga(flops(several, train=True) * SAMPLES),
            },
        },
    )


if __name__ == "__main__":
    main()
