"""What runs on a CPU runs elsewhere: tried on tensors that pretend to be on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from pretending import pretend
from torch import Tensor, nn

from fedtail import FedtailError, load, run
from fedtail.data.sources import Arrays
from fedtail.losses import LocalLoss
from fedtail.rng import contained
from fedtail.setting import prepare
from fedtail.testing.federation import norm_model, plain_model
from fedtail.training.priors import ClassPrior

NEED_MORE_LOGITS = {"paco", "ride"}
LOSSES = [name for name in LocalLoss.registry if name not in NEED_MORE_LOGITS]


class Left(nn.Module):
    """Adds a tensor that is neither parameter nor buffer, and stays where it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.ones(192)
        self.last = nn.Linear(192, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(x.flatten(1) + self.shift)
        return logits


class Wide(nn.Module):
    """Has a buffer of float64."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.ones(192, dtype=torch.float64))
        self.last = nn.Linear(192, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(x.flatten(1) + self.shift.float())
        return logits


class Forgetting(nn.Module):
    """Drops a buffer that is not saved, when it trains."""

    start: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("start", torch.ones(192), persistent=False)
        self.last = nn.Linear(192, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = x.flatten(1)
        h = h if self.start is None else h + self.start
        if self.training:
            self.start = None
        logits: Tensor = self.last(h)
        return logits


MIXED: list[Callable[[Tensor], Any]] = [
    lambda there: there + torch.ones(3),
    lambda there: torch.cat([there, torch.ones(3)]),
    lambda there: there.index_select(0, torch.zeros(2, dtype=torch.int64)),
    lambda there: torch.ones(3)[there.long()],
    lambda there: torch.ones(3).add_(there),
    lambda there: there.numpy(),
    lambda there: torch.randn(3, generator=torch.Generator(), device=there.device),
    lambda there: nn.functional.cross_entropy(there[None], torch.tensor([1])),
    lambda there: torch.autograd.grad((there * 2).sum(), there, torch.ones(1)),
    lambda there: there.double(),
    lambda there: torch.zeros(1, dtype=torch.float64).to(there.device),
]


@pytest.mark.parametrize("number", range(len(MIXED)))
def test_what_a_gpu_refuses_is_refused(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretend(monkeypatch, "mps"), pytest.raises((RuntimeError, TypeError)):
        MIXED[number](torch.ones(3, device="mps", requires_grad=number == 8))


def test_what_a_gpu_allows_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretend(monkeypatch, "cuda"):
        x = torch.ones(3, device="cuda", requires_grad=True)
        y = (x * torch.tensor(2.0))[torch.tensor([0, 1])]  # a number and indices of the CPU
        torch.autograd.backward(y.square().sum())
        assert x.grad is not None
        assert y.device == x.grad.device == torch.device("cuda", 0)
        assert nn.functional.one_hot(x.long(), 3).is_cuda
        assert y.cpu().is_cpu
        there = torch.vmap(lambda row: row.new_zeros(2) + row.sum())(x[None])
        assert there.device.type == "cuda"


@pytest.mark.parametrize(
    "changed",
    [
        *({"method": {"name": "fedavg", "loss": {"name": name}}} for name in LOSSES),
        *({"method": {"name": "bsm", "prior": {"name": name}}} for name in ClassPrior.registry),
        {"method": {"name": "fedavg", "sampler": {"name": "class_balanced"}}},
        {"method": {"name": "fedavg", "local": {"optimizer": "adam"}}},
        {"method": {"name": "fedavg", "local": {"momentum": 0.9, "clip": 0.5}}},
        {"augment": {"crop": 1, "flip": True, "cutout": 2, "rotate": 10, "auto": True}},
        {"finish": {"name": "closed-form", "head": {"name": "ridge"}}},
        {"data": Arrays(**tiny.arrays())},
        {"privacy": {"epsilon": 50.0}, "finish": "none"},
        {"robust": {"name": "median"}},
        {"secure": True, "finish": "none"},
        {"train": "head"},
        {"train": "lora:r=2"},
        {"head": "cosine"},
        {"precision": "bfloat16"},
        {"deviation": True},
        {"validation": 0.3, "keep": "best"},
        {"together": 4},
    ],
    ids=str,
)
def test_settings_run_elsewhere(changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pretend(monkeypatch, "mps"):
        result = run(tiny.experiment(model=norm_model, device="mps", **{"rounds": 1, **changed}))
    assert all(tensor.is_cpu for tensor in result.tensors.values())


def test_a_run_goes_on_and_predicts_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = tiny.arrays()["x_test"]
    whole = run(tiny.experiment(rounds=2))
    with pretend(monkeypatch, "cuda"):
        run(tiny.experiment(rounds=1, device="cuda"), out=tmp_path)
        found = run(tiny.experiment(rounds=2, device="cuda"), out=tmp_path, resume=True)
        scores = load(tmp_path, network=plain_model, device="cuda").predict_proba(x)
    assert all(torch.equal(t, whole.tensors[n]) for n, t in found.tensors.items())
    assert (scores == load(tmp_path, network=plain_model).predict_proba(x)).all()


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        (Left, "on 'mps' the model does not take a batch of shape .* with register_buffer"),
        (Wide, "the model cannot be put on 'mps': Cannot convert a MPS Tensor to float64"),
    ],
)
def test_a_network_that_does_not_go_there_is_refused(
    network: type[nn.Module], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pretend(monkeypatch, "mps"), pytest.raises(FedtailError, match=sentence):
        prepare(tiny.experiment(model=network, device="mps"))


def test_a_buffer_that_is_not_saved_is_put_back_where_the_network_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = run(tiny.experiment(model=Forgetting, rounds=1))
    with pretend(monkeypatch, "cuda"):
        found = run(tiny.experiment(model=Forgetting, rounds=1, device="cuda"))
    assert all(torch.equal(t, wanted.tensors[n]) for n, t in found.tensors.items())


def test_worker_processes_on_mps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretend(monkeypatch, "mps"), pytest.raises(FedtailError, match="cannot share what is on"):
        prepare(tiny.experiment(device="mps", workers=2))


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_contained_puts_a_gpus_stream_back(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = {"state": torch.tensor([5])}
    monkeypatch.setattr("torch.cuda.device", lambda device: nullcontext())
    monkeypatch.setattr(f"torch.{kind}.get_rng_state", lambda device: stream["state"])
    monkeypatch.setattr(
        f"torch.{kind}.set_rng_state", lambda state, device: stream.update(state=state)
    )
    monkeypatch.setattr(
        f"torch.{kind}.manual_seed", lambda seed: stream.update(state=torch.tensor([seed]))
    )
    with contained(7, kind):
        assert stream["state"].item() == 7
    assert stream["state"].item() == 5
