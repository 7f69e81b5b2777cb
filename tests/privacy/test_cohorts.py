"""Who is asked in a private run, and that nobody can read it anywhere."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from fedtail import SLAC, FedtailError, Privacy, run
from fedtail.privacy import server_side
from fedtail.privacy.accounting import Release, spent
from fedtail.privacy.budget import planned
from fedtail.privacy.cohorts import Cohorts
from fedtail.privacy.noise import RandomBytes, hidden


def test_a_secret_cohort_is_the_same_within_a_run_and_another_in_the_next() -> None:
    one, other = Cohorts(1000, 10), Cohorts(1000, 10)
    drawn = [one.asked(round) for round in range(1, 6)]
    assert drawn == [one.asked(round) for round in range(1, 6)]
    assert drawn != [other.asked(round) for round in range(1, 6)]
    assert all(len(set(cohort)) == 10 and sorted(cohort) == cohort for cohort in drawn)


def test_a_simulated_cohort_repeats() -> None:
    one, other = (Cohorts(50, 5, seed=3) for _ in range(2))
    assert [one.asked(r) for r in range(1, 9)] == [other.asked(r) for r in range(1, 9)]
    assert one.asked(1) != one.asked(2)


def test_poisson_draws_every_client_on_its_own() -> None:
    # 4000 rounds of 50 clients with q = 0.1: the size is binomial, mean 5 and variance 4.5.
    cohorts = Cohorts(50, 5, poisson=True, seed=0)
    sizes = [len(cohorts.drawn(r)) for r in range(1, 4001)]
    mean = sum(sizes) / len(sizes)
    variance = sum((s - mean) ** 2 for s in sizes) / len(sizes)
    assert abs(mean - 5) < 4 * math.sqrt(4.5 / 4000)
    assert abs(variance - 4.5) < 4 * 4.5 * math.sqrt(2 / 4000)
    # 0.9^50 = 0.00515 of the rounds draw nobody: somebody is asked, and does not count.
    void = [r for r in range(1, 4001) if cohorts.void(r)]
    assert 5 < len(void) < 45
    assert all(cohorts.asked(r) == [0] and not cohorts.drawn(r) for r in void)


def private(**privacy: Any) -> Any:
    return tiny.experiment(per_round=3, privacy=Privacy(epsilon=8.0, **privacy))


def test_nothing_that_a_run_leaves_says_who_was_asked(tmp_path: Path) -> None:
    found = run(private(), out=tmp_path / "run")
    for record in found.history:
        assert record["clients"] is None and record["answered"] == 3
        assert "traffic" not in record
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert all('"traffic"' not in line for line in lines)
    spent_lines = (tmp_path / "run" / "privacy.jsonl").read_text().splitlines()
    told = [{"round": r, "attempt": 1, "drawn": True, "asked": 3, "most": 1} for r in (1, 2, 3)]
    assert [json.loads(line) for line in spent_lines] == told
    assert json.loads(lines[0])["privacy"]["simulated"] is False
    # The budget is that of three of six, drawn by chance.
    entry = found.metrics["privacy"]
    assert entry["epsilon"] == pytest.approx(spent({Release(3, 6): 3}, entry["sigma"], 1e-5))
    assert entry["epsilon_if_known"] > entry["epsilon"]


def test_a_simulation_says_so_and_repeats(tmp_path: Path) -> None:
    one, other = (run(private(simulated=True)) for _ in range(2))
    assert one.digest == other.digest
    assert one.metrics["privacy"]["simulated"] is True
    assert [r["clients"] for r in one.history] == [r["clients"] for r in other.history]


def test_a_round_that_was_released_is_paid_though_its_checkpoint_is_lost(tmp_path: Path) -> None:
    run(private(), out=tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoint").glob("manifest-*3.json"):
        path.unlink()
    # Round 3 has spent the rest of the budget; another cohort and noise would cost it again.
    found = run(private(), out=tmp_path / "run", resume=True)
    assert len(found.history) == 2


def test_a_poisson_run_divides_by_the_mean_cohort_and_ends(tmp_path: Path) -> None:
    experiment = private(sampling="poisson", neighbours="remove", simulated=True)
    found = run(experiment)
    entry = found.metrics["privacy"]
    drawn = {Release(3, 6, poisson=True): len(found.history)}
    assert entry["neighbours"] == "remove"
    assert entry["epsilon"] == pytest.approx(spent(drawn, entry["sigma"], 1e-5, 1.0))


def test_a_quantile_moves_the_clip_and_a_resumed_run_goes_on_with_it(tmp_path: Path) -> None:
    experiment = private(quantile=0.5, simulated=True)
    whole = run(experiment, out=tmp_path / "run")
    clips = [record["privacy"]["clip"] for record in whole.history]
    assert clips[0] == 1.0 and len(set(clips)) == 3
    assert [record["privacy"]["next_clip"] for record in whole.history[:2]] == clips[1:]
    for name in ("model.safetensors", "confusion.json"):
        (tmp_path / "run" / name).unlink(missing_ok=True)
    for path in (tmp_path / "run" / "checkpoint").glob("manifest-*3.json"):
        path.unlink()
    again = run(experiment, out=tmp_path / "run", resume=True)
    assert again.digest == whole.digest
    assert [record["privacy"]["clip"] for record in again.history] == clips


def test_all_noise_of_a_round_goes_with_the_clip_of_the_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of groups before and after the norms, by name: clients clipped all of them with one S.
    seen: list[tuple[float, float]] = []

    def spied(total: torch.Tensor, sigma: float, clip: float, source: RandomBytes) -> torch.Tensor:
        seen.append((sigma, clip))
        return hidden(total, sigma, clip, source)

    monkeypatch.setattr(server_side, "hidden", spied)
    privacy = Privacy(epsilon=8.0, quantile=0.1, simulated=True)
    found = run(tiny.experiment(SLAC(finish="none"), per_round=6, privacy=privacy))
    each = len(seen) // 3
    for number, record in enumerate(found.history):
        entry, pairs = record["privacy"], set(seen[number * each : (number + 1) * each])
        assert (entry["sigma"], entry["clip"]) in pairs
        assert len(pairs) == 2  # that, and the noise of the share that was not clipped


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "local", "sampling": "poisson"}, "privacy.sampling = poisson is for"),
        ({"model": "local", "quantile": 0.5}, "privacy.quantile = 0.5 is for"),
        ({"neighbours": "remove"}, "needs privacy.sampling = poisson"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(FedtailError, match=said):
        Privacy(epsilon=1.0, **fields)


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_noise_is_planned_without_drawing_anybody(sampling: str) -> None:
    # How many are drawn is enough: of a hundred thousand clients each draw takes a while.
    cohorts = Cohorts(1000, 10, poisson=sampling == "poisson")
    privacy = Privacy.model_validate({"epsilon": 8.0, "sampling": sampling})
    budget = planned(privacy, 1000, 10, cohorts, 5, 0)
    release = Release(10, 1000, 1, sampling == "poisson")
    assert spent({release: 5}, budget.noise, privacy.delta, privacy.distance) <= 8.0
    assert not cohorts._drawn
