"""Where the class prior comes from."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail.forms import defect
from fedtail.models import SplitModel
from fedtail.protocol import Payload, Update
from fedtail.reduce import reduced
from fedtail.training import ClassPrior, GlobalPrior, LocalPrior, SmoothedPrior
from fedtail.training.priors import counts_form

# Client 0 holds classes 0, 0, 1; client 1 holds 1; class 2 is nobody's.
DATA = tiny.federation([[0.0]] * 4, [0, 0, 1, 1], [[0, 1, 2], [3]], classes=3)
MODEL = SplitModel(nn.Sequential(nn.Linear(1, 3)))


def test_local_sends_nothing() -> None:
    exchange = LocalPrior().setup({}, tiny.server(MODEL, 2))
    with pytest.raises(StopIteration) as end:
        next(exchange)
    assert end.value.value is None


def test_local_is_the_own_counts() -> None:
    counts = LocalPrior().counts(None, tiny.client(DATA, 0, MODEL))
    assert counts.tolist() == [2.0, 1.0, 0.0]
    assert counts.dtype == torch.float32


def asked(prior: GlobalPrior, answering: list[int]) -> Tensor:
    """Carry the preliminary exchange through with these clients."""
    exchange = prior.setup({}, tiny.server(MODEL, 2))
    tasks = next(exchange)
    assert [(task.client, task.action) for task in tasks] == [(0, "inform"), (1, "inform")]
    updates = [
        Update(k, prior.report(tasks[k].payload, tiny.client(DATA, k, MODEL), tiny.quick()))
        for k in answering
    ]
    with pytest.raises(StopIteration) as end:
        exchange.send(reduced(updates, prior.form(tasks[0].payload, MODEL, 3)))
    told: Tensor = end.value.value
    return told


def test_global_is_the_sum_of_all_counts() -> None:
    # (2, 1, 0) + (0, 1, 0)
    told = asked(GlobalPrior(), [0, 1])
    assert told.tolist() == [2.0, 2.0, 0.0]
    assert told.dtype == torch.float32


def test_global_is_the_sum_of_those_who_answered() -> None:
    assert asked(GlobalPrior(), [1]).tolist() == [0.0, 1.0, 0.0]


def test_global_counts_are_what_the_client_is_told() -> None:
    told = torch.tensor([7.0, 0.0, 1.0])
    assert torch.equal(GlobalPrior().counts(told, tiny.client(DATA, 1, MODEL)), told)


def test_global_counts_may_be_summed_securely() -> None:
    report = GlobalPrior().report(Payload(), tiny.client(DATA, 0, MODEL), tiny.quick())
    assert report.tensors["counts/classes"].tolist() == [2, 1, 0]


@pytest.mark.parametrize("name", [n for n in ClassPrior.registry if n != "smoothed"])
def test_a_client_that_was_told_nothing_has_its_own_counts(name: str) -> None:
    counts = ClassPrior.model_validate(name).counts(None, tiny.client(DATA, 1, MODEL))
    assert counts.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("counts", "fits"),
    [
        ([2, 0, 1], True),
        ([2, 0, 2], False),  # more than the three samples that were announced
        ([4, 0, -1], False),
        ([2, 1], False),
        ([2.0, 0.0, 1.0], False),
    ],
)
def test_counts_are_whole_and_no_more_than_announced(counts: list[float], fits: bool) -> None:
    told = Payload({"counts/classes": torch.tensor(counts)})
    assert (defect(told, counts_form(3), 3) == "") == fits


def test_smoothed_by_hand() -> None:
    # Client 0 holds (2, 1, 0), all together (2, 2, 0): q = (1/2, 1/2, 0). With a = 4 and C = 3,
    # twelve samples more: six of each of the first two; or four of each of all three.
    client = tiny.client(DATA, 0, MODEL)
    told = torch.tensor([2.0, 2.0, 0.0])
    smooth = SmoothedPrior(samples=4, towards="global")
    assert smooth.counts(told, client).tolist() == pytest.approx([8.0, 7.0, 0.0])
    assert SmoothedPrior(samples=4).counts(None, client).tolist() == pytest.approx([6.0, 5.0, 4.0])
    assert SmoothedPrior(samples=0).counts(None, client).tolist() == [2.0, 1.0, 0.0]


def test_smoothed_asks_only_what_it_needs() -> None:
    assert asked(SmoothedPrior(towards="global"), [0, 1]).tolist() == [2.0, 2.0, 0.0]
    assert SmoothedPrior(towards="global").exchanges == 1
    with pytest.raises(StopIteration) as end:
        next(SmoothedPrior().setup({}, tiny.server(MODEL, 2)))
    assert end.value.value is None
    assert SmoothedPrior().exchanges == 0
