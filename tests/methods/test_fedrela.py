"""FedReLa: borderline samples take the label of a rarer class."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import Augment, FedAvg, FedReLa, run
from fedtail.methods.fedrela import relabelled
from fedtail.models import SplitModel
from fedtail.protocol import Client, Payload, grouped
from fedtail.setting import prepare


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_rates_by_hand() -> None:
    # Five samples of class 0 (the most frequent: r = 0) and one of class 1 (the rarest: r = 1).
    # p of class 1: 0, 0, 0, 0, 1 among class 0: mean 0.2, standard
    # deviation 0.4, so z = (-0.5 four times, 2); class 1 has one sample: z = 0. One of six may
    # change: the threshold is the second largest z, 0. That of the fifth is tanh(2) = 0.964.
    p1 = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 0.7])
    p, y = torch.stack([1 - p1, p1], dim=1), torch.tensor([0, 0, 0, 0, 0, 1])
    times = 4000
    found = torch.stack([relabelled(p, y, 2, 0.17, drawn(seed)) for seed in range(times)])
    changed = (found != y).float().mean(dim=0)
    assert changed[[0, 1, 2, 3, 5]].tolist() == [0.0] * 5
    rate = math.tanh(2)
    assert float(changed[4]) == pytest.approx(rate, abs=4 * math.sqrt(rate * (1 - rate) / times))


def test_how_much_rarer_counts() -> None:
    # Counts 6, 2 and 1: r = (0, 0.8, 1). p of class 1 among class 0: 0 five times, and 1: mean 1/6,
    # deviation √5/6, z = √5 for the last. All others have z = 0 or less, and one of nine may
    # change: its rate is 0.8 tanh √5 = 0.782.
    p1 = torch.tensor([0.0] * 5 + [1.0] + [0.5] * 3)
    p = torch.stack([1 - p1, p1, torch.zeros(9)], dim=1)
    y, times = torch.tensor([0] * 6 + [1, 1, 2]), 4000
    found = torch.stack([relabelled(p, y, 3, 0.12, drawn(seed)) for seed in range(times)])
    changed = (found != y).float().mean(dim=0)
    assert changed[[0, 1, 2, 3, 4, 6, 7, 8]].tolist() == [0.0] * 8
    rate = 0.8 * math.tanh(math.sqrt(5))
    assert float(changed[5]) == pytest.approx(rate, abs=4 * math.sqrt(rate * (1 - rate) / times))
    assert set(found[:, 5].tolist()) == {0, 1}


def test_equal_counts_change_nothing() -> None:
    p = torch.rand(30, 3, generator=drawn()).softmax(dim=1)
    y = torch.arange(3).repeat_interleave(10)
    assert torch.equal(relabelled(p, y, 3, 0.5, drawn()), y)


def test_samples_of_the_rarest_class_stay() -> None:
    y = torch.tensor([0] * 30 + [1] * 12 + [2] * 4)
    p = torch.rand(46, 3, generator=drawn()).softmax(dim=1)
    found = torch.stack([relabelled(p, y, 3, 0.4, drawn(seed)) for seed in range(50)])
    assert bool((found[:, y == 2] == 2).all())
    # And changes go to rarer classes only.
    assert bool((found >= y).all())
    assert bool((found > y).any())


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3])
def test_no_more_than_the_share_change_to_a_class(share: float) -> None:
    y = torch.tensor([0] * 30 + [1] * 10)
    p = torch.rand(40, 3, generator=drawn()).softmax(dim=1)
    for seed in range(20):
        found = relabelled(p, y, 3, share, drawn(seed))
        for c in range(3):
            assert int(((found == c) & (y != c)).sum()) <= share * 40
    assert share or torch.equal(found, y)


def test_a_class_nobody_here_has_is_the_rarest() -> None:
    # Classes 0 and 1 have as many samples, class 2 none: changes go there alone.
    y = torch.tensor([0] * 10 + [1] * 10)
    p = torch.rand(20, 3, generator=drawn()).softmax(dim=1)
    found = torch.stack([relabelled(p, y, 3, 0.4, drawn(seed)) for seed in range(20)])
    assert set(found[found != y].tolist()) == {2}


def test_nobodys_samples_have_no_labels() -> None:
    found = relabelled(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 3, 0.05, drawn())
    assert found.shape == (0,)


def test_the_same_stream_gives_the_same_labels() -> None:
    y = torch.tensor([0] * 30 + [1] * 10)
    p = torch.rand(40, 2, generator=drawn()).softmax(dim=1)
    assert torch.equal(relabelled(p, y, 2, 0.3, drawn(3)), relabelled(p, y, 2, 0.3, drawn(3)))


def test_before_it_begins_it_is_fedavg() -> None:
    local = tiny.quick(momentum=0.9)
    plain = run(tiny.experiment(FedAvg(local=local), rounds=4))
    found = run(tiny.experiment(FedReLa(local=local, begin=1.0), rounds=4))
    assert found.digest == plain.digest
    # Of four rounds the last one is after 3/4.
    late = run(tiny.experiment(FedReLa(local=local, begin=0.75, share=0.5), rounds=4))
    assert late.digest != plain.digest
    assert late.history[2]["loss"] == plain.history[2]["loss"]


def test_labels_stay_changed_and_the_rate_is_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, list[int], list[int], float]] = []
    train = FedAvg.train

    def watched(self: Any, payload: Payload, client: Client) -> Payload:
        labels = client.data.labels.tolist()
        seen.append((client.id, labels, client.counts.tolist(), self.local.lr))
        return train(self, payload, client)

    monkeypatch.setattr(FedAvg, "train", watched)
    method = FedReLa(local=tiny.quick(lr=0.5), begin=0.25, share=0.4)
    run(tiny.experiment(method, rounds=4, per_round=6))
    for k in range(6):
        own = [s for s in seen if s[0] == k]
        assert [s[3] for s in own] == pytest.approx([0.5, 0.05, 0.05, 0.05])
        assert own[1][1] == own[2][1] == own[3][1]
        assert all(s[2] == torch.bincount(torch.tensor(s[1]), minlength=4).tolist() for s in own)
    assert any(own[1] != own[0] for own in ([s[1] for s in seen if s[0] == k] for k in range(6)))


def test_predictions_are_of_the_received_model_in_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received = SplitModel(nn.Sequential(nn.Dropout(0.9), nn.Linear(1, 2)))
    resident = SplitModel(nn.Sequential(nn.Dropout(0.9), nn.Linear(1, 2))).train()
    data = tiny.federation([[1.0], [2.0], [-3.0]], [0, 1, 0], [[2, 0, 1]])
    seen: list[Tensor] = []

    def note(p: Tensor, y: Tensor, *rest: Any) -> Tensor:
        seen.append(p)
        return y

    monkeypatch.setattr("fedtail.methods.fedrela.relabelled", note)
    client = tiny.client(data, 0, resident, round=2, rounds=2)
    FedReLa(begin=0.5).train(Payload(grouped("model", received.tensors())), client)
    expected = received.eval()(torch.tensor([[-3.0], [1.0], [2.0]])).softmax(dim=1)
    torch.testing.assert_close(seen[0], expected.detach())


def test_several_views_are_averaged_where_they_differ() -> None:
    federation = prepare(tiny.experiment(augment=Augment(crop=2))).federation
    model = SplitModel(tiny.plain_model()).eval()
    client = tiny.client(federation, 0, model)
    draw, every = client.generator("views"), torch.arange(12)
    with torch.no_grad():
        views = [model(client.data.batch(every, draw)[0]).softmax(dim=1) for _ in range(5)]
    assert not torch.equal(views[0], views[1])
    torch.testing.assert_close(FedReLa().predicted(model, client), torch.stack(views).mean(dim=0))
    # Without augmentation one pass is all there is.
    plain = tiny.client(prepare(tiny.experiment()).federation, 0, model)
    with torch.no_grad():
        once = model(plain.data.batch(every)[0]).softmax(dim=1)
    assert torch.equal(FedReLa().predicted(model, plain), once)
