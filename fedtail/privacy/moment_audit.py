"""What a client's own sums of features tell about its samples, measured.

A client with n samples sends class counts, class sums and M = Σ p h hᵀ. With n below the width of
the features, M has rank n: its eigenvectors span the samples, and M = Bᵀ B gives them up to a
rotation, √p h = (R B)ᵢ. That each class has its sum, and that features after a ReLU are not
negative, says which rotation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedtail.engines.runtime import Clock, Runtime
from fedtail.models.split_model import SplitModel
from fedtail.privacy.attacks import auc
from fedtail.protocol import Update
from fedtail.reduce import reduced
from fedtail.rng import torch_generator
from fedtail.setting import Setting
from fedtail.training.closed_heads import ClosedHead
from fedtail.training.feature_sums import (
    FEATURE_GROUP,
    FeatureSums,
    from_sketch,
    local_features,
    restored_sums,
)

ATTACKED_CLIENTS = 10
TURNS = 500
"""Steps of the search for the rotation."""
UNSEEN = 500
"""How many test samples stand for those that a client does not have."""


class MomentLeak(NamedTuple):
    """What sums of features tell where nothing protects them.

    Attributes
    ----------
    samples, alone
        All training samples, and those that are their client's only one of their class.
    width
        How many features there are.
    small, attacked, largest
        How many clients have fewer samples than that; how many of them were attacked, those with
        the fewest samples, and how many samples the largest of these has.
    members
        AUC of telling a client's samples from test samples by the span of its second moments.
    recovered, chance
        Mean largest cosine of real features with those that were computed from the sums, and with
        those of a random rotation, all less the mean of test features.
    """

    samples: int
    alone: int
    width: int
    small: int = 0
    attacked: int = 0
    largest: int = 0
    members: float | None = None
    recovered: float | None = None
    chance: float | None = None


def moment_leak(
    setting: Setting, runtime: Runtime, tensors: Mapping[str, Tensor]
) -> MomentLeak | None:
    """Attack what clients send for a closed-form head, at the shipped model; none if there is none.

    The server is given what it sees without protection: every client's own sums.
    """
    head = setting.method.closed_head() or setting.finish.closed_head()
    if head is None:
        return None
    network, federation = runtime.load_tested(tensors), setting.federation
    counts = [federation.counts(k) for k in range(len(federation))]
    width = network.feature_dim
    found = MomentLeak(
        samples=int(sum(int(n.sum()) for n in counts)),
        alone=sum(int((n == 1).sum()) for n in counts),
        width=width,
    )
    small = sorted((int(n.sum()), k) for k, n in enumerate(counts) if 0 < int(n.sum()) < width)
    if not head.wanted.products or not small:
        return found
    with torch.no_grad():
        x, _ = federation.test_batch(0, UNSEEN)
        others = network.features(x).cpu().double()
    said = heard(head, setting, runtime, tensors)
    scores = [_attack(k, said[k], setting, network, others) for _, k in small[:ATTACKED_CLIENTS]]
    member, recovered, chance = (sum(each) / len(each) for each in zip(*scores, strict=True))
    return found._replace(
        small=len(small),
        attacked=len(scores),
        largest=small[len(scores) - 1][0],
        members=member,
        recovered=recovered,
        chance=chance,
    )


def heard(
    head: ClosedHead, setting: Setting, runtime: Runtime, tensors: Mapping[str, Tensor]
) -> dict[int, FeatureSums]:
    """Hold the exchanges of a head, and return what each client's own answers come to."""
    network = runtime.load_tested(tensors)
    sent = {name: t for name, t in tensors.items() if name in network.names()}
    exchange = head.ask(sent, network, setting.server(1))
    found: dict[int, FeatureSums] = {}
    tasks = next(exchange)
    while True:
        question = tasks[0].payload
        updates = [Update(t.client, runtime.perform(t, {}, Clock(1, 1))) for t in tasks]
        for update in updates:
            told, client = update.payload.group(FEATURE_GROUP), update.client
            if tasks[0].action == "feature_sums":
                found[client] = restored_sums(told, question)
            elif tasks[0].action == "feature_products":
                block = question.tensors["weigh/test"]
                found[client] = found[client].beside(block, told["products"])
        try:
            tasks = exchange.send(reduced(updates, runtime.declared(tasks[0])))
        except StopIteration:
            return found


def _attack(
    client: int, sums: FeatureSums, setting: Setting, network: SplitModel, others: Tensor
) -> tuple[float, float, float]:
    federation = setting.federation
    real = torch.cat([h for h, _ in local_features(network, federation.client(client))])
    basis = spanned(sums)
    away = [-(h - h @ basis.T @ basis).norm(dim=1) / h.norm(dim=1) for h in (real, others)]
    draw = torch_generator(setting.experiment.seed, "moment audit", 0, client)
    centre = others.mean(0)
    found, turned = (recovered(sums, draw, turns) - centre for turns in (TURNS, 0))
    return auc(*away) or 0.0, _nearest(real - centre, found), _nearest(real - centre, turned)


def second_moments(sums: FeatureSums) -> Tensor:
    """Return Σ p h hᵀ of one client, also from a sketch."""
    if sums.image is None:
        raise ValueError("no second moments were asked for")
    return sums.image if sums.test is None else from_sketch(sums.image, sums.test)


def spanned(sums: FeatureSums) -> Tensor:
    """Return an orthonormal basis (n, d) of the span of a client's features."""
    n = int(sums.counts.sum())
    if sums.test is not None:  # so many directions of it are known
        n = min(n, sums.test.shape[1])
    vectors: Tensor = torch.linalg.eigh(second_moments(sums)).eigenvectors
    return vectors[:, -n:].T


def recovered(sums: FeatureSums, generator: torch.Generator, turns: int = TURNS) -> Tensor:
    """Return features (n, d) that have a client's counts, class sums and second moments.

    The rotation is searched by turns: features are made not negative, classes are moved to their
    sums, and the nearest rotation of B is taken. Without turns it is a random one.
    """
    n = int(sums.counts.sum())
    values, vectors = torch.linalg.eigh(second_moments(sums))
    b = (vectors[:, -n:] * values[-n:].clamp(min=0).sqrt()).T
    y = torch.repeat_interleave(torch.arange(len(sums.counts)), sums.counts)
    root = sums.weights[y].sqrt()[:, None]
    rotated = _rotation(torch.randn(n, n, generator=generator, dtype=torch.float64)) @ b
    for _ in range(turns):
        guess = (rotated / root).clamp(min=0)
        short = sums.sums - torch.zeros_like(sums.sums).index_add_(0, y, guess)
        guess = guess + short[y] / sums.counts[y, None]
        rotated = _rotation((guess * root) @ b.T) @ b
    features: Tensor = rotated / root
    return features


def _rotation(matrix: Tensor) -> Tensor:
    """Return the nearest orthogonal matrix."""
    u, _, v = torch.linalg.svd(matrix)
    nearest: Tensor = u @ v
    return nearest


def _nearest(real: Tensor, made: Tensor) -> float:
    cosine = functional.normalize(real, dim=1) @ functional.normalize(made, dim=1).T
    return float(cosine.max(dim=1).values.mean())
