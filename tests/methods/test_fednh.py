"""FedNH and FedUH: prototypes in the place of a classifier."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import FedNH, FedUH, ModelState, run
from fedtail.forms import defect
from fedtail.methods.fednh import moved_prototypes
from fedtail.models import SplitModel
from fedtail.protocol import Payload, Server, Update, grouped
from fedtail.training import LocalTraining

PLACE = "1.prototypes"


def model() -> SplitModel:
    """Return features x, and prototypes (1, 0), (0, 1)."""
    made = FedNH(scale=1).build_model(SplitModel(nn.Sequential(nn.Identity(), nn.Linear(2, 2))))
    made.classifier.get_buffer("prototypes").copy_(torch.eye(2))
    return made


# Client 0: (3, 4) and twice (5, 0) of class 0. Client 1: (0, 2) of class 1 and (8, 6) of class 0.
DATA = tiny.federation(
    [[3.0, 4.0], [5.0, 0.0], [5.0, 0.0], [0.0, 2.0], [8.0, 6.0]],
    [0, 0, 0, 1, 0],
    [[0, 1, 2], [3, 4]],
)
ROOT = 7.4**0.5


def answers(method: FedNH, split: SplitModel) -> list[Payload]:
    """Return what both clients send."""
    payload = Payload(grouped("model", split.tensors()))
    return [method.train(payload, tiny.client(DATA, k, split)) for k in (0, 1)]


def test_what_clients_send_by_hand() -> None:
    # Unit features of client 0: (0.6, 0.8) and twice (1, 0); their sum (2.6, 0.8) has the length
    # √7.4, and its direction stands for three samples.
    first, second = answers(FedNH(), model())
    expected = torch.tensor([[7.8 / ROOT, 2.4 / ROOT], [0.0, 0.0]])
    torch.testing.assert_close(first.tensors["proto/sums"], expected)
    assert first.tensors["proto/counts"].tolist() == [3, 0]
    torch.testing.assert_close(second.tensors["proto/sums"], torch.tensor([[0.8, 0.6], [0, 1.0]]))
    assert first.tensors.keys() == {"model/1.scale", "proto/sums", "proto/counts"}


def test_the_moving_average_by_hand() -> None:
    # ρ = 0.5: W_0 = (1, 0) and the direction (0.6, 0.8) give (0.8, 0.4), of length √0.8.
    old = torch.eye(2)
    found = moved_prototypes(old, torch.tensor([[3.0, 4.0], [9, 9]]), torch.tensor([5, 0]), 0.5)
    torch.testing.assert_close(found[0], torch.tensor([0.8, 0.4]) / 0.8**0.5)
    assert torch.equal(found[1], old[1])  # nobody reported it


def new_prototypes(
    method: FedNH, order: tuple[int, ...] = (0, 1), server: Server | None = None
) -> Tensor:
    """Return the prototypes after one round."""
    split = model()
    sent = answers(method, split)
    server = server or tiny.server(split, 2)
    updates = [Update(k, sent[k]) for k in order]
    state: ModelState = tiny.after(method, ModelState(split.tensors()), updates, server)
    return state.model[PLACE]


def test_a_round_adds_up_directions_by_samples_and_order_does_not_matter() -> None:
    # Class 0: 3 (2.6, 0.8)/√7.4 + (0.8, 0.6); class 1: (0, 1) alone.
    total = torch.tensor([7.8 / ROOT + 0.8, 2.4 / ROOT + 0.6])
    mixed = torch.tensor([0.9, 0.0]) + 0.1 * total / total.norm()
    found = new_prototypes(FedNH())
    torch.testing.assert_close(found[0], mixed / mixed.norm())
    torch.testing.assert_close(found[1], torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(found.norm(dim=1), torch.ones(2))
    server = tiny.server(model(), 2)
    assert torch.equal(found, new_prototypes(FedNH(), (1, 0), server))
    # One of the two has moved.
    shift = float((found[0] - torch.tensor([1.0, 0.0])).norm()) / 2
    assert server.logged["prototype_shift"] == pytest.approx(shift, rel=1e-4)


@pytest.mark.parametrize("method", [FedUH(), FedNH(rho=1)])
def test_with_rho_1_prototypes_stay_and_nothing_is_reported(method: FedNH) -> None:
    assert torch.equal(new_prototypes(method), torch.eye(2))
    assert answers(method, model())[0].tensors.keys() == {"model/1.scale"}
    assert method.asks().numbers == ""


@pytest.mark.parametrize(("weights", "expected"), [("equal", 2.0), ("samples", 2.5)])
def test_bodies_weigh_the_same_or_by_samples(weights: Any, expected: float) -> None:
    # Scales 1 of one sample and 3 of three: (1 + 3)/2, or (1 + 9)/4.
    split = model()
    method = FedNH(weights=weights)
    sums = {"proto/sums": torch.zeros(2, 2), "proto/counts": torch.zeros(2, dtype=torch.int64)}
    updates = [
        Update(k, Payload({"model/1.scale": torch.tensor([s]), **sums}, {"samples": n, "steps": 1}))
        for k, (s, n) in enumerate(((1.0, 1), (3.0, 3)))
    ]
    state = tiny.after(method, ModelState(split.tensors()), updates, tiny.server(split, 2))
    assert float(state.model["1.scale"]) == pytest.approx(expected)
    assert torch.equal(state.model[PLACE], torch.eye(2))


def test_prototypes_have_length_1_after_a_run() -> None:
    found = run(tiny.experiment(FedNH(local=tiny.quick()))).tensors["3.prototypes"]
    torch.testing.assert_close(found.norm(dim=1), torch.ones(4))


@pytest.mark.parametrize("buffers", ["local", "first"])
def test_clients_keep_statistics_and_no_prototypes(buffers: Any) -> None:
    method = FedNH(local=tiny.quick(), buffers=buffers)
    found = run(tiny.experiment(method, tiny.norm_model)).tensors
    torch.testing.assert_close(found["4.prototypes"].norm(dim=1), torch.ones(4))


def test_nobody_counts_more_samples_than_it_has() -> None:
    split = model()
    form = FedNH().train_form(Payload(), split, 2)
    sent = answers(FedNH(), split)[0]
    assert defect(sent, form, 3) == ""
    for counts in ([3, 1], [3, -1]):
        more = {**sent.tensors, "proto/counts": torch.tensor(counts)}
        assert "counts" in defect(Payload(more, sent.scalars), form, 3)
    assert "counts" in FedNH().asks().numbers
    assert FedUH().train_form(Payload(), split, 2).tensors.keys() == {"model/1.scale"}


def test_means_are_those_of_the_trained_body() -> None:
    torch.manual_seed(0)
    base = SplitModel(nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2)))
    method = FedNH(local=LocalTraining(lr=1.0, steps=3), scale=5)
    split = method.build_model(base)
    sent = method.train(
        Payload(grouped("model", split.tensors())), tiny.client(DATA, 1, split)
    ).tensors
    h = torch.tensor([[8.0, 6.0], [0.0, 2.0]]) @ sent["model/0.weight"].T
    torch.testing.assert_close(sent["proto/sums"], h / h.norm(dim=1, keepdim=True))


def test_a_scale_that_is_not_learned_is_not_sent() -> None:
    made = FedNH(learn_scale=False, scale=7).build_model(SplitModel(nn.Linear(2, 2)))
    assert made.names() == {"prototypes"}
    assert float(made.classifier.get_buffer("scale")) == 7.0


def test_what_a_client_keeps() -> None:
    made = FedNH().build_model(SplitModel(tiny.norm_model()))
    names = {"running_mean", "running_var", "num_batches_tracked"}
    assert FedNH(buffers="local").kept(made) == {f"buffer/1.{n}": f"1.{n}" for n in names}
    assert FedNH().kept(made) == {}
