"""RUCR: prototypes for features, and a head re-trained on mixtures with them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from fedtail import RUCR, FedAvg, FedtailError, run
from fedtail.forms import defect
from fedtail.methods.rucr import Prototypes, with_prototypes
from fedtail.models import CosineHead, SplitModel
from fedtail.protocol import Payload, Update, grouped

# Client 0: (2, 0) and (4, 0) of class 0; client 1: (0, 2) of class 0 and (0, 5) of class 1.
DATA = tiny.federation(
    [[2.0, 0.0], [4.0, 0.0], [0.0, 2.0], [0.0, 5.0]], [0, 0, 0, 1], [[0, 1], [2, 3]], classes=3
)


def model() -> SplitModel:
    """Return features as they are, and a head of zeros for three classes."""
    head = nn.Linear(2, 3)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return SplitModel(nn.Sequential(nn.Identity(), head))


def told(clients: tuple[int, ...] = (0, 1)) -> Payload:
    """Return what is sent in the second exchange."""
    split, method = model(), RUCR()
    asked = Payload(grouped("model", split.tensors()))
    updates = [Update(k, method.class_means(asked, tiny.client(DATA, k, split))) for k in clients]
    server = tiny.server(split, 2, num_classes=3)
    return with_prototypes(asked, tiny.added(method, updates, server, "class_means"))


def test_prototypes_are_means_over_all_samples_of_a_class() -> None:
    # Class 0: (2, 0), (4, 0), (0, 2): (2, 2/3). Class 2 has no sample.
    sent = told().tensors
    torch.testing.assert_close(
        sent["proto/means"], torch.tensor([[2.0, 2 / 3], [0.0, 5.0], [0.0, 0.0]])
    )
    assert sent["proto/counts"].tolist() == [3, 1, 0]
    # Of one client alone they are its own class means.
    torch.testing.assert_close(told((0,)).tensors["proto/means"][0], torch.tensor([3.0, 0.0]))


def test_the_comparison_by_hand() -> None:
    # h = (0, 7) of class 1; prototypes (1, 0), (0, 1), none: cosines 0, 1, 0; log π of class 1 is
    # log 1/4 and comes on class 1 alone: logits (0, 1 - ln 4, 0).
    to = Prototypes(
        torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]),
        torch.tensor([True, True, False]),
        torch.tensor([math.log(3 / 4), math.log(1 / 4), 0.0]),
    )
    h, y = torch.tensor([[0.0, 7.0]]), torch.tensor([1])
    own = math.e / 4
    assert float(RUCR().compared(h, y, to)) == pytest.approx(-math.log(own / (own + 2)), rel=1e-6)
    masked = RUCR(absent="mask").compared(h, y, to)
    assert float(masked) == pytest.approx(-math.log(own / (own + 1)), rel=1e-6)
    warm = RUCR(temperature=0.5).compared(h, y, to)
    own = math.e**2 / 4
    assert float(warm) == pytest.approx(-math.log(own / (own + 2)), rel=1e-6)
    # A class that the client lacks has a cosine of 0, whatever its prototype.
    lacking = to._replace(prototypes=torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    assert torch.equal(RUCR().compared(h, y, lacking), RUCR().compared(h, y, to))


def test_the_loss_has_both_parts() -> None:
    # From a head of zeros cross-entropy is ln 3.
    split, payload = model(), told()
    method = RUCR(weight=0.5)
    local = method.start(payload, tiny.client(DATA, 1, split))
    x, y = torch.tensor([[0.0, 5.0]]), torch.tensor([1])
    part = method.compared(x, y, local.aux)
    # Client 1 holds classes 0 and 1; of the cohort's four samples one is of class 1.
    assert local.aux.present.tolist() == [True, True, False]
    torch.testing.assert_close(local.aux.margin, torch.tensor([3 / 4, 1 / 4, 1.0]).log())
    assert float(method.batch_loss(local, x, y).detach()) == pytest.approx(
        math.log(3) + 0.5 * float(part), rel=1e-6
    )


@pytest.mark.parametrize("kind", [tiny.plain_model, tiny.dropout_model])
def test_without_comparison_and_re_training_it_is_fedavg(kind: Any) -> None:
    local = tiny.quick(momentum=0.9)
    found = run(tiny.experiment(RUCR(local=local, weight=0, last=0), kind))
    plain = run(tiny.experiment(FedAvg(local=local), kind))
    assert found.digest == plain.digest
    assert [r["traffic"] for r in found.history] == [r["traffic"] for r in plain.history]


def test_a_round_has_two_exchanges() -> None:
    # Four clients: down twice the model of 1,186 numbers, and 4 means of 6 features with 4 counts
    # of eight bytes; up the model, samples and steps, and before it 4 sums with 4 counts.
    result = run(tiny.experiment(RUCR(local=tiny.quick(), last=0)))
    size = 4 * sum(t.numel() for t in result.tensors.values())
    table = 4 * 4 * 6 + 8 * 4
    for record in result.history:
        assert record["bytes_down"] == 4 * (2 * size + table)
        assert record["bytes_up"] == 4 * (size + 16 + table)


def test_means_are_taken_at_the_received_model() -> None:
    received = SplitModel(nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 3)))
    resident = SplitModel(nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 3)))
    asked = Payload(grouped("model", received.tensors()))
    sent = RUCR().class_means(asked, tiny.client(DATA, 0, resident))
    expected = torch.tensor([6.0, 0.0]) @ received.tensors()["0.weight"].T
    torch.testing.assert_close(sent.tensors["means/sums"][0], expected)
    form = RUCR().class_means_form(asked, resident, 3)
    assert defect(sent, form, 2) == ""
    for counts in ([2, 1, 0], [2, -1, 0]):
        odd = {**sent.tensors, "means/counts": torch.tensor(counts)}
        assert "counts" in defect(Payload(odd), form, 2)


def test_re_training_changes_nothing_but_what_is_tested_at_the_end() -> None:
    chosen = RUCR(local=tiny.quick(), last=1, head_epochs=2, per_class=5)
    found = run(tiny.experiment(chosen))
    plain = run(tiny.experiment(chosen.but(last=0)))
    assert all(torch.equal(found.state.model[n], t) for n, t in plain.state.model.items())
    losses = [[r["loss"] for r in result.history] for result in (found, plain)]
    assert losses[0][:2] == losses[1][:2]
    assert losses[0][2] != losses[1][2]
    differ = {n for n, t in plain.tensors.items() if not torch.equal(t, found.tensors[n])}
    assert differ == {"3.weight", "3.bias"}


def test_mixtures_of_the_prototype_alone_are_the_prototype() -> None:
    means, h = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[5.0, 0.0], [0.0, 3.0]])
    draw = torch.Generator().manual_seed(0)
    pure = RUCR(least=1, most=1, per_class=3, length="unit").mixtures(means, h, draw)
    torch.testing.assert_close(pure[0], torch.tensor([[0.6, 0.8]] * 3))
    torch.testing.assert_close(pure[1], torch.tensor([[0.0, 1.0]] * 3))
    # Brought to the features' mean length: 4.
    long = RUCR(least=1, most=1, per_class=3).mixtures(means, h, draw)
    torch.testing.assert_close(long[0], torch.tensor([[2.4, 3.2]] * 3))
    # Without the prototype they are the client's own directions, whatever the class.
    own = RUCR(least=0, most=0, per_class=50, length="unit").mixtures(means, h, draw)
    assert {tuple(row) for row in own.flatten(0, 1).tolist()} == {(1.0, 0.0), (0.0, 1.0)}


def test_the_share_of_the_prototype_is_even_between_its_bounds() -> None:
    # p = (1, 0), h = (0, 1): the first coordinate is the share, of mean 0.65, from 0.35 to 0.95.
    draw = torch.Generator().manual_seed(0)
    method = RUCR(per_class=4000, length="unit")
    share = method.mixtures(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), draw)[0, :, 0]
    assert 0.35 <= float(share.min()) < 0.37
    assert 0.93 < float(share.max()) <= 0.95
    assert float(share.mean()) == pytest.approx(0.65, abs=4 * 0.6 / math.sqrt(12 * 4000))


def test_a_re_trained_head_knows_the_classes_with_prototypes() -> None:
    split = model()
    method = RUCR(head_epochs=100, head_lr=0.1, per_class=20)
    payload = told()
    sent = method.retrain(payload, tiny.client(DATA, 1, split))
    weight, bias = sent.tensors["head/1.weight"], sent.tensors["head/1.bias"]
    winners = (payload.tensors["proto/means"][:2] @ weight.T + bias).argmax(dim=1)
    assert winners.tolist() == [0, 1]
    assert sent.scalars == {"samples": 2}


def test_a_client_without_samples_sends_the_head_that_it_received_and_weighs_nothing() -> None:
    data = tiny.federation([[2.0, 0.0]], [0], [[0], []], classes=3)
    split, payload = model(), told()
    sent = RUCR().retrain(payload, tiny.client(data, 1, split))
    assert torch.equal(sent.tensors["head/1.weight"], payload.tensors["model/1.weight"])
    assert torch.equal(sent.tensors["head/1.bias"], payload.tensors["model/1.bias"])
    assert sent.scalars == {"samples": 0}
    assert defect(sent, RUCR().retrain_form(payload, split, 3), 0) == ""


def test_another_classifier_is_refused() -> None:
    with pytest.raises(FedtailError, match="linear classifier"):
        RUCR().build_model(SplitModel(nn.Sequential(nn.Identity(), CosineHead(2, 2)), "1"))
