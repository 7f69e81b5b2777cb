"""CReFF's server step in closed form against plain autograd, at C = 100, m = 100, d = 256.

The plain version is what one writes from the paper: for each class a gradient with `create_graph`
and a cosine by row, one backward pass through all classes and an SGD step; then `nn.Linear`, a data
loader and SGD for the re-training. Both alternate in one process and must give the same numbers;
the median of the ratios counts. A few steps of matching and one epoch of re-training are measured,
on one thread, as a run does by default; a round has 100 of the first and 300 of the second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.results_file import save
from fedtail.engines.runtime import numerics
from fedtail.training.class_gradients import ClassGradients
from fedtail.training.federated_features import (
    Head,
    Matching,
    match_features,
    new_head,
    train_head,
)

CLASSES, PER_CLASS, WIDTH = 100, 100, 256
MATCH_STEPS, MATCH_LR = 100, 0.1
EPOCHS, BATCH, HEAD_LR = 300, 32, 0.01
CODE = Matching(scale=1.0, eps=1e-6, bias=True)


def layer_of(head: Head) -> nn.Linear:
    """Return the head as a layer."""
    layer = nn.Linear(WIDTH, CLASSES)
    layer.load_state_dict(head._asdict())
    return layer


def plain_matching(features: Tensor, head: Head, targets: ClassGradients, steps: int) -> Tensor:
    """Match by double backward, class after class."""
    layer, (_, weight, bias) = layer_of(head), targets
    s = features.reshape(-1, WIDTH).clone().requires_grad_()
    optimizer = torch.optim.SGD([s], lr=MATCH_LR)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.zeros(())
        for c in range(CLASSES):
            mine = s[c * PER_CLASS : (c + 1) * PER_CLASS]
            ce = functional.cross_entropy(layer(mine), torch.full((PER_CLASS,), c))
            g = torch.autograd.grad(ce, list(layer.parameters()), create_graph=True)
            loss = loss + distance(g[0], weight[c])
            if bias is not None:
                loss = loss + distance(g[1][None], bias[c][None])
        torch.autograd.backward(loss)
        optimizer.step()
    return s.detach().reshape(features.shape)


def distance(g: Tensor, target: Tensor) -> Tensor:
    """Return Σ_j (1 − cos of row j)."""
    norms = torch.linalg.vector_norm(g, dim=1) * torch.linalg.vector_norm(target, dim=1)
    return torch.sum(1 - (g * target).sum(dim=1) / (norms + CODE.eps))


def plain_training(features: Tensor, head: Head, seed: int) -> Tensor:
    """Re-train for one epoch with a data loader and autograd."""
    layer = layer_of(head)
    labels = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).tolist()
    data = TensorDataset(features.reshape(-1, WIDTH), labels)
    optimizer = torch.optim.SGD(layer.parameters(), lr=HEAD_LR)
    for x, y in DataLoader(data, BATCH, sampler=order):
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(layer(x), y))
        optimizer.step()
    return layer.weight.detach()


def feature_gradients(features: Tensor, classes: Tensor, head: Head) -> ClassGradients:
    """Return the head's gradient of the mean cross-entropy on each class's features (A, m, d)."""
    given = [t.clone().requires_grad_() for t in head if t is not None]
    each = [
        torch.autograd.grad(
            functional.cross_entropy(functional.linear(s, *given), c.expand(len(s))), given
        )
        for s, c in zip(features, classes, strict=True)
    ]
    weight, *bias = (torch.stack(rows) for rows in zip(*each, strict=True))
    return classes, weight, bias[0] if bias else None


def measure(steps: int, repeats: int) -> dict[str, float]:
    """Return both ratios, and that of a whole round made of them."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(CLASSES, PER_CLASS, WIDTH, generator=generator)
    real = torch.randn(features.shape, generator=generator).relu()
    head = new_head(CLASSES, WIDTH, True, generator)
    targets = feature_gradients(real, torch.arange(CLASSES), head)
    matching: list[Callable[[], object]] = [
        partial(plain_matching, features, head, targets, steps),
        partial(match_features, features, head, targets, CODE, steps, MATCH_LR),
    ]
    training: list[Callable[[], object]] = [
        partial(plain_training, features, head, 1),
        lambda: train_head(head, features, 1, BATCH, HEAD_LR, torch.Generator().manual_seed(1)),
    ]
    with numerics(1):
        matched = match_features(features, head, targets, CODE, steps, MATCH_LR).features
        apart = float((plain_matching(features, head, targets, steps) - matched).abs().max())
        trained = train_head(head, features, 1, BATCH, HEAD_LR, torch.Generator().manual_seed(1))
        apart_head = float((plain_training(features, head, 1) - trained.weight).abs().max())
        match_times = [[seconds(work) for work in matching] for _ in range(repeats)]
        train_times = [[seconds(work) for work in training] for _ in range(repeats)]
    found: dict[str, float] = {}
    for clock, name in enumerate(("cpu", "wall")):
        match = [[pair[clock] / steps for pair in both] for both in match_times]
        train = [[pair[clock] for pair in both] for both in train_times]
        rounds = [
            [MATCH_STEPS * a + EPOCHS * b for a, b in zip(m, t, strict=True)]
            for m, t in zip(match, train, strict=True)
        ]
        found |= {
            f"matching_{name}_ratio": ratio(match),
            f"re_training_{name}_ratio": ratio(train),
            f"server_step_{name}_ratio": ratio(rounds),
            f"server_step_{name}_seconds": round(median(ours for _, ours in rounds), 2),
        }
    return {
        **found,
        "largest_difference_features": apart,
        "largest_difference_head": apart_head,
    }


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return the processor time it takes, which other processes do not lengthen, and the elapsed.

    Matching takes two threads where the process has two cores, which only the second one shows.
    """
    began, started = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - began, time.perf_counter() - started


def ratio(times: list[list[float]]) -> float:
    """Return the median of plain over closed form."""
    return round(median(plain / ours for plain, ours in times), 2)


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    found = measure(chosen.steps, chosen.repeats)
    save("creff_server", {"threads": 1, "target": 10, "plain_over_closed_form": found})


if __name__ == "__main__":
    main()
