"""PaCo: one step, the momentum encoder and the queue by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import BSM, FedtailError, LocalTraining, Method, PaCo, PaCoLoss, run
from fedtail.losses import CrossEntropy
from fedtail.models import SplitModel
from fedtail.protocol import Client, Payload, grouped

# Two samples at right angles, of class 0 and class 1.
CORNERS = tiny.federation([[1.0, 0.0], [0.0, 1.0]], [0, 1], [range(2)])
SOFT = PaCoLoss(alpha=0.5, temperature=1.0)
EYE = torch.eye(2)


def corner_model(method: PaCo) -> SplitModel:
    """Return a zero classifier on the input, and a projection that changes nothing."""
    model = method.build_model(SplitModel(nn.Sequential(nn.Linear(2, 2, bias=False))))
    zero = torch.zeros(2)
    model.load(
        {
            "0.weight": torch.zeros(2, 2),
            "projection.0.weight": EYE,
            "projection.0.bias": zero,
            "projection.2.weight": EYE,
            "projection.2.bias": zero,
        }
    )
    return model


def paco(**fields: Any) -> PaCo:
    steps = fields.pop("steps", 1)
    local = LocalTraining(lr=1.0, batch_size=2, steps=steps)
    return PaCo(**{"loss": SOFT, "width": 2, "local": local, **fields})


def trained(method: PaCo, state: dict[str, Tensor] | None = None, **moment: Any) -> Payload:
    model = corner_model(method)
    client: Client = tiny.client(CORNERS, 0, model, state, **moment)
    return method.train(Payload(grouped("model", model.tensors())), client)


def test_one_step_by_hand() -> None:
    # Queries and keys are the samples themselves. Each sees two centres at 0, the other query at 0,
    # its own key at 1 and the other key at 0: D = 4 + e, and its key is its one positive. The loss
    # is ln D - (c_y + 1/2) / (3/2), so the centre logits have the gradient 1/D - 2/3 (own) and 1/D.
    # The mean over two samples, lr = 1: W_00 = (2/3 - 1/D) / 2 and W_01 = -1 / (2D).
    own, other = (2 / 3 - 1 / (4 + math.e)) / 2, -1 / (2 * (4 + math.e))
    weight = trained(paco()).tensors["model/0.weight"]
    torch.testing.assert_close(weight, torch.tensor([[own, other], [other, own]]))


def test_the_queue_is_newest_first_and_has_the_samples_labels() -> None:
    state: dict[str, Tensor] = {}
    trained(paco(steps=3, queue=5), state)
    keys, labels = state["queue/keys"], state["queue/labels"]
    assert len(keys) == len(labels) == 5
    # Three batches of both samples: the oldest of six keys is gone.
    assert sorted(labels[:2].tolist()) == sorted(labels[2:4].tolist()) == [0, 1]
    # A key is the projected sample, of length 1, and the projection hardly moved in three steps.
    torch.testing.assert_close(keys.norm(dim=1), torch.ones(5))
    assert keys.argmax(dim=1).tolist() == labels.tolist()


def test_the_queue_takes_part_in_the_next_round() -> None:
    # As in the first test, with two more keys of class 0 like the first sample in the queue:
    # sample 0: D = 4 + 3 e, three positives, weights 1 + 3/2: own centre 1/D - 2/5;
    # sample 1: D = 6 + e, one positive: own centre 1/D - 2/3, the other 1/D.
    keys = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    state = {"queue/keys": keys, "queue/labels": torch.tensor([0, 0])}
    first, second = 4 + 3 * math.e, 6 + math.e
    weight = trained(paco(), state).tensors["model/0.weight"]
    expected = torch.tensor(
        [
            [(2 / 5 - 1 / first) / 2, -1 / (2 * second)],
            [-1 / (2 * first), (2 / 3 - 1 / second) / 2],
        ]
    )
    torch.testing.assert_close(weight, expected)
    # The kept tensors were replaced, not changed.
    assert torch.equal(keys, torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    assert state["queue/labels"].shape == (4,)
    # With nothing kept, the queue that lies there is not looked at.
    weight = trained(paco(keep="nothing"), {**state}).tensors["model/0.weight"]
    torch.testing.assert_close(weight, trained(paco()).tensors["model/0.weight"])


def test_the_encoder_follows_by_hand() -> None:
    # θ_k is the received model in step 1, and m θ_0 + (1 - m) θ_1 in step 2.
    after = trained(paco(steps=1)).group("model")
    start = corner_model(paco()).tensors()
    state: dict[str, Tensor] = {}
    trained(paco(steps=2, momentum=0.75), state)
    for name, first in start.items():
        expected = 0.75 * first + 0.25 * after[name]
        torch.testing.assert_close(state[f"key/{name}"], expected)


@pytest.mark.parametrize(
    ("keep", "groups"), [("all", {"key", "queue"}), ("queue", {"queue"}), ("nothing", set())]
)
def test_what_a_client_keeps(keep: str, groups: set[str]) -> None:
    state: dict[str, Tensor] = {}
    trained(paco(keep=keep), state)
    assert {name.partition("/")[0] for name in state} == groups


def test_a_kept_encoder_goes_on_and_another_starts_from_the_received_model() -> None:
    # m = 1: the encoder never moves. What is kept is what the client began with; else it is what
    # it was sent.
    marked = {f"key/{n}": t + 0.5 for n, t in corner_model(paco()).tensors().items()}
    state = dict(marked)
    trained(paco(momentum=1.0), state)
    assert all(torch.equal(state[name], tensor) for name, tensor in marked.items())
    fresh: dict[str, Tensor] = {}
    trained(paco(momentum=1.0), fresh)
    for name, tensor in corner_model(paco()).tensors().items():
        assert torch.equal(fresh[f"key/{name}"], tensor)


def test_the_second_view_is_another_one() -> None:
    states: list[dict[str, Tensor]] = [{}, {}, {}]
    for state, jitter in zip(states, (0.0, 0.3, 0.3), strict=True):
        trained(paco(jitter=jitter), state)
    still, moved, again = (state["queue/keys"] for state in states)
    assert torch.equal(still.sort(dim=0).values, EYE.sort(dim=0).values)
    assert not torch.equal(moved, still)
    assert torch.equal(moved, again)


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model])
@pytest.mark.parametrize("prior", ["local", "global"])
def test_without_samples_in_the_contrast_it_is_bsm(model: Any, prior: str) -> None:
    # α = γ = 0: only the centres are left. The first view is the one that FedAvg draws.
    fields = {"prior": prior, "local": tiny.quick()}
    bare = PaCo.model_validate({"loss": {"alpha": 0, "gamma": 0}, "jitter": 0.1, **fields})
    augment = {"crop": 1, "flip": True}
    ours = run(tiny.experiment(bare, model, augment=augment)).tensors
    same = run(tiny.experiment(BSM.model_validate(fields), model, augment=augment)).tensors
    assert ours.keys() == same.keys()
    for name, tensor in same.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-5)


def test_the_projection_travels_and_is_left_behind() -> None:
    result = run(tiny.experiment(PaCo(local=tiny.quick()), tiny.plain_model))
    assert {n for n in result.state.model if n.startswith("projection.")}
    assert result.tensors.keys() == tiny.plain_model().state_dict().keys()
    assert {n for n in trained(paco()).tensors if n.startswith("model/projection.")}


def test_another_loss_is_refused() -> None:
    with pytest.raises((FedtailError, ValueError), match="has the loss 'paco'"):
        PaCo(loss=CrossEntropy())


def test_the_papers_values_and_how_to_change_them() -> None:
    loss = PaCo().loss
    assert isinstance(loss, PaCoLoss)
    assert (loss.alpha, loss.beta, loss.gamma, loss.temperature) == (0.01, 1.0, 1.0, 0.05)
    named: Method[Any] = Method.model_validate(
        {"name": "paco", "loss": {"alpha": 0.1}, "queue": 64}
    )
    assert named == PaCo(loss=PaCoLoss(alpha=0.1), queue=64)
