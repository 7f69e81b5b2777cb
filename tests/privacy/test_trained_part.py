"""Where a part of a network is trained, that part is clipped, noised and summed, and no other."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from summing import far
from torch import nn

from fedtail import Experiment, FedAvg, Privacy, run
from fedtail.engines import Embedded
from fedtail.loop import Loop
from fedtail.privacy.noise import grid_step
from fedtail.privacy.plan import protection
from fedtail.protocol import Payload
from fedtail.setting import prepare
from fedtail.testing.executors import Recorder

CHOICES = ["head", "last:2", "lora:r=2"]
CLIP, SIGMA = 0.01, 4.0


def network() -> nn.Module:
    """A body of two layers with BatchNorm, and a classifier."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU()]
    layers += [nn.Flatten(), nn.Linear(36, 6), nn.ReLU(), nn.Linear(6, tiny.CLASSES)]
    return nn.Sequential(*layers)


def experiment(train: str, **fields: Any) -> Experiment:
    method: FedAvg[Any] = FedAvg(local=tiny.quick())
    return tiny.experiment(method, network, per_round=6, train=train, **fields)


def trained_names(train: str) -> frozenset[str]:
    return prepare(experiment(train)).model.names()


def recorded(chosen: Experiment) -> tuple[Any, list[tuple[Payload, Payload]]]:
    """Return a run, and every task of training with its answer."""
    setting = prepare(chosen)
    with protection(setting) as sides:
        assert sides is not None
        runtime = setting.runtime(sides.client)
        engine, recorder = Embedded(runtime, server_side=sides.server), Recorder(runtime)
        engine.executor = recorder
        result = Loop(setting, engine, None, (), sides.budget).run(False)
    waves = [pair for wave in recorder.waves for pair in wave]
    return result, [
        (job.task.payload, done.payload)
        for job, done in waves
        if job.task.action == "train" and done.payload is not None
    ]


@pytest.mark.parametrize("train", CHOICES)
def test_clipping_noise_and_bytes_are_of_what_is_trained(train: str) -> None:
    private = Privacy(epsilon=1e4, clip=CLIP, noise=SIGMA, simulated=True)
    result, messages = recorded(experiment(train, rounds=1, privacy=private))
    names = trained_names(train)
    size = sum(t.numel() for t in prepare(experiment(train)).model.tensors().values())
    assert len(messages) == 6
    for sent, answer in messages:
        changes = {f"model/{name}" for name in names}
        assert set(answer.tensors) == changes
        assert set(sent.tensors) == changes
        # All of it together is one vector, clipped to S: the longest is S to a step of the grid.
        long = math.sqrt(sum(float(t.double().square().sum()) for t in answer.tensors.values()))
        assert long <= CLIP + math.sqrt(size) * grid_step(CLIP)
    longest = max(
        math.sqrt(sum(float(t.double().square().sum()) for t in answer.tensors.values()))
        for _, answer in messages
    )
    assert longest == pytest.approx(CLIP, rel=1e-2)
    # Traffic: float32 for what is trained, and for each client a number of samples.
    assert result.metrics["bytes_down"] == 6 * 4 * size
    assert result.metrics["bytes_up"] <= 6 * (4 * size + 16)


@pytest.mark.parametrize("train", CHOICES)
def test_what_is_frozen_gets_no_noise(train: str) -> None:
    private = Privacy(epsilon=1e4, clip=CLIP, noise=SIGMA, simulated=True)
    quiet, loud = (
        run(experiment(train, rounds=1, **fields)) for fields in ({}, {"privacy": private})
    )
    before = network().state_dict()
    moved = {name for name, t in loud.tensors.items() if not torch.equal(t, before[name])}
    wanted = {name for name, t in quiet.tensors.items() if not torch.equal(t, before[name])}
    assert moved == wanted
    assert moved < before.keys()
    if train == "head":
        # Noise of deviation z S / K = 4 · 0.01 / 6 on each of the 28 numbers of the head; what was
        # learned is at most S. Of 28 draws the deviation is within half of it in all but rare cases
        # (χ² with 28 degrees), and these draws are always the same.
        noise = torch.cat([(loud.tensors[n] - before[n]).flatten() for n in sorted(moved)])
        assert 0.5 < float(noise.double().std()) / (SIGMA * CLIP / 6) < 1.5


@pytest.mark.parametrize("train", CHOICES)
def test_secure_sums_are_of_what_is_trained(train: str) -> None:
    chosen = experiment(train, rounds=2)
    plain, found = run(chosen), run(chosen.but(secure=True))
    assert not any(record["dropped"] for record in found.history)
    assert far(found, plain) < 1e-4
    before = network().state_dict()
    for name, tensor in plain.tensors.items():
        if torch.equal(tensor, before[name]):
            assert torch.equal(found.tensors[name], tensor), name
    _, messages = recorded(chosen.but(rounds=1, secure=True))
    assert all(not torch.is_floating_point(t) for _, a in messages for t in a.tensors.values())
    sent = {f"model/{name}" for name in trained_names(train)}
    assert all({n for n in task.tensors if n.startswith("model/")} == sent for task, _ in messages)
