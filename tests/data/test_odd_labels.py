"""Labels, clients and tails that are not what they seem: each is said in a sentence."""

from __future__ import annotations

import numpy as np
import pytest

from fedtail import IID, Arrays, Experiment, FedtailError, run
from fedtail.setting import prepare

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
Y = np.arange(60) % 3
OWNER = np.arange(60) % 7


def said(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(caplog.messages)


def test_gaps_in_labels_are_said(caplog: pytest.LogCaptureFixture) -> None:
    dataset = Arrays(X, Y * 2 + 1).load()
    assert dataset.num_classes == 6
    (sentence,) = caplog.messages
    assert "labels go up to 5, but no sample has 0, 2, 4" in sentence


def test_labels_without_gaps_or_with_names_are_not(caplog: pytest.LogCaptureFixture) -> None:
    Arrays(X, Y).load()
    Arrays(X, Y, classes=("a", "b", "c", "nobody")).load()
    Arrays(X, Y.astype(float)).load()
    assert not caplog.messages


def test_measurements_are_asked_about(caplog: pytest.LogCaptureFixture) -> None:
    x = np.zeros((400, 2), np.float32)
    Arrays(x, np.arange(400) % 110.0).load()
    assert "the labels are floats with 110 different values: is this a regression?" in said(caplog)
    caplog.clear()
    Arrays(x, np.arange(400) % 110).load()  # whole numbers are meant to be classes
    assert not caplog.messages


def test_a_class_that_nobody_holds_is_said(caplog: pytest.LogCaptureFixture) -> None:
    y = np.where(Y == 2, 0, Y)
    data = Arrays(X, y, X, Y, classes=("ash", "birch", "cedar"))
    setting = prepare(Experiment(data=data, partition=IID(), clients=2, device="cpu"))
    assert setting.remarks() == [
        "no client holds a sample of class cedar, which is tested: it cannot be learned"
    ]
    assert not caplog.messages  # a run says it once, looking at the data does not
    run(setting.experiment.but(rounds=1))
    assert said(caplog).count("class cedar") == 1


def test_data_without_a_tail_is_said_and_has_no_groups(caplog: pytest.LogCaptureFixture) -> None:
    result = run(Experiment(data=Arrays(X, Y), rounds=1, clients=2, device="cpu"))
    assert "the training data has no tail" in said(caplog)
    assert [result.metrics[key] for key in ("many", "medium", "few")] == [None] * 3
    caplog.clear()
    tail = {"name": "exponential", "imbalance": 4}
    result = run(Experiment(data=Arrays(X, Y), tail=tail, rounds=1, clients=2, device="cpu"))
    assert "tail" not in said(caplog)
    assert result.metrics["many"] is not None


def test_clients_of_the_data_are_the_clients_unless_others_are_asked_for() -> None:
    data = Arrays(X, Y, client_train=OWNER)
    natural = prepare(Experiment(data=data, device="cpu"))
    owners = natural.dataset.client_train
    assert owners is not None
    # One of the seven is held out whole, for the test.
    assert [set(owners[part]) for part in natural.split.parts] == [{k} for k in range(6)]
    some = prepare(Experiment(data=data, clients=3, device="cpu"))
    assert [len(set(owners[part])) for part in some.split.parts] == [1, 1, 1]
    asked = prepare(Experiment(data=data, partition=IID(), device="cpu"))
    assert len(asked.split.parts) == 10


def test_a_changed_copy_does_not_ask_for_a_partition() -> None:
    data = Arrays(X, Y, client_train=OWNER)
    copied = Experiment(data=data, device="cpu").but(seed=1)
    assert len(prepare(copied).split.parts) == 6
    assert "partition" not in copied.describe()
    assert Experiment(partition="iid").but(seed=1).describe()["partition"] == {"name": "iid"}


def test_groups_by_counts_are_scored_without_a_tail_and_it_is_not_said_that_they_are_not() -> None:
    counted = {"name": "thresholds", "many": 100, "few": 50}
    setting = prepare(Experiment(data=Arrays(X, Y), groups=counted, clients=2, device="cpu"))
    (sentence,) = setting.remarks()
    assert sentence == "the training data has no tail, all classes have about as many samples"


def test_groups_of_classes_that_are_not_there_are_refused_before_work_starts() -> None:
    groups = {"name": "index", "many_until": 2, "medium_until": 4}
    with pytest.raises(FedtailError, match=r"groups\.medium_until = 4 is beyond the 3 classes"):
        prepare(Experiment(data=Arrays(X, Y), groups=groups, clients=2, device="cpu"))


def test_bytes_in_one_set_and_other_numbers_in_the_other_are_refused() -> None:
    # Bytes count 0 to 1: the same images, once as bytes and once as floats, would differ by 255.
    x = (X * 20 + 100).astype(np.uint8)
    data = Arrays(x, Y, x.astype(np.float32), Y)
    with pytest.raises(FedtailError, match="training inputs are uint8 and test inputs float32"):
        prepare(Experiment(data=data, clients=2, device="cpu"))
