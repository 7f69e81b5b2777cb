"""The embedded engine: the same bits for any number of workers, and no client can stop a round."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import odd_methods
import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import Augment, FedAvg, FedtailError, Method, run
from fedtail.callbacks import Callback, Snapshot
from fedtail.engines import Dropped, Embedded
from fedtail.forms import Form
from fedtail.methods import ModelState
from fedtail.models import SplitModel
from fedtail.protocol import Payload, Task, grouped
from fedtail.setting import prepare


@contextmanager
def engine(
    method: Method[Any], workers: int = 0, drop: bool = False, **fields: Any
) -> Iterator[Embedded]:
    runtime = prepare(tiny.experiment(method, **fields)).runtime()
    made = Embedded(runtime, workers, drop=drop)
    try:
        yield made
    finally:
        made.close()


def ask(*clients: int, action: str = "ask") -> list[Task]:
    payload = Payload()
    return [Task(client, action, payload) for client in clients]


class Keep(Callback):
    """Keeps the clients' last states."""

    states: dict[int, dict[str, Tensor]]

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self.states = {k: dict(state) for k, state in snapshot.client_states.items()}


def trained(workers: int) -> tuple[str, dict[int, dict[str, Tensor]], list[Any]]:
    """Return what is left of a run with dropout, augmentation and client states."""
    kept = Keep()
    result = run(
        tiny.experiment(
            FedAvg(local=tiny.quick(momentum=0.9), buffers="local"),
            tiny.dropout_model,
            augment=Augment(crop=1, flip=True, cutout=2),
            workers=workers,
            rounds=2,
        ),
        callbacks=[kept],
    )
    metrics = [{k: v for k, v in record.items() if k != "seconds"} for record in result.history]
    return result.digest, kept.states, metrics


@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_any_number_of_workers_gives_the_same_bits(workers: int) -> None:
    # Execute
    alone_digest, alone_states, alone_metrics = trained(0)
    digest, states, metrics = trained(workers)

    # Assert
    assert digest == alone_digest
    assert metrics == alone_metrics
    assert states.keys() == alone_states.keys() != set()
    for client, state in states.items():
        assert state.keys() == alone_states[client].keys()
        assert all(torch.equal(state[name], alone_states[client][name]) for name in state)


def test_what_the_isolated_hands_do_is_what_a_pool_does() -> None:
    # `tiny.Isolated` stands in for a pool in the conformance suite.
    chosen = tiny.experiment(FedAvg(local=tiny.quick(), buffers="local"), tiny.dropout_model)
    assert tiny.run_with(chosen, tiny.Isolated).digest == run(chosen).digest


def test_a_client_that_raises_is_dropped_with_its_reason_and_keeps_its_state() -> None:
    with engine(odd_methods.Raising(), drop=True) as made:
        made.perform(ask(0, 1), 1, 3)
        replies = made.perform(ask(0, 1), 2, 3)
        assert [update.client for update in replies.found.each] == [0]
        line = tiny.line_of(odd_methods, 'raise ValueError("out of luck")')
        reason = f"ValueError: out of luck (odd_methods.py, line {line})"
        assert replies.dropped == [Dropped(1, reason, raised=True)]
        assert made.states[0]["seen"].tolist() == [2.0]
        assert made.states[1]["seen"].tolist() == [1.0]


def test_a_client_that_sends_nan_keeps_its_old_state() -> None:
    with engine(odd_methods.Poisoned()) as made:
        made.perform(ask(0, 1), 1, 3)
        replies = made.perform(ask(0, 1), 2, 3)
        assert replies.dropped == [Dropped(1, "sent NaN or infinity in x")]
        assert made.states[1]["seen"].tolist() == [1.0]


@pytest.mark.parametrize("action", ["no_such_action", "unmarked", "broadcast", "__init__"])
def test_only_marked_functions_can_be_asked_for(action: str) -> None:
    with (
        engine(odd_methods.Remembering()) as made,
        pytest.raises(FedtailError, match=f"has no client action '{action}'"),
    ):
        made.perform(ask(0, action=action), 1, 1)


def test_the_second_task_of_a_client_sees_the_first() -> None:
    with engine(odd_methods.Remembering()) as made:
        first, second, other = made.perform(ask(4, 4, 5), 1, 1).found.each

        # Assert: one more, on the next turn, and with other random numbers.
        assert [first.payload.scalars["turn"], second.payload.scalars["turn"]] == [0, 1]
        assert [u.payload.tensors["count"].tolist() for u in (first, second)] == [[1.0], [2.0]]
        for drawn in ("drawn", "stream"):
            draws = [u.payload.tensors[drawn] for u in (first, second, other)]
            assert not torch.equal(draws[0], draws[1])
            assert not torch.equal(draws[0], draws[2])
        assert made.states[4]["count"].tolist() == [2.0]


def test_turns_count_over_the_exchanges_of_a_round_and_start_anew() -> None:
    with engine(odd_methods.Remembering()) as made:
        found = [
            made.perform(ask(0), number, 2).found.each[0].payload.scalars["turn"]
            for number in (1, 1, 1, 2)
        ]
        assert found == [0, 1, 2, 0]


def test_a_client_may_forget() -> None:
    with engine(odd_methods.Remembering()) as made:
        made.perform(ask(0), 1, 2)
        made.perform(ask(0, action="forget"), 2, 2)
        assert made.states[0] == {}
        # Within one exchange, too: count, forget, count again.
        tasks = [*ask(3), *ask(3, action="forget"), *ask(3)]
        counts = [u.payload.tensors.get("count") for u in made.perform(tasks, 3, 3).found.each]
        assert [None if c is None else c.tolist() for c in counts] == [[1.0], None, [1.0]]


def test_a_client_without_state_costs_none() -> None:
    with engine(odd_methods.Remembering()) as made:
        made.perform(ask(0, action="forget"), 1, 1)
        assert made.states == {}


def test_a_model_that_cannot_be_sent_to_workers_is_one_sentence() -> None:
    class Local(nn.Sequential):
        """A class that no other process can import."""

    model = Local(nn.Flatten(), nn.Linear(192, 4))
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(192, 6))
    for odd in (model, nn.Sequential(nn.Flatten(), normed, nn.Linear(6, 4))):
        refused_by_workers(odd)


def refused_by_workers(model: nn.Module) -> None:
    with pytest.raises(FedtailError, match=r"cannot be sent to worker processes .*workers = 0"):
        run(tiny.experiment(model=lambda: model, workers=1))


def wide_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 37), nn.ReLU(), nn.Linear(37, tiny.CLASSES))


def features_alive() -> int:
    """Count batches of 37 wide features; the classifier's weight has this width too."""
    gc.collect()
    alive = [t for t in gc.get_objects() if type(t) in (Tensor, nn.Parameter)]
    return sum(t.ndim == 2 and t.shape[1] == 37 and t.shape[0] == 5 for t in alive)


class Looking(FedAvg[ModelState]):
    """Needs every client's own model."""

    def train_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        return super().train_form(task, model, classes).singly("the test looks at each")


def test_features_are_not_kept_alive() -> None:
    # Batches of five, so that features are (5, 37): nothing else here has that shape.
    setting = prepare(tiny.experiment(Looking(local=tiny.quick(batch_size=5)), wide_model))
    made = Embedded(setting.runtime())
    model = Payload(grouped("model", setting.model.tensors()))
    replies = made.perform([Task(client, "train", model) for client in range(6)], 1, 1)
    assert len(replies.found.each) == 6
    assert features_alive() == 0
    assert all(not t.requires_grad for u in replies.found.each for t in u.payload.tensors.values())
