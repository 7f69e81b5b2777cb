"""Which updates are used, and the reasons why the others are not."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor

from fedtail.engines import Dropped, sift
from fedtail.protocol import Payload, Task, Update
from fedtail.training import weighted_mean

SENT = Payload({"model/w": torch.zeros(2, 3)})


def tasks(*clients: int, action: str = "train") -> list[Task]:
    return [Task(client, action, SENT) for client in clients]


def update(client: int, scalars: dict[str, float] | None = None, **tensors: Tensor) -> Update:
    named = {name.replace("__", "/"): tensor for name, tensor in tensors.items()}
    return Update(client, Payload(named or {"model/w": torch.ones(2, 3)}, scalars or {}))


def reasons(*updates: Update) -> dict[int, str]:
    replies = sift(tasks(*sorted({u.client for u in updates})), updates)
    used = [u.client for u in replies.updates]
    assert used == sorted(used)
    assert not set(used) & {d.client for d in replies.dropped}
    return {d.client: d.reason for d in replies.dropped}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite(bad: float) -> None:
    w = torch.ones(2, 3)
    w[1, 2] = bad
    assert reasons(update(0), update(1, model__w=w)) == {1: "sent NaN or infinity in model/w"}


def test_a_scalar_that_is_not_finite() -> None:
    found = reasons(update(0, {"loss": 1.0}), update(1, {"loss": float("nan")}))
    assert found == {1: "sent loss = nan"}


def test_another_shape_than_was_sent() -> None:
    found = reasons(update(0), update(1, model__w=torch.ones(2, 4)))
    assert found == {1: "sent model/w of shape (2, 4), not (2, 3)"}


def test_another_shape_than_was_sent_even_if_all_send_it() -> None:
    found = reasons(*(update(k, model__w=torch.ones(3, 3)) for k in range(3)))
    assert list(found) == [0, 1, 2]


def test_other_names_than_the_rest() -> None:
    found = reasons(update(0), update(1), update(2, model__v=torch.ones(2, 3)))
    assert found == {2: "sent other tensors than the rest of the cohort (model/v)"}


def test_the_majority_decides_not_the_first() -> None:
    found = reasons(update(0, model__v=torch.ones(1)), update(1), update(2))
    assert list(found) == [0]


def test_a_missing_tensor() -> None:
    found = reasons(
        update(0, a=torch.ones(1), b=torch.ones(1)),
        update(1, a=torch.ones(1), b=torch.ones(1)),
        update(2, a=torch.ones(1)),
    )
    assert found == {2: "sent other tensors than the rest of the cohort (b)"}


def test_another_type() -> None:
    found = reasons(update(0), update(1), update(2, model__w=torch.ones(2, 3).double()))
    assert found == {2: "sent other tensors than the rest of the cohort (model/w)"}


def test_rows_may_differ_in_number_but_not_in_shape() -> None:
    # One row a class that the client has: ragged in dimension 0.
    good = [update(k, grad__rows=torch.ones(k, 5)) for k in range(3)]
    assert reasons(*good) == {}
    assert list(reasons(*good, update(3, grad__rows=torch.ones(2, 6)))) == [3]


def test_a_single_number_is_no_row() -> None:
    rows = [update(k, stat=torch.ones(4)) for k in range(2)]
    assert list(reasons(*rows, update(2, stat=torch.tensor(1.0)))) == [2]


def test_each_action_has_its_own_form() -> None:
    # Two clients train, one reports: the report is not odd, it is another thing.
    asked = [*tasks(0, 1), *tasks(2, action="inform")]
    replies = sift(asked, [update(0), update(1), update(2, counts__classes=torch.ones(3))])
    assert [u.client for u in replies.updates] == [0, 1, 2]
    assert replies.dropped == []


def test_one_client_with_two_actions() -> None:
    asked = [*tasks(0, 1), *tasks(0, 1, action="inform")]
    trained = [update(0), update(1)]
    informed = [update(k, counts__classes=torch.ones(3)) for k in (0, 1)]
    assert len(sift(asked, [*trained, *informed]).updates) == 4


def test_failures_are_reported_in_order_of_clients() -> None:
    replies = sift(
        tasks(0, 1, 2, 3),
        [update(2, model__w=torch.full((2, 3), float("nan"))), update(1)],
        [Dropped(3, "ValueError: x"), Dropped(0, "KeyError: y")],
    )
    assert [d.client for d in replies.dropped] == [0, 2, 3]
    assert [u.client for u in replies.updates] == [1]


def test_no_update_at_all() -> None:
    assert sift(tasks(0), []).updates == []
    assert sift([], []).dropped == []


def test_the_order_of_replies_never_matters() -> None:
    # Prepare: sums in float64 still depend on the order in their last bit, if nobody sorts.
    generator = torch.Generator().manual_seed(0)
    updates = [update(k, {"n": k + 1.0}, w=torch.randn(200, generator=generator)) for k in range(4)]

    # Execute
    means = []
    for order in permutations(updates):
        used = sift(tasks(0, 1, 2, 3), order).updates
        weights = [float(u.payload.scalars["n"]) for u in used]
        means.append(weighted_mean([u.payload.tensors for u in used], weights)["w"])

    # Assert
    assert all(torch.equal(mean, means[0]) for mean in means)
