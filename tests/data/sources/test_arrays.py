from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from fedtail.data.sources import Arrays, Source
from fedtail.errors import FedtailError

X = np.arange(12, dtype=np.float64).reshape(6, 2)
Y = [0, 1, 0, 1, 0, 1]


def test_arrays_may_be_given_by_position_or_by_name() -> None:
    first = Arrays(X, Y, X[:2], Y[:2]).load()
    second = Arrays(x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2], classes=("no", "yes")).load()
    assert torch.equal(first.train.y, second.train.y)
    assert second.classes == ("no", "yes")
    assert first.train.x.dtype == torch.float32


def test_tensors_are_accepted_and_split_when_there_is_no_test_set() -> None:
    x = torch.zeros(20, 3, 32, 32, dtype=torch.uint8)
    source = Arrays(x, torch.arange(20) % 2, client_train=torch.arange(20) % 3)
    dataset = source.load()
    # One fifth of three clients is less than one: one is held out, of 7, 7 and 6 samples.
    assert len(dataset.train) + len(dataset.test) == 20
    assert len(dataset.test) in (6, 7)
    assert sorted(dataset.client_names) == ["0", "1", "2"]
    assert source.model_for(dataset) == "resnet8"


def test_a_description_holds_shapes_only() -> None:
    source = Arrays(X, Y, X[:2], Y[:2])
    shapes = {"x_train": [6, 2], "y_train": [6], "x_test": [2, 2], "y_test": [2]}
    assert source.describe() == {"name": "arrays", "shapes": shapes}
    assert "array" not in repr(source).removeprefix("Arrays")
    assert "x_train" not in repr(source)


def test_equality_is_identity_and_copies_hold_the_same_arrays() -> None:
    source = Arrays(X, Y, X[:2], Y[:2])
    assert source == source
    assert source != Arrays(X, Y, X[:2], Y[:2])
    assert len({source, source}) == 1
    changed = source.but(normalisation="none")
    assert changed.load().mean == ()
    assert changed.x_train is source.x_train
    assert torch.equal(pickle.loads(pickle.dumps(source)).load().train.y, source.load().train.y)


def test_wrong_arrays_are_refused() -> None:
    with pytest.raises(FedtailError, match="6 inputs but 5 labels"):
        Arrays(X, Y[:5]).load()
    with pytest.raises(FedtailError, match="beyond the 1 classes"):
        Arrays(X, Y, X, Y, classes=("only",)).load()


def test_it_cannot_be_made_from_a_file() -> None:
    with pytest.raises(ValueError, match="is made in Python"):
        Source.model_validate("arrays")
    with pytest.raises(ValueError, match=r"shapes|made in Python"):
        Source.model_validate(Arrays(X, Y).describe())


def test_it_stands_where_a_source_is_expected() -> None:
    source = Arrays(X, Y, X, Y)
    assert Source.model_validate(source) is source
