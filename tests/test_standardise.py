"""Constants of normalisation: sums over clients, told with every task, kept with the model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from fedtail import Arrays, Experiment, FedAvg, FedtailError, Natural, Privacy, RunStopped, run
from fedtail.engines.executor import Done, Job
from fedtail.result import Result
from fedtail.setting import prepare
from fedtail.testing.executors import Spoiler
from fedtail.testing.executors import lost as lost_answer

RNG = np.random.default_rng(0)
LABELS = np.arange(60) % 3
KINDS: dict[str, np.ndarray] = {
    "images": RNG.integers(0, 256, (60, 6, 5, 3)).astype(np.uint8),
    "vectors": (RNG.normal(size=(60, 4)) * [1, 10, 1e4, 1e-3] + [0, 5, 1e6, 3]).astype(np.float32),
    "whole numbers": RNG.integers(-5, 900, (60, 4)),
    "windows": RNG.normal(3, 2, (60, 7, 2)).astype(np.float32),
}


def experiment(x: np.ndarray, **fields: Any) -> Experiment:
    normalised = {key: fields.pop(key) for key in ("normalisation", "mean", "std") if key in fields}
    owner = np.arange(len(x)) % 4
    data = Arrays(x, LABELS, x[:9], LABELS[:9], client_train=owner, **normalised)
    chosen = {"rounds": 2, "device": "cpu", "method": FedAvg(local=tiny.quick()), **fields}
    return Experiment(data=data, model="mlp", **chosen)


def constants(result: Result) -> tuple[np.ndarray, np.ndarray]:
    return np.array(result.model.file.mean), np.array(result.model.file.std)


def test_two_clients_by_hand() -> None:
    # Client 0 has (0, 2), client 1 has (4, 10): mean 4, variance (16 + 4 + 0 + 36) / 4 = 14.
    x = np.array([[0.0], [2.0], [4.0], [10.0]], np.float32)
    y = np.array([0, 1, 0, 1])
    data = Arrays(x, y, x, y, client_train=np.array([0, 0, 1, 1]))
    result = run(Experiment(data=data, model="mlp", rounds=1, device="cpu"))
    mean, std = constants(result)
    assert mean == pytest.approx([4.0])
    assert std == pytest.approx([math.sqrt(14)])


@pytest.mark.parametrize("kind", ["standard", "global"])
@pytest.mark.parametrize("name", KINDS)
def test_sums_over_clients_are_the_statistics_of_all_data(name: str, kind: str) -> None:
    x = KINDS[name]
    mean, std = constants(run(experiment(x, normalisation=kind, rounds=1)))
    values = x.astype(np.float64) / (255 if x.dtype == np.uint8 else 1)
    axes: Any = tuple(range(x.ndim - 1)) if kind == "standard" else None
    np.testing.assert_allclose(mean, np.atleast_1d(values.mean(axes)), rtol=1e-6)
    np.testing.assert_allclose(std, np.atleast_1d(values.std(axes)), rtol=1e-6)


def test_each_sensor_of_a_window_has_constants_of_its_own() -> None:
    # Metres and degrees: with one pair for both, the first would be next to nothing.
    x = (RNG.normal(size=(60, 7, 2)) * [1, 300] + [0, 50]).astype(np.float32)
    result = run(experiment(x, rounds=1))
    mean, std = constants(result)
    given = torch.from_numpy(x)
    found = prepare(experiment(x, mean=tuple(mean), std=tuple(std))).federation.ready(given)
    assert found.mean((0, 1)).abs().max() < 1e-5
    assert found.std((0, 1)).tolist() == pytest.approx([1, 1], abs=0.01)
    # The shipped model does the same, and own constants are one a sensor, too.
    assert result.model.score(x[:9], LABELS[:9]) == result.metrics["accuracy"]
    with pytest.raises(FedtailError, match=r"data\.mean has 7 numbers, but inputs have 2 channels"):
        run(experiment(x, mean=(0.0,) * 7, std=(1.0,) * 7))


def test_a_constant_feature_is_only_shifted() -> None:
    x = np.tile(np.array([[7.0, 1.0]], np.float32), (60, 1))
    x[::2, 1] = 3
    mean, std = constants(run(experiment(x, rounds=1)))
    assert mean == pytest.approx([7, 2])
    assert std == pytest.approx([1, 1])


def test_asking_gives_the_bits_of_telling_and_costs_what_the_record_says() -> None:
    asked = run(experiment(KINDS["vectors"]))
    mean, std = (tuple(c.tolist()) for c in constants(asked))
    told = run(experiment(KINDS["vectors"], mean=mean, std=std))
    assert asked.digest == told.digest
    first, second = (
        {key: asked.history[i][key] - told.history[i][key] for key in ("bytes_up", "bytes_down")}
        for i in (0, 1)
    )
    # Four clients and channels. Up: a count, four sums and four squares of 8 bytes. Down: shift and
    # scale of the sums (8 bytes), and with each task a mean and a deviation (4 bytes).
    assert first == {"bytes_up": 4 * 9 * 8, "bytes_down": 4 * (8 * 8 + 8 * 4)}
    assert second == {"bytes_up": 0, "bytes_down": 4 * 8 * 4}


def test_workers_give_the_same_bits_and_scores() -> None:
    alone, pool = run(experiment(KINDS["images"])), run(experiment(KINDS["images"], workers=2))
    assert alone.digest == pool.digest
    assert alone.metrics["loss"] == pool.metrics["loss"]


def test_what_only_the_clients_hold_decides() -> None:
    # The tail leaves two of the three classes fewer samples, which move the mean.
    x = np.repeat(LABELS[:, None], 2, 1).astype(np.float32)
    chosen = experiment(x, tail={"name": "step", "imbalance": 5}, rounds=1)
    setting = prepare(chosen)
    held = np.concatenate(setting.split.parts)
    assert len(held) < len(x)
    assert constants(run(chosen))[0] == pytest.approx(x[held].mean(0))


def test_secure_sums_are_good_enough() -> None:
    result = run(experiment(KINDS["vectors"], secure=True, rounds=1))
    x = KINDS["vectors"].astype(np.float64)
    mean, std = constants(result)
    np.testing.assert_allclose((mean - x.mean(0)) / x.std(0), 0, atol=1e-4)
    np.testing.assert_allclose(std / x.std(0), 1, rtol=1e-3)


def test_differential_privacy_does_not_cover_it() -> None:
    with pytest.raises(FedtailError, match=r"give data\.mean and data\.std"):
        run(experiment(KINDS["vectors"], privacy=Privacy(epsilon=8.0)))


def spoiled(job: Job) -> bool:
    return job.task.action == "input_sums" and job.task.client == 0


@pytest.mark.parametrize(
    ("name", "value"), [("sums/count", 1e6), ("sums/square", -1.0), ("sums/sum", math.nan)]
)
def test_a_client_that_lies_is_left_out_of_the_sums(name: str, value: float) -> None:
    x = KINDS["vectors"]

    def spoil(done: Done) -> Done:
        assert done.payload is not None
        tensors = {**done.payload.tensors}
        tensors[name] = torch.full_like(tensors[name], value)
        return Done(type(done.payload)(tensors, done.payload.scalars), done.state)

    chosen = experiment(x, rounds=1, partition=Natural())
    result = tiny.run_with(chosen, lambda r: Spoiler(r, spoil=spoil, which=spoiled))
    others = x[np.arange(60) % 4 != 0].astype(np.float64)
    np.testing.assert_allclose(constants(result)[0], others.mean(0), rtol=1e-6)


def test_a_run_without_any_sums_stops() -> None:
    def which(job: Job) -> bool:
        return job.task.action == "input_sums"

    chosen = experiment(KINDS["vectors"])
    with pytest.raises(RunStopped, match="no client reported the sums of its inputs"):
        tiny.run_with(chosen, lambda r: Spoiler(r, spoil=lost_answer, which=which))


@pytest.mark.parametrize("lost", [False, True])
def test_a_resumed_run_normalises_as_it_began(lost: bool, tmp_path: Path) -> None:
    chosen = experiment(KINDS["vectors"], rounds=3)
    whole = run(chosen, out=tmp_path / "whole")
    (tmp_path / "whole" / "model.safetensors").unlink()
    last = json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[-1])
    manifests = sorted((tmp_path / "whole" / "checkpoint").glob("*.json"))
    assert last["round"] == 3 and manifests
    manifests[-1].unlink()  # goes on from round 2
    if lost:
        (tmp_path / "whole" / "model.json").unlink()
    again = run(chosen, out=tmp_path / "whole", resume=True)
    assert again.digest == whole.digest
    assert again.model.file == whole.model.file
    assert (tmp_path / "whole" / "model.json").exists()


def test_the_unit_of_a_feature_makes_no_difference() -> None:
    x = KINDS["vectors"]
    mean, std = constants(run(experiment(x, rounds=1)))
    small = constants(run(experiment((x * 1e-12).astype(np.float32), rounds=1)))
    np.testing.assert_allclose(small[0], mean * 1e-12, rtol=1e-5)
    np.testing.assert_allclose(small[1], std * 1e-12, rtol=1e-5)


def test_what_does_not_vary_is_shifted_only_however_large_or_small() -> None:
    x = np.tile(np.array([0.0, 1e-12, 0.1, 1e6 + 0.1], np.float32), (60, 1))
    mean, std = constants(run(experiment(x, rounds=1)))
    np.testing.assert_allclose(mean, x[0], rtol=1e-6)
    assert std.tolist() == [1.0] * 4
