"""A model without its classifier is enough to compute features."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import tiny
import torch
from torch import Tensor, nn

from fedtail.models import SplitModel
from fedtail.protocol import Client, Payload, grouped
from fedtail.training.body import body_bytes, body_of, load_body

DATA = tiny.federation([[1.0, 2.0]], [0], [[0]], classes=3)


def network(classifier: str | None = None) -> SplitModel:
    return SplitModel(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)), classifier)


def test_the_classifier_stays_at_home() -> None:
    model = network()
    body = body_of(model.tensors(), model)
    assert set(body) == {"0.weight", "0.bias"}
    assert body_bytes(model) == 4 * (2 * 4 + 4)


def test_a_head_alone_has_no_body() -> None:
    head = SplitModel(nn.Linear(2, 3))
    assert body_of(head.tensors(), head) == {}
    assert body_bytes(head) == 0


class Tied(nn.Module):
    """Reads the classifier's own matrix to embed its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2, bias=False)
        self.first = nn.Linear(2, 2, bias=False)
        self.first.weight = self.fc.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.first(x))
        return out


def test_a_matrix_that_the_body_reads_is_sent() -> None:
    model = SplitModel(Tied(), "fc")
    assert body_of(model.tensors(), model).keys() == model.tensors().keys()


def test_a_client_computes_the_features_of_the_body_it_was_sent() -> None:
    sender, receiver = network(), network()
    payload = Payload(grouped("model", body_of(sender.tensors(), sender)))
    own = receiver.tensors()["2.weight"]
    loaded = load_body(payload, tiny.client(DATA, 0, receiver))
    x = torch.tensor([[1.0, 2.0]])
    assert torch.equal(loaded.features(x), sender.features(x))
    assert torch.equal(loaded.tensors()["2.weight"], own)


def with_base(client: Client, base: SplitModel) -> Client:
    return replace(client, base=base)


def test_of_two_networks_with_the_same_names_it_is_the_trained_one() -> None:
    trained, base = network(), network()
    payload = Payload(grouped("model", body_of(base.tensors(), base)))
    assert load_body(payload, with_base(tiny.client(DATA, 0, trained), base)) is trained


def test_classifiers_may_have_different_names() -> None:
    parts = OrderedDict(body=nn.Linear(2, 4), relu=nn.ReLU(), head=nn.Linear(4, 3))
    trained, base = SplitModel(nn.Sequential(parts)), network()
    client = with_base(tiny.client(DATA, 0, trained), base)
    for sender in (trained, base):
        payload = Payload(grouped("model", body_of(sender.tensors(), sender)))
        assert load_body(payload, client) is sender


def test_the_body_finds_the_network_that_has_its_names() -> None:
    # The method trains two heads, and ships the user's network.
    base = network("2")
    two = network("2").with_head("second")
    payload = Payload(grouped("model", body_of(base.tensors(), base)))
    client = tiny.client(DATA, 0, two)
    assert load_body(payload, with_base(client, base)) is base
    trained = Payload(grouped("model", body_of(two.tensors(), two)))
    assert load_body(trained, client) is two
