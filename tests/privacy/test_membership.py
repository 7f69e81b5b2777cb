"""The likelihood-ratio attack: by hand on known Gaussians, and on clients that remember."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import tiny
import torch

from fedtail import Experiment, FedAvg, LocalTraining, run
from fedtail.folder import RunFolder
from fedtail.privacy.attacks import found_at
from fedtail.privacy.audit import audit
from fedtail.privacy.membership import (
    JoinedFeatures,
    Membership,
    likelihood_ratio,
    logit_margin,
    paired,
    scored,
)
from fedtail.privacy.views import NOISY, NOTHING, SUM_ONLY
from fedtail.setting import prepare


def test_the_ratio_of_two_known_gaussians() -> None:
    # In: 3 and 5, mean 4, variance 2. Out: −1 and 1, mean 0, variance 2. At φ = 1, with equal
    # variances, log N(1; 4, 2) − log N(1; 0, 2) = (−(1 − 4)² + (1 − 0)²) / (2 · 2) = −2.
    shadows = torch.tensor([[3.0], [5.0], [-1.0], [1.0]]).double()
    inside = torch.tensor([[True], [True], [False], [False]])
    target = torch.tensor([1.0]).double()
    assert likelihood_ratio(target, shadows, inside).tolist() == pytest.approx([-2.0])
    # Half way between the means neither is more likely; at 4 it is (0 + 16) / 4 = 4.
    for at, expected in ((2.0, 0.0), (4.0, 4.0)):
        found = likelihood_ratio(torch.tensor([at]).double(), shadows, inside)
        assert found.tolist() == pytest.approx([expected])


def test_few_shadows_share_a_variance_and_many_have_their_own() -> None:
    # In: 2 ± 1 and 2 ± 3 for two samples; out: 0 ± 1 and 0 ± 1. With two shadows of each kind the
    # variances are 2 and 18, shared 10; out 2, shared 2. At φ = 2 the squares are 0 and 4, so that
    # the ratio is −½ ln 10 + ½ ln 2 + 4 / (2 · 2) for both.
    few = torch.tensor([[1.0, -1.0], [3.0, 5.0], [-1.0, -1.0], [1.0, 1.0]]).double()
    inside = torch.tensor([True, True, False, False])[:, None].expand(4, 2)
    target = torch.tensor([2.0, 2.0]).double()
    shared = 1 - math.log(10 / 2) / 2
    assert likelihood_ratio(target, few, inside).tolist() == pytest.approx([shared, shared])
    # 16 times the same: 32 of a kind, squares 32 · 1 over 31 and 32 · 9 over 31.
    many, there = few.repeat(16, 1), inside.repeat(16, 1)
    first = 4 / (2 * 32 / 31)
    second = first - math.log(9) / 2
    assert likelihood_ratio(target, many, there).tolist() == pytest.approx([first, second])


def test_the_scaled_confidence_is_the_log_odds_of_the_label() -> None:
    # p = (1/2, 1/4, 1/4): log odds 0 for the first class, log(1/3) for the second.
    logits = torch.tensor([[2.0, 1.0, 1.0]]).double().log()
    assert logit_margin(logits, torch.tensor([0])).tolist() == pytest.approx([0.0])
    assert logit_margin(logits, torch.tensor([1])).tolist() == pytest.approx([math.log(1 / 3)])


def test_members_found_at_few_false_alarms() -> None:
    low = torch.arange(200.0)  # at 1 % two of them may be above: 198 and 199
    assert found_at(torch.tensor([197.0, 197.5, 300.0, -1.0]), low, 0.01) == 0.5
    # Of 50 none may be.
    assert found_at(torch.tensor([49.0, 49.5]), torch.arange(50.0), 0.01) == 0.5


def test_a_score_of_known_members() -> None:
    # Two samples: one is a member and has the confidence of models with it, the other is not.
    shadows = torch.tensor([[3.0, -1.0], [5.0, 1.0], [-1.0, 3.0], [1.0, 5.0]]).double()
    inside = torch.tensor([[True, False], [True, False], [False, True], [False, True]])
    target, member = torch.tensor([4.0, 0.0]).double(), torch.tensor([True, False])
    assert scored(target, shadows, inside, member) == Membership(1.0, 1.0, 1, 4)


def test_partners_are_of_the_class_and_of_nobody() -> None:
    setting = prepare(Experiment(clients=4, tail={"name": "exponential", "imbalance": 5}))
    pairs, held = paired(setting), set(setting.federation.held().tolist())
    y, used = pairs.federation.train.y, []
    assert len(pairs) > 100
    for k, slots in pairs.slots.items():
        mine = setting.federation.positions(k)[slots]
        assert torch.equal(y[mine], y[pairs.others[k]])
        used += pairs.others[k].tolist()
    assert len(set(used)) == len(used) and not held & set(used)
    number, times = 6, {k: torch.zeros(len(slots)) for k, slots in pairs.slots.items()}
    for federation, there in pairs.shadows(number, seed=0):
        for k in pairs.slots:
            assert torch.equal(federation.counts(k), setting.federation.counts(k))
            changed = federation.positions(k) != setting.federation.positions(k)
            assert torch.equal(~changed[pairs.slots[k]], there[k])
            times[k] += there[k]
    assert all((seen == number / 2).all() for seen in times.values())
    assert torch.equal(
        setting.federation.positions(0), prepare(setting.experiment).federation.positions(0)
    )


def test_inputs_of_both_sets_are_gathered_in_order() -> None:
    joined = JoinedFeatures(torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [3.0]]))
    assert joined.shape == (4, 1) and joined.dtype == torch.float32
    assert joined[torch.tensor([3, 0, 2])].tolist() == [[3.0], [0.0], [2.0]]


def test_clients_that_learn_by_heart_are_found_out_and_noise_hides_them(tmp_path: Path) -> None:
    local = LocalTraining(lr=0.1, epochs=60, batch_size=8)
    experiment = Experiment(
        clients=5,
        rounds=1,
        tail={"name": "exponential", "imbalance": 50},
        model={"name": "mlp", "hidden": [32]},
        method=FedAvg(local=local),
    )
    run(experiment, out=tmp_path / "run")
    found = audit(RunFolder(tmp_path / "run"), prepare(experiment), 0.5, shadows=8, runs=4)
    seen = {view.protection: view.members for view in found.views}
    open_, summed, noisy = seen[NOTHING], seen[SUM_ONLY], seen[NOISY]
    assert open_ is not None and summed is not None and noisy is not None
    assert open_.shadows == 8 and open_.samples > 100
    assert open_.auc > 0.75
    assert summed.auc < open_.auc - 0.05
    assert noisy.auc == pytest.approx(0.5, abs=0.1)
    assert found.members is not None and found.members.shadows == 4
    assert 0.4 < found.members.auc <= 1


def test_without_shadows_members_are_not_attacked(tmp_path: Path) -> None:
    experiment = tiny.experiment(rounds=1)
    run(experiment, out=tmp_path / "run")
    found = audit(RunFolder(tmp_path / "run"), prepare(experiment), shadows=0)
    assert all(view.members is None for view in found.views) and found.members is None
