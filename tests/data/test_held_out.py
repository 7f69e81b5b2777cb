"""What is held out: how much, of whom, and that it is the same again."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedtail import FedtailError
from fedtail.data.held_out import Validation, held_out, held_out_clients, hold_out
from fedtail.data.longtail import NoTail
from fedtail.data.partitions import IID, Natural
from fedtail.data.split import Split, make_split

LABELS = np.repeat([0, 1, 2], [20, 10, 1])


def counts(labels: np.ndarray, share: float, client: int = 0) -> list[int]:
    chosen = labels[held_out(labels, share, 0, client)]
    return [int((chosen == c).sum()) for c in range(3)]


def test_a_share_of_each_class_and_a_lone_sample_stays() -> None:
    # A tenth of 20 and of 10 are whole numbers; of one sample none may go.
    assert counts(LABELS, 0.1) == [2, 1, 0]
    assert counts(LABELS, 0.5) == [10, 5, 0]


def test_one_sample_of_a_class_is_always_trained_on() -> None:
    # 0.95 of 20 is 19 and of 10 it is 9.5: nine, or ten of which one stays.
    assert counts(LABELS, 0.95) == [19, 9, 0]


def test_rare_classes_are_held_out_by_some_clients() -> None:
    # A tenth of five samples is half a sample: one of two clients holds one out. The standard
    # deviation of the mean over 2000 clients is 0.5 / sqrt(2000) = 0.0112; five of them are 0.056.
    five = np.zeros(5, np.int64)
    sizes = [len(held_out(five, 0.1, 0, client)) for client in range(2000)]
    assert set(sizes) == {0, 1}
    assert np.mean(sizes) == pytest.approx(0.5, abs=0.056)


def test_it_depends_on_the_seed_and_the_client_alone() -> None:
    first = held_out(LABELS, 0.3, 5, 2).tolist()
    assert held_out(LABELS, 0.3, 5, 2).tolist() == first == sorted(first)
    assert held_out(LABELS, 0.3, 5, 3).tolist() != first
    assert held_out(LABELS, 0.3, 6, 2).tolist() != first


@pytest.mark.parametrize(
    ("clients", "share", "size"), [(10, 0.1, 1), (10, 0.25, 2), (10, 0.01, 1), (3, 0.99, 2)]
)
def test_how_many_clients_are_held_out(clients: int, share: float, size: int) -> None:
    chosen = held_out_clients(clients, share, np.random.default_rng(0))
    assert len(set(chosen.tolist())) == size
    assert chosen.tolist() == sorted(chosen.tolist())


def test_nothing_is_lost_and_nothing_is_trained_on_twice() -> None:
    whole = make_split(LABELS, 3, NoTail(), IID(), 3, 0)
    cut = make_split(LABELS, 3, NoTail(), IID(), 3, 0, validation=Validation(share=0.4))
    for part, held, both in zip(cut.parts, cut.held_out, whole.parts, strict=True):
        assert sorted([*part, *held]) == sorted(both)
        assert len(held)
    assert cut.digest != whole.digest
    assert cut.held_counts.sum() + len(np.concatenate(cut.parts)) == len(LABELS)


def test_clients_that_are_held_out_come_after_the_others_and_keep_their_names() -> None:
    owner = np.repeat([4, 7, 9, 2], [8, 8, 8, 7])
    names = [f"patient {k}" for k in range(10)]
    chosen = Validation(share=0.25, by="client")
    split = make_split(LABELS, 3, NoTail(), Natural(), None, 0, owner, validation=chosen)
    # One of four: the last one. Who trains has no sample of it.
    assert [len(held) > 0 for held in split.held_out] == [False, False, False, True]
    assert len(split.parts) == 3
    for k, positions in enumerate([*split.parts, split.held_out[3]]):
        assert {names[owner[p]] for p in positions} == {split.names(names)[k]}
    trained = [int(name.split()[1]) for name in split.names(names)[:3]]
    assert trained == sorted(trained)  # natural clients stand in the order of their numbers
    told = json.loads(split.to_json(names))
    assert told["clients"] == list(split.names(names))
    assert sum(told["held_out_counts"]) == len(split.held_out[3])


def test_a_split_is_rebuilt_with_what_it_holds_out() -> None:
    made = make_split(LABELS, 3, NoTail(), IID(), 3, 1, validation=Validation(share=0.2))
    again = Split.from_json(made.to_json(), LABELS, 3)
    assert [h.tolist() for h in again.held_out] == [h.tolist() for h in made.held_out]
    assert again.digest == made.digest


def test_one_client_cannot_train_and_be_held_out() -> None:
    with pytest.raises(FedtailError, match="needs two clients at least"):
        hold_out(LABELS, [np.arange(31)], Validation(share=0.1, by="client"), 0)


def test_clients_without_natural_names_have_numbers() -> None:
    split = make_split(LABELS, 3, NoTail(), IID(), 3, 0, np.arange(31) % 5)
    natural = ["a", "b", "c", "d", "e"]
    assert split.names(natural) == ("0", "1", "2")
    assert json.loads(split.to_json(natural))["clients"] is None


def test_the_table_has_names_and_what_is_held_out() -> None:
    chosen = Validation(share=0.5)
    owner = np.arange(31) % 2
    split = make_split(LABELS, 3, NoTail(), Natural(), None, 0, owner, validation=chosen)
    table = split.table(natural=["ann", "bob"])
    assert list(table.columns[0].cells) == ["ann", "bob", "all", "held out"]
    assert split.summary()[-1].startswith("held out for validation: ")
