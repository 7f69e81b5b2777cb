"""Clients that train together give what they give alone, for every method that can."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import tiny
import torch
from method_needs import case
from torch import Tensor, nn
from torch.nn import functional

from fedtail import Augment, Experiment, FedAvg, FedtailError, Method, Payload, action, run
from fedtail.engines import members
from fedtail.engines.block_size import block_size
from fedtail.engines.members import Members
from fedtail.engines.runtime import Runtime
from fedtail.engines.together import can_train_together
from fedtail.engines.trained import Spanned, Trained
from fedtail.folder import RunFolder
from fedtail.forms import Form, Number
from fedtail.methods.fedavg import LocalRun
from fedtail.models import SplitModel
from fedtail.protocol import Task, Tensors
from fedtail.setting import prepare
from fedtail.testing.federation import BARE, DROPOUT, NORM, PLAIN, UNBIASED
from fedtail.totals import Sums
from fedtail.training import ClassBalanced

CLIENTS = 6  # of the tiny federation, of 0 to 12 samples
NAMES = [n for n in Method.registry if Method.registry[n].__module__.startswith("fedtail.")]
TOGETHER = [n for n in NAMES if can_train_together(Method.registry[n])]
AMPLIFIES = {"feddf": {"distil_steps": 0}, "fedic": {"distil_steps": 0}}
"""Adam takes a step of the same size along a gradient that is nothing but rounding."""
TOLERANCE = 1e-6  # over the whole run; float32 sums of other lengths round differently


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the clients of blocks that were trained together."""
    found: list[int] = []
    train = Members.trained

    def trained(self: Members, form: Form | None = None) -> Trained:
        made = train(self, form)
        found.append(len(self.jobs))
        return made

    monkeypatch.setattr(Members, "trained", trained)
    return found


def apart(one: Tensors, other: Tensors) -> float:
    """Return the largest difference between two models, in units of their largest weight."""
    assert one.keys() == other.keys()
    off = max(float((one[n].double() - other[n].double()).abs().max()) for n in one)
    return off / max(float(t.abs().max()) for t in one.values() if t.is_floating_point())


def both(experiment: Experiment, counted: list[int]) -> float:
    """Run alone and together, and return how far the models are from each other."""
    alone = run(experiment.but(together=0))
    assert not counted
    joint = run(experiment.but(together=CLIENTS))
    assert max(counted) == CLIENTS
    pairs = list(zip(alone.history, joint.history, strict=True))
    assert all(a["clients"] == b["clients"] and a["traffic"] == b["traffic"] for a, b in pairs)
    return apart(alone.tensors, joint.tensors)


@pytest.mark.parametrize("model", [PLAIN, UNBIASED, NORM, BARE])
@pytest.mark.parametrize("name", TOGETHER)
def test_a_method_gives_what_it_gives_alone(name: str, model: str, counted: list[int]) -> None:
    experiment = case(name).on(model).experiment(per_round=CLIENTS)
    # A rate at which none diverges: LDAM's logits are thirty times those of others.
    method = cast(FedAvg[Any], experiment.method)
    method = method.but(local=method.local.but(lr=0.01), **AMPLIFIES.get(name, {}))
    assert both(experiment.but(method=method), counted) < TOLERANCE


VARIANTS: dict[str, dict[str, Any]] = {
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "decay": {"weight_decay": 0.1},
    "clip": {"clip": 0.05},
    "all": {"momentum": 0.5, "weight_decay": 0.01, "clip": 0.1},
    "part of an epoch": {"epochs": 1.4},
    "steps": {"steps": 5},
    "batches of one": {"batch_size": 1},
}


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model, nn.Flatten])
@pytest.mark.parametrize("name", VARIANTS)
def test_every_way_to_train(name: str, model: Any, counted: list[int]) -> None:
    local = tiny.quick(**VARIANTS[name])
    linear = nn.Sequential(nn.Flatten(), nn.Linear(192, tiny.CLASSES))
    chosen = (lambda: linear) if model is nn.Flatten else model
    experiment = tiny.experiment(FedAvg(local=local), chosen, per_round=CLIENTS)
    assert both(experiment, counted) < TOLERANCE


@pytest.mark.parametrize("buffers", ["average", "local", "first"])
def test_statistics_of_batch_norm(buffers: Any, counted: list[int]) -> None:
    method: FedAvg[Any] = FedAvg(local=tiny.quick(), buffers=buffers)
    experiment = tiny.experiment(method, tiny.norm_model, per_round=CLIENTS)
    assert both(experiment, counted) < TOLERANCE


def test_groups_of_channels(counted: list[int]) -> None:
    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, tiny.CLASSES)
        )

    assert both(tiny.experiment(model=model, per_round=CLIENTS), counted) < TOLERANCE


@pytest.mark.parametrize("per_batch", [False, True])
def test_a_client_draws_what_it_draws_alone(per_batch: bool, counted: list[int]) -> None:
    method: FedAvg[Any] = FedAvg(local=tiny.quick(epochs=2), sampler=ClassBalanced())
    augment = Augment(crop=1, flip=True, cutout=2, per_batch=per_batch)
    experiment = tiny.experiment(method, augment=augment, per_round=CLIENTS)
    assert both(experiment, counted) < TOLERANCE


def test_inputs_that_are_not_kept(counted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "KEPT_INPUTS", 0)
    assert both(tiny.experiment(per_round=CLIENTS), counted) < TOLERANCE


@pytest.mark.parametrize("loss", ["cross_entropy", "balanced_softmax", "paco"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("bias", [True, False])
def test_wide_classifiers_are_only_added_up(
    bias: bool, momentum: float, loss: str, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    add = Spanned.add_to

    def add_to(self: Spanned, total: Sums, good: Sequence[bool]) -> None:
        used.append(sum(good))
        add(self, total, good)

    monkeypatch.setattr(Spanned, "add_to", add_to)
    local = tiny.quick(momentum=momentum, nesterov=momentum > 0, epochs=2)
    method: FedAvg[Any] = FedAvg(local=local, loss=loss, sampler=ClassBalanced())

    def model() -> nn.Module:  # 192 features and no client with more than 12 samples
        return nn.Sequential(nn.Flatten(), nn.Linear(192, tiny.CLASSES, bias=bias))

    assert both(tiny.experiment(method, model, per_round=CLIENTS), counted) < TOLERANCE
    assert used == [CLIENTS] * 3  # in each round


def test_tied_weights(counted: list[int]) -> None:
    def model() -> nn.Module:
        made = nn.Sequential(
            nn.Flatten(),
            nn.Linear(192, 4),
            nn.Linear(4, 4),
            nn.Linear(4, 4),
            nn.Linear(4, tiny.CLASSES),
        )
        made[3].weight = made[2].weight
        return made

    assert both(tiny.experiment(model=model, per_round=CLIENTS), counted) < TOLERANCE


def test_a_robust_mean_sees_every_update(counted: list[int]) -> None:
    experiment = tiny.experiment(per_round=CLIENTS, robust="median")
    assert both(experiment, counted) < TOLERANCE


class Own(FedAvg):  # type: ignore[type-arg]
    """A method of somebody's own, which may do anything in a hook."""

    name = "own"

    def batch_loss(self, run: LocalRun, x: Tensor, y: Tensor) -> Tensor:
        assert x.ndim == 4
        return super().batch_loss(run, x, y)


def looks(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy that looks at its numbers."""
    assert float(logits.detach().abs().max()) < 1e6
    return functional.cross_entropy(logits, y)


@pytest.mark.parametrize(
    ("method", "model"),
    [
        (Own(local=tiny.quick()), PLAIN),
        (FedAvg(local=tiny.quick(optimizer="adam", lr=0.01)), PLAIN),
        (FedAvg(local=tiny.quick()), DROPOUT),
        (FedAvg(local=tiny.quick(), loss=looks), PLAIN),
    ],
)
def test_what_cannot_be_done_together_is_done_alone(
    method: Any, model: str, counted: list[int]
) -> None:
    model_like = tiny.plain_model if model == PLAIN else tiny.dropout_model
    experiment = tiny.experiment(method, model_like, per_round=CLIENTS)
    alone, joint = run(experiment.but(together=0)), run(experiment.but(together=CLIENTS))
    assert not counted
    assert apart(alone.tensors, joint.tensors) == 0


def test_a_number_that_cannot_be_had_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="fedtail"):
        run(tiny.experiment(model=tiny.dropout_model, together=4))
    assert "together = 4 is not possible, and clients train one by one: the network" in caplog.text


@pytest.mark.parametrize(
    ("sizes", "linear", "found"),
    [
        ([6] * 6, False, 50),  # all six have a batch at the same time
        ([15, 6, 6, 6, 6, 6], False, 0),  # 6 · 7.5 / 15 = 3 have, on average
        ([15, 6, 6, 6, 6, 6], True, 50),  # which is good enough for products of matrices
    ],
)
def test_clients_of_unequal_size_are_not_worth_it(
    sizes: list[int], linear: bool, found: int
) -> None:
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    parts = [range(a, b) for a, b in pairwise(ends)]
    data = tiny.federation(
        [[1.0]] * ends[-1], [0, 1] * (ends[-1] // 2) + [0] * (ends[-1] % 2), parts
    )
    layers = [nn.Linear(1, 2)] if linear else [nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 2)]
    model = SplitModel(nn.Sequential(*layers))
    method: FedAvg[Any] = FedAvg(local=tiny.quick())
    runtime = Runtime(data, method, model, model, 0, torch.device("cpu"), None)
    assert block_size("auto", runtime, len(sizes)) == (found, [])


@pytest.mark.parametrize("value", [-1, "some", True, 2.5])
def test_what_is_no_number_of_clients(value: Any) -> None:
    with pytest.raises(FedtailError, match="is no number of clients: give auto, 0, 1, 2"):
        tiny.experiment(together=value)


def test_the_number_is_written_down_and_read_again(tmp_path: Path, counted: list[int]) -> None:
    whole = tiny.experiment(per_round=CLIENTS, together=3)
    reference = run(whole)
    assert set(counted) == {2, 3}  # the trial, and the blocks
    run(whole.but(rounds=2), out=tmp_path / "run")
    assert RunFolder(tmp_path / "run").together(0) == 3
    again = run(whole, out=tmp_path / "run", resume=True)
    assert apart(reference.tensors, again.tensors) == 0


@pytest.mark.parametrize("together", [3, 6])
def test_workers_change_no_bit(together: int) -> None:
    experiment = tiny.experiment(per_round=CLIENTS, together=together)
    assert apart(run(experiment).tensors, run(experiment.but(workers=2)).tensors) == 0


class Diverging(FedAvg):  # type: ignore[type-arg]
    """Client 2 gets a loss without a number, and client 4 raises."""

    name = "diverging"
    raising: bool = False

    def at_start(self, payload: Any, client: Any, context: Any) -> Tensor:
        if self.raising and client.id == 4:
            raise ValueError("no such luck")
        return torch.tensor(float("nan") if client.id == 2 else 1.0)

    def local_loss(self, model: Any, x: Tensor, y: Tensor, context: Any, aux: Any) -> Tensor:
        scaled: Tensor = super().local_loss(model, x, y, context, aux) * aux
        return scaled


def test_a_client_without_a_number_is_left_out_alone(counted: list[int]) -> None:
    experiment = tiny.experiment(Diverging(local=tiny.quick()), per_round=CLIENTS)
    assert both(experiment, counted) < TOLERANCE
    found = run(experiment.but(together=CLIENTS)).history[0]["dropped"]
    assert [(d["client"], d["reason"].startswith("sent NaN")) for d in found] == [(2, True)]


def test_a_client_that_raises_does_so_by_itself() -> None:
    method = Diverging(local=tiny.quick(), raising=True)
    experiment = tiny.experiment(method, per_round=CLIENTS, together=CLIENTS)
    with pytest.raises(ValueError, match="no such luck") as error:
        run(experiment)
    assert any("client 4" in note for note in error.value.__notes__)
    kept = run(experiment.but(on_client_error="drop")).history[0]
    assert [d["client"] for d in kept["dropped"]] == [2, 4]


class Masked(nn.Module):
    """Drops the same pixels for many clients at once, and others for each alone."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(192, tiny.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        seen: Tensor = self.last(functional.dropout(x.flatten(1), 0.5, self.training))
        return seen


class Flaky(FedAvg):  # type: ignore[type-arg]
    """FedAvg, of which some clients raise in round 1."""

    failing: tuple[int, ...] = ()

    def at_start(self, payload: Any, client: Any, context: Any) -> None:
        if client.round == 1 and client.id in self.failing:
            raise RuntimeError("gone")


@pytest.mark.parametrize("failures", [0, 1, 2, 4])
def test_no_block_is_trained_before_the_trial_of_one(failures: int, counted: list[int]) -> None:
    # The largest clients, which are tried first, do not answer in round 1. Then others are tried,
    # or none, and all train one by one in that round; the trial is held in the next.
    size = prepare(tiny.experiment()).federation.size
    failing = sorted(range(CLIENTS), key=lambda k: -size(k))[:failures]
    method = Flaky(failing=tuple(failing), local=tiny.quick())
    chosen = tiny.experiment(method, Masked, per_round=CLIENTS, on_client_error="drop")
    alone = run(chosen.but(together=0))
    joint = run(chosen.but(together=CLIENTS))
    assert joint.digest == alone.digest
    assert counted == [2]  # the trial, which saw the difference


class TwoActions(FedAvg):  # type: ignore[type-arg]
    """FedAvg in which one client is asked for something else, with the same payload."""

    @action
    def look(self, payload: Payload, client: Any) -> Payload:
        return Payload({}, {"seen": 1.0})

    def look_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        return Form().numbers(seen=Number(low=0))

    def round(self, state: Any, server: Any) -> Any:
        sent = self.broadcast(state, server)
        found = yield [Task(k, "look" if k == 5 else "train", sent) for k in server.clients]
        return self.aggregate(state, found, server)


@pytest.mark.slow
def test_two_actions_with_one_payload_are_the_same_in_worker_processes() -> None:
    chosen = tiny.experiment(TwoActions(local=tiny.quick()), tiny.plain_model, together=CLIENTS)
    assert run(chosen.but(workers=2)).digest == run(chosen.but(workers=0)).digest
