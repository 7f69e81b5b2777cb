"""Runs with differential privacy: what they promise, spend, and refuse."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from rich.console import Console
from summing import far

from fedtail import CReFF, FedAvg, FedtailError, GBMEp, Method, Privacy, RedGrape, run
from fedtail.callbacks import Callback, Progress, Record
from fedtail.errors import RunStopped
from fedtail.forms import Form, Mean
from fedtail.models import SplitModel
from fedtail.privacy.accounting import Release, spent
from fedtail.protocol import Payload
from fedtail.training import GlobalPrior, PrivateProxyPrior, ProxyPrior


def everybody(method: Method[Any] | None = None, **privacy: Any) -> Any:
    """Return an experiment in which all six clients take part: no sampling, exact accounting."""
    privacy = {"simulated": True, **privacy}
    return tiny.experiment(method, tiny.norm_model, per_round=6, privacy=Privacy(**privacy))


@pytest.mark.parametrize("epsilon", [None, math.inf])
def test_an_infinite_budget_is_no_privacy_bit_for_bit(epsilon: float | None) -> None:
    plain = run(tiny.experiment(model=tiny.norm_model))
    found = run(tiny.experiment(model=tiny.norm_model, privacy=Privacy(epsilon=epsilon)))
    assert found.digest == plain.digest
    assert "privacy" not in found.metrics


def test_the_noise_is_solved_for_and_all_rounds_fit() -> None:
    found = run(everybody(epsilon=8.0))
    assert len(found.history) == 3
    told = [record["privacy"] for record in found.history]
    # S = 1, and T releases with z: exactly the budget after the last.
    for number, entry in enumerate(told, start=1):
        expected = spent({Release(6, 6): number}, entry["sigma"], entry["delta"])
        assert entry["epsilon"] == pytest.approx(expected, rel=1e-9)
        assert (entry["budget"], entry["delta"]) == (8.0, 1e-5)
    assert told[-1]["epsilon"] == pytest.approx(8.0, rel=1e-4)
    assert told[-1]["epsilon"] <= 8.0


def test_the_run_stops_at_the_budget_and_ships_its_model(tmp_path: Path) -> None:
    # Noise for which two rounds of three fit.
    two = spent({Release(6, 6): 2}, 4.0, 1e-5)
    experiment = everybody(epsilon=two * 1.0001, noise=4.0)
    found = run(experiment, out=tmp_path / "run")
    assert len(found.history) == 2
    assert found.metrics["accuracy"] is not None
    assert (tmp_path / "run" / "model.safetensors").exists()
    # Killed before the model was written: the resumed run knows that it has nothing left.
    (tmp_path / "run" / "model.safetensors").unlink()
    again = run(experiment, out=tmp_path / "run", resume=True)
    assert len(again.history) == 2
    assert again.digest == found.digest


def test_too_little_noise_for_one_round_is_refused() -> None:
    with pytest.raises(FedtailError, match="first round would spend more than epsilon"):
        run(everybody(epsilon=0.1, noise=0.5))


class Stop(Exception):
    """An interruption."""


class StopIn(Callback):
    """Interrupts the run when a round is recorded, before its checkpoint."""

    def __init__(self, round: int) -> None:
        self.round = round

    def on_round(self, record: Record) -> None:
        if record["round"] == self.round:
            raise Stop


def test_a_resumed_run_goes_on_with_what_was_spent(tmp_path: Path) -> None:
    experiment = everybody(epsilon=8.0)
    whole = run(experiment)
    with pytest.raises(Stop):
        run(experiment, out=tmp_path / "run", callbacks=[StopIn(2)])
    found = run(experiment, out=tmp_path / "run", resume=True)
    assert found.digest == whole.digest
    assert [r["privacy"] for r in found.history] == [r["privacy"] for r in whole.history]


def test_a_round_that_is_done_again_with_secret_noise_costs_twice(tmp_path: Path) -> None:
    # Round 2 is in metrics.jsonl and its checkpoint is gone: another noisy sum is released.
    experiment = everybody(epsilon=8.0, simulated=False, noise=8.0)
    whole = run(experiment, out=tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoint").glob("manifest-*3.json"):
        path.unlink()
    found = run(experiment, out=tmp_path / "run", resume=True)
    sigma = whole.metrics["privacy"]["sigma"]
    for result, releases in ((whole, 3), (found, 4)):
        expected = spent({Release(6, 6): releases}, sigma, 1e-5)
        assert result.metrics["privacy"]["epsilon"] == pytest.approx(expected)


@pytest.mark.parametrize("every", [1, 5])
def test_what_was_released_is_paid_however_often_a_run_is_killed(
    tmp_path: Path, every: int
) -> None:
    # Cohorts of two, drawn anew at each start: stand-ins for the old ones are not these clients.
    privacy = Privacy(epsilon=50.0, noise=8.0)
    experiment = tiny.experiment(per_round=2, rounds=4, privacy=privacy, checkpoint_every=every)
    for resume, stop in ((False, 3), (True, 3), (True, 2 if every == 5 else 4)):
        with pytest.raises(Stop):
            run(experiment, out=tmp_path / "run", resume=resume, callbacks=[StopIn(stop)])
    told = run(experiment, out=tmp_path / "run", resume=True).metrics["privacy"]
    # Rounds 1 to 3, 3, 3 and 4, and 4; without a checkpoint 1 to 3, 1 to 3, 1 and 2, and 1 to 4.
    releases = 7 if every == 1 else 12
    lines = (tmp_path / "run" / "privacy.jsonl").read_text().splitlines()
    assert len(lines) == releases
    assert told["epsilon"] == pytest.approx(spent({Release(2, 6): releases}, 8.0, 1e-5))
    # Nobody knows any more who was asked before: it may have been one client each time.
    least = spent({Release(1, 1): releases - 4 + 1}, 8.0, 1e-5)
    assert least * (1 - 1e-9) <= told["epsilon_if_known"]
    assert told["epsilon_if_known"] <= spent({Release(1, 1): releases}, 8.0, 1e-5) * (1 + 1e-9)


def test_a_budget_that_cannot_be_counted_is_refused(tmp_path: Path) -> None:
    experiment = everybody(epsilon=8.0)
    run(experiment, out=tmp_path / "run")
    path = tmp_path / "run" / "privacy.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], lines[2]]))
    with pytest.raises(FedtailError, match="what the rounds so far spent of the privacy budget is"):
        run(experiment, out=tmp_path / "run", resume=True)
    assert path.read_text() == "".join([lines[0], lines[2]])


def test_noise_that_cannot_be_drawn_is_refused_before_the_run(tmp_path: Path) -> None:
    for noise, advice in ((1e14, "privacy.noise smaller"), (None, "privacy.epsilon larger")):
        with pytest.raises(FedtailError, match=f"more than can be drawn exactly: make {advice}"):
            run(everybody(epsilon=1e-12, delta=1e-15, noise=noise), out=tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_nobody_is_named_where_cohorts_are_secret() -> None:
    experiment = tiny.experiment(
        FedAvg(local={"lr": 1e30}), per_round=3, privacy=Privacy(epsilon=8.0)
    )
    with pytest.raises(RunStopped, match=r"up to round 3 \(the first, of a client: sent "):
        run(experiment)


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"model/3.bias": torch.full((4,), 1e30)}, "sent model/3.bias with numbers out of range"),
        ({"samples": 123_456}, "sent a number as samples that is not what is declared"),
    ],
)
def test_numbers_of_an_update_that_is_refused_are_not_told(
    wrong: dict[str, Any], said: str
) -> None:
    class Wrong(FedAvg[Any]):
        def reply(self, run: Any) -> Payload:
            right = super().reply(run)
            return Payload(
                {name: wrong.get(name, t) for name, t in right.tensors.items()},
                {name: wrong.get(name, value) for name, value in right.scalars.items()},
            )

    experiment = tiny.experiment(Wrong(), rounds=1, privacy=Privacy(epsilon=8.0))
    with pytest.raises(RunStopped) as stopped:
        run(experiment)
    assert str(stopped.value).endswith(f"of a client: {said})")


def test_without_noise_worth_mentioning_it_is_the_equal_average_of_clipped_changes() -> None:
    # A huge budget, and a clip that nothing reaches: FedAvg whose clients weigh the same, up to the
    # grid of 2^-16 on which changes lie.
    class Equal(FedAvg[Any]):
        def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
            whole = super().train_form(task, model, classes)
            return replace(whole, how=dict.fromkeys(whole.how, Mean(by="")))

    found = run(everybody(epsilon=1e30, clip=16.0, noise=1e-12))
    expected = run(everybody(Equal(local=tiny.quick()), epsilon=math.inf))
    assert far(found, expected) < 2e-3


def test_central_and_local_noise_end_up_in_the_model() -> None:
    # The same σ: in the mean over m clients it is σ / m (central) or σ / √m (local).
    deviations = {}
    for kind in ("central", "local"):
        noisy, calm = (
            run(everybody(epsilon=1e30, clip=1e-6, noise=noise, model=kind).but(rounds=1))
            for noise in (1e6, 1e-9)
        )
        apart = [
            (noisy.tensors[n] - t).flatten()
            for n, t in calm.tensors.items()
            if n.endswith("weight")
        ]
        deviations[kind] = float(torch.cat(apart).std())
        n = sum(len(t) for t in apart)
    sigma = 1.0
    for kind, expected in (("central", sigma / 6), ("local", sigma / math.sqrt(6))):
        assert abs(deviations[kind] - expected) < 3 * expected / math.sqrt(2 * n)


def test_in_the_local_model_a_client_pays_for_the_rounds_it_is_in() -> None:
    found = run(tiny.experiment(per_round=2, privacy=Privacy(epsilon=8.0, model="local")))
    often = max(sum(k in r["clients"] for r in found.history) for k in range(6))
    entry = found.metrics["privacy"]
    expected = spent({Release(1, 1): often}, entry["sigma"], 1e-5)
    assert entry["epsilon"] == pytest.approx(expected, rel=1e-9)
    assert entry["epsilon"] == pytest.approx(8.0, rel=1e-4)


@pytest.mark.parametrize(
    "method",
    [
        CReFF(local=tiny.quick(), features=5, match_steps=5, head_epochs=5),
        RedGrape(local=tiny.quick(), per_class=2),
        FedAvg(local=tiny.quick(), prior=GlobalPrior(), loss="balanced_softmax"),
        FedAvg(local=tiny.quick(), prior=ProxyPrior(), loss="balanced_softmax"),
        FedAvg(local=tiny.quick(), prior=PrivateProxyPrior(), loss="balanced_softmax"),
    ],
    ids=["creff", "redgrape", "global", "proxy", "private_proxy"],
)
def test_every_summable_payload_takes_noise(method: Method[Any]) -> None:
    found = run(everybody(method, epsilon=20.0))
    assert not any(record["dropped"] for record in found.history)
    assert all(bool(torch.isfinite(t).all()) for t in found.tensors.values())
    assert found.metrics["privacy"]["epsilon"] <= 20.0
    # A preliminary exchange is a release as well, and was planned for.
    assert len(found.history) == 3


@pytest.mark.parametrize("told", [{}, {"quantile": 0.5}, {"model": "local"}, {"clip": 1e-3}])
def test_secure_and_private_together(told: dict[str, Any]) -> None:
    # Clipped updates are whole steps of a grid, masked or not: the same sums to the bit.
    experiment = everybody(epsilon=8.0, **told).but(rounds=2, workers=0)
    assert run(experiment.but(secure=True)).digest == run(experiment).digest


def test_secret_noise_cannot_be_repeated() -> None:
    experiment = everybody(epsilon=8.0, simulated=False).but(rounds=1)
    assert run(experiment).digest != run(experiment).digest
    seeded = everybody(epsilon=8.0).but(rounds=1)
    assert run(seeded).digest == run(seeded).digest


def test_methods_that_the_accountant_does_not_cover_are_refused() -> None:
    with pytest.raises(FedtailError, match="asks clients again after training"):
        run(everybody(Method.model_validate("ccvr"), epsilon=8.0))
    with pytest.raises(FedtailError, match=r"cannot be made differentially .*steps"):
        everybody(Method.model_validate("fednova"), epsilon=8.0)
    with pytest.raises(FedtailError, match="draws its cohorts in a way of its own"):
        run(everybody(GBMEp(local=tiny.quick()), epsilon=8.0))


def test_the_budget_is_shown_as_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=300, force_terminal=False)
    run(everybody(epsilon=8.0), callbacks=[Progress(console)])
    assert "epsilon 8 of 8" in capsys.readouterr().out


def test_a_private_run_does_not_go_on_to_more_rounds(tmp_path: Path) -> None:
    # Its noise was solved for two rounds; a third one would break what was promised.
    chosen = tiny.experiment(rounds=2, per_round=6, privacy={"epsilon": 8.0})
    run(chosen, out=tmp_path / "run")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    with pytest.raises(FedtailError, match="was chosen for 2 rounds, and another number breaks"):
        run(chosen.but(rounds=3), out=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
