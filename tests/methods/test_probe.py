from __future__ import annotations

import json
import math

import pytest
import tiny
import torch
from torch import nn

from fedtail import FedAvg, Payload, Probe, run
from fedtail.diagnosis.parts import UNIT, cosine, right, spaced, surest
from fedtail.forms import Mean, Total
from fedtail.models import SplitModel
from fedtail.protocol import grouped


def model() -> SplitModel:
    """Four classes on one input, w = 0: every class has the probability 1/4."""
    layer = nn.Linear(1, 4, bias=False)
    nn.init.zeros_(layer.weight)
    return SplitModel(layer)


def told(rate: float = 1.0) -> dict[str, float]:
    """One client with x = 1, 1 of the classes 0 and 1; classes 2 and 3 are others'."""
    of = tiny.federation([[1.0], [1.0]], [0, 1], [[0, 1]], classes=4)
    network = model()
    client = tiny.client(of, 0, network)
    method = Probe(local={"lr": rate, "batch_size": 2})
    payload = Payload(grouped("model", network.tensors()))
    answer = method.train(payload, client)
    names = ("body", "body2", "head", "head2", "samples2", "own", "loss", "seen")
    numbers = answer.tensors["told/numbers"].tolist()
    assert answer.tensors["told/counts"].tolist() == [1, 1, 0, 0]
    assert answer.tensors["told/held"].tolist() == [1, 1, 0, 0]
    return dict(zip((*names, "forgotten", "lacking"), numbers, strict=True))


def test_what_a_client_tells_by_hand() -> None:
    # The gradient of a row is p_c - share_c = (1/4 - 1/2, 1/4 - 1/2, 1/4, 1/4), so that a step of
    # rate 1 moves each row by 1/4: the squared length is 4/16 = 1/4. With n = 2/1024:
    found, n = told(), 2 / UNIT
    assert found["body"] == found["body2"] == 0
    assert found["head"] == pytest.approx(n / 4)
    assert found["head2"] == pytest.approx(n * n / 4)
    assert found["samples2"] == pytest.approx(n * n)
    assert found["own"] == pytest.approx((1 + 1) / 2 / UNIT)
    # Two samples of a model that gives 1/4 to all.
    assert found["loss"] == pytest.approx(2 * math.log(4))
    assert found["seen"] == 2
    # Both rows of the absent classes moved alike: nothing is forgotten between them.
    assert found["forgotten"] == pytest.approx(0, abs=1e-12)
    assert found["lacking"] == 1


def test_forgetting_is_a_divergence_among_absent_classes() -> None:
    of = tiny.federation([[1.0], [1.0]], [0, 0], [[0, 1]], classes=3)
    network = SplitModel(nn.Linear(1, 3))
    same = Payload(grouped("model", network.tensors()))
    before, after = torch.zeros(2, 3).double(), torch.zeros(2, 3).double()
    after[:, 1] = math.log(3)
    found = Probe().told(same, same, tiny.client(of, 0, network), before, after)
    # Received 1/2, 1/2; trained 3/4, 1/4: KL = 1/2 log(2/3) + 1/2 log 2 = 1/2 log(4/3).
    assert found.forgotten == pytest.approx(math.log(4 / 3) / 2)
    assert found.head == found.body == 0


def test_groups_have_two_clients_or_more() -> None:
    method, network = Probe(), model()
    for clients, sizes in ((20, [2] * 4 + [3] * 4), (5, [2, 3]), (3, [3]), (1, [1])):
        server = tiny.server(network, clients, seed=3)
        groups = method.split(range(clients), server)
        assert sorted(map(len, groups)) == sizes
        assert sorted(k for group in groups for k in group) == list(range(clients))


def test_the_model_is_that_of_fedavg() -> None:
    # Means of groups, averaged by their samples, are the mean: sums of integers are rounded once
    # more for each group, and training makes more of it.
    fields = {"per_round": 6, "rounds": 3}
    probed = run(tiny.experiment(Probe(local=tiny.quick()), tiny.norm_model, **fields))
    plain = run(tiny.experiment(FedAvg(local=tiny.quick()), tiny.norm_model, **fields))
    for name, tensor in plain.tensors.items():
        torch.testing.assert_close(probed.tensors[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("action", ["train", "examine"])
def test_clients_are_only_added_up(action: str) -> None:
    form = getattr(Probe(), f"{action}_form")(Payload(), SplitModel(tiny.norm_model()), 4)
    assert form.why == ""
    assert form.how
    assert all(isinstance(how, Mean | Total) for how in form.how.values())
    assert all(not getattr(how, "within", "") for how in form.how.values())


def test_what_is_logged_is_of_groups() -> None:
    history = run(tiny.experiment(Probe(local=tiny.quick()), per_round=6, validation=0.3)).history
    assert ["exams" in record["method"] for record in history] == [False, False, True]
    groups = json.loads(history[-1]["method"]["groups"])
    assert [group["clients"] for group in groups] == [2, 2, 2]
    counts = torch.tensor([group["counts"] for group in groups]).sum(0)
    exams = json.loads(history[-1]["method"]["exams"])
    assert torch.equal(counts, torch.tensor([exam["counts"] for exam in exams]).sum(0))
    assert counts[3] == 0
    assert history[0]["method"]["cosine"] == 0
    assert -1 <= history[1]["method"]["cosine"] <= 1


def test_a_round_in_secure_sums_says_the_same() -> None:
    asked = tiny.experiment(Probe(local=tiny.quick()), per_round=6, validation=0.3, rounds=2)
    plain, hidden = run(asked), run(asked.but(secure=True))
    for name in ("groups", "exams", "drift"):
        ours, theirs = (json.loads(r.history[-1]["method"][name]) for r in (plain, hidden))
        torch.testing.assert_close(_numbers(ours), _numbers(theirs), rtol=1e-4, atol=1e-5)


def _numbers(plain: object) -> torch.Tensor:
    """Return all numbers of JSON data, in order."""
    if isinstance(plain, dict):
        return torch.cat([_numbers(plain[key]) for key in sorted(plain)])
    if isinstance(plain, list):
        return torch.cat([_numbers(item) for item in plain])
    return torch.tensor([float(str(plain))], dtype=torch.float64)


def test_the_surest_half() -> None:
    # Margins 5, 1, 3, 2: the surest two are the first, which is right, and the third, which is not.
    scores = torch.tensor([[5.0, 0], [1, 0], [0, 3], [0, 2]])
    assert surest(scores, torch.tensor([0, 1, 0, 1])) == (2, 1)
    assert surest(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)) == (0, 0)
    assert right(scores, torch.tensor([0, 1, 0, 1]), 2).tolist() == [1, 1]


def test_samples_are_taken_evenly() -> None:
    assert spaced(8, 4).tolist() == [0, 2, 4, 6]
    assert spaced(3, 3).tolist() == [0, 1, 2]
    assert spaced(0, 0).tolist() == []


def test_a_cosine_by_hand() -> None:
    one, other = {"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([4.0, 3.0])}
    assert cosine(one, other) == pytest.approx(24 / 25)
    assert cosine({}, other) == 0
