"""Was this sample trained on? A likelihood-ratio attack with shadow models (LiRA).

Carlini, Chien, Nasr, Song, Terzis, Tramèr, "Membership Inference Attacks From First Principles",
IEEE S&P 2022. Models are trained with and without every sample; of each the confidence in the true
label, scaled as log p − log(1 − p), is nearly Gaussian, so that two Gaussians are fitted for every
sample, and the confidence of the attacked model says which of them it is from.

Here every sample of a client has a partner of the same class that nobody trained on, and in half
of the shadows the partner stands in its place. So no number of samples and no class count differs
from the client's own, and none of them can give it away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedtail.data.dataset import Features, Samples
from fedtail.data.federation import Federation
from fedtail.engines.runtime import Runtime
from fedtail.models.split_model import SplitModel
from fedtail.privacy.attacks import auc, found_at
from fedtail.privacy.views import (
    AUDIT_NOISE,
    SeenViews,
    Witnessed,
    answered_alone,
    seen_by_server,
    seen_model,
)
from fedtail.protocol import Task
from fedtail.rng import torch_generator
from fedtail.setting import Setting

SHADOWED_CLIENTS = 20
"""How many clients are trained in shadows; of the others the attacker is given the updates."""
OWN_VARIANCE = 32
"""From so many shadows of a kind on a sample has a variance of its own, else all share one."""
FALSE_ALARMS = 0.01


class Membership(NamedTuple):
    """How well members are told from samples of the same class that nobody trained on.

    Attributes
    ----------
    auc
        How often a member looks more like one: 1 is certainty, 0.5 chance.
    found
        Share of members that are found at 1 % false alarms: 0.01 is chance.
    samples
        How many of each kind were attacked.
    shadows
        How many shadow models each sample's two Gaussians come from.
    """

    auc: float
    found: float
    samples: int
    shadows: int


@dataclass(frozen=True)
class JoinedFeatures:
    """Training inputs and, after them, test inputs; both as they are, also those that are lazy."""

    first: Features
    second: Features

    @property
    def shape(self) -> torch.Size:
        """The number of samples, then the shape of one."""
        return torch.Size((len(self), *self.first.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        """That of both."""
        return self.first.dtype

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def __getitem__(self, index: Tensor) -> Tensor:
        after = index >= len(self.first)
        found = torch.empty((len(index), *self.first.shape[1:]), dtype=self.dtype)
        found[~after] = self.first[index[~after]].cpu()
        found[after] = self.second[index[after] - len(self.first)].cpu()
        return found


@dataclass(frozen=True)
class Pairs:
    """Members and others: who has which sample, and what may stand in its place.

    Attributes
    ----------
    federation
        The clients, whose data now has all samples, those of the test set last.
    slots
        Of each attacked client: which of its samples have a partner.
    others
        And the partners' positions.
    """

    federation: Federation
    slots: Mapping[int, Tensor]
    others: Mapping[int, Tensor]

    def __len__(self) -> int:
        return sum(len(slots) for slots in self.slots.values())

    def shadows(self, number: int, seed: int) -> Iterator[tuple[Federation, dict[int, Tensor]]]:
        """Give federations with partners in places, and of each client which samples are there."""
        draws = {}
        for k, slots in self.slots.items():
            draw = torch_generator(seed, "shadows", 0, k)
            ranks = torch.rand(number, len(slots), generator=draw).argsort(dim=0).argsort(dim=0)
            draws[k] = ranks < number // 2  # every sample is there in half of them
        clients = range(len(self.federation))
        own = [self.federation.positions(k).clone() for k in clients]
        for s in range(number):
            parts = [positions.clone() for positions in own]
            for k, slots in self.slots.items():
                there = draws[k][s]
                parts[k][slots[~there]] = self.others[k][~there]
            shadow = self.federation.with_parts(self.federation.train, [p.numpy() for p in parts])
            yield shadow, {k: draws[k][s] for k in self.slots}

    def members(self, clients: list[int]) -> Tensor:
        """Return which of these clients' samples and partners are members: the former."""
        sizes = [len(self.slots[k]) for k in clients]
        return torch.cat([torch.arange(2 * n) < n for n in sizes])

    def confidences(self, model: SplitModel, k: int) -> Tensor:
        """Return the scaled confidence of a model in client k's samples, then their partners."""
        data = self.federation.client(k)
        positions = torch.cat([data.positions[self.slots[k]], self.others[k]])
        return scaled_confidences(model, self.federation, positions)

    def seen_confidences(
        self, views: SeenViews, tasks: Mapping[int, Task], model: SplitModel
    ) -> dict[str, Tensor] | None:
        """Return those of the models that updates lead to, by protection; none if none is seen."""
        found = {}
        for protection, seen in views.items():
            each = []
            for k in (k for k in self.slots if k in tasks):
                tensors = seen_model(tasks[k], seen[k], model)
                if tensors is None:
                    return None
                model.load(tensors)
                each.append(self.confidences(model, k))
            found[protection] = torch.cat(each)
        return found


def paired(setting: Setting) -> Pairs:
    """Find a partner of the same class for as many samples of the attacked clients as there are."""
    federation, seed = setting.federation, setting.experiment.seed
    train, test = federation.train, federation.test
    y = torch.cat([train.y, test.y])
    free = torch.ones(len(y), dtype=torch.bool)
    free[federation.held()] = False
    free[torch.from_numpy(setting.split.server)] = False
    order = torch.randperm(len(y), generator=torch_generator(seed, "shadows/others"))
    order = order[free[order]]
    stock = {c: order[y[order] == c].tolist() for c in torch.unique(train.y).tolist()}
    slots, others = {}, {}
    clients = torch.randperm(len(federation), generator=torch_generator(seed, "shadows/clients"))
    for k in sorted(clients[:SHADOWED_CLIENTS].tolist()):
        labels = train.y[federation.positions(k)].tolist()
        found = [(i, stock[c].pop()) for i, c in enumerate(labels) if stock[c]]
        if found:
            slots[k], others[k] = torch.tensor(found).T
    x: Features = JoinedFeatures(train.x, test.x)
    if isinstance(train.x, Tensor) and isinstance(test.x, Tensor):
        x = torch.cat([train.x, test.x])
    joined = Samples(x, y)
    parts = [federation.positions(k).numpy() for k in range(len(federation))]
    return Pairs(federation.with_parts(joined, parts), slots, others)


def members_of_round(
    witnessed: list[Witnessed],
    views: SeenViews,
    setting: Setting,
    runtime: Runtime,
    epsilon: float,
    shadows: int,
) -> dict[str, Membership | None]:
    """Attack what the server sees of one round, under each protection.

    The attacker knows how clients train, in which order they take their samples, and every sample
    but whether it was there; it knows no noise.
    """
    pairs = paired(setting)
    attacked = {w.task.client: w.task for w in witnessed if w.task.client in pairs.slots}
    asked = [k for k in pairs.slots if k in attacked]
    target = pairs.seen_confidences(views, attacked, setting.model) if asked and shadows else None
    if target is None:
        return dict.fromkeys(views)
    shadow_views, inside = [], []
    for s, (federation, there) in enumerate(pairs.shadows(shadows, setting.experiment.seed)):
        other = replace(runtime, federation=federation)
        again = [
            answered_alone(w.task, w.state, setting, other) if w.task.client in there else w
            for w in witnessed
        ]
        shown = seen_by_server(again, setting, epsilon, f"{AUDIT_NOISE}/{s}")
        shadow_views.append(pairs.seen_confidences(shown, attacked, setting.model))
        inside.append(in_and_out(there, asked))
    found: dict[str, Membership | None] = {}
    for name, own in target.items():
        each = torch.stack([seen[name] for seen in shadow_views if seen is not None])
        found[name] = scored(own, each, torch.stack(inside), pairs.members(asked))
    return found


def members_of_model(
    setting: Setting,
    tensors: Mapping[str, Tensor],
    runs: int,
    trained: Callable[[Setting], Mapping[str, Tensor]],
) -> Membership | None:
    """Attack the shipped model, with shadows that are whole runs.

    Parameters
    ----------
    setting, tensors
        The run, and the model that it shipped.
    runs
        How many shadow runs.
    trained
        What makes one: from a setting to the model that is shipped.
    """
    pairs = paired(setting)
    if not runs or not len(pairs):
        return None
    runtime = setting.runtime()

    def looked_at(shipped: Mapping[str, Tensor]) -> Tensor:
        model = runtime.load_tested(shipped)
        return torch.cat([pairs.confidences(model, k) for k in pairs.slots])

    target, shadows, inside = looked_at(tensors), [], []
    for federation, there in pairs.shadows(runs, setting.experiment.seed):
        shadows.append(looked_at(trained(replace(setting, federation=federation))))
        inside.append(in_and_out(there, list(pairs.slots)))
    member = pairs.members(list(pairs.slots))
    return scored(target, torch.stack(shadows), torch.stack(inside), member)


def in_and_out(there: Mapping[int, Tensor], clients: list[int]) -> Tensor:
    """Return which samples of these clients, and which partners, a shadow trained on."""
    return torch.cat([torch.cat([there[k], ~there[k]]) for k in clients])


def scored(target: Tensor, shadows: Tensor, inside: Tensor, member: Tensor) -> Membership:
    """Score confidences (samples) against those of shadows (shadows, samples)."""
    ratio = likelihood_ratio(target, shadows, inside)
    high, low = ratio[member], ratio[~member]
    return Membership(
        auc(high, low) or 0.0, found_at(high, low, FALSE_ALARMS), len(high), len(shadows)
    )


def scaled_confidences(model: SplitModel, federation: Federation, positions: Tensor) -> Tensor:
    """Return log p − log(1 − p) of the true label, p being the model's confidence in it."""
    y, found = federation.train.y[positions], []
    model.eval()
    for index in torch.split(torch.arange(len(positions)), 500):
        x = federation.ready(federation.train.x[positions[index]].to(federation.device))
        with torch.inference_mode():
            found.append(logit_margin(model(x).cpu().double(), y[index]))
    return torch.cat(found)


def logit_margin(logits: Tensor, y: Tensor) -> Tensor:
    """Return z_y − log Σ_{j≠y} exp z_j, which is log p_y − log(1 − p_y)."""
    own = logits.gather(1, y[:, None])
    others = logits.scatter(1, y[:, None], -math.inf)
    return torch.nan_to_num(own[:, 0] - others.logsumexp(dim=1))


def likelihood_ratio(target: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    """Return log N(φ; in) − log N(φ; out) of each sample.

    Parameters
    ----------
    target
        φ of each sample under the attacked model.
    shadows, inside
        φ of each sample (column) under each shadow (row), and whether that trained on it.
    """
    return _log_density(target, shadows, inside) - _log_density(target, shadows, ~inside)


def _log_density(target: Tensor, shadows: Tensor, chosen: Tensor) -> Tensor:
    """Return log N(target), without the constant, of a Gaussian fitted to the chosen shadows."""
    number = chosen.sum(dim=0)
    mean = (shadows * chosen).sum(dim=0) / number
    squares = ((shadows - mean).square() * chosen).sum(dim=0)
    if int(number.min()) >= OWN_VARIANCE:
        variance = squares / (number - 1)
    else:
        variance = (squares.sum() / (number - 1).sum()).expand_as(mean)
    variance = variance.clamp(min=1e-12)
    return -variance.log() / 2 - (target - mean).square() / (2 * variance)
