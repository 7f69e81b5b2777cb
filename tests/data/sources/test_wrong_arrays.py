"""Whatever a user hands to `Arrays`: one sentence that names the array they gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedtail import FedtailError
from fedtail.data.sources import Arrays

X = np.arange(60, dtype=np.float32).reshape(20, 3)
Y = np.arange(20) % 2
T = torch.from_numpy(X)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        # Labels
        ({"y_train": np.eye(2)[Y]}, "y_train: labels must be one-dimensional, got shape (20, 2);"),
        ({"y_train": Y[:, None]}, "y_train: labels must be one-dimensional, got shape (20, 1)"),
        ({"y_train": 1}, "y_train: labels must be one-dimensional, got shape ()"),
        ({"y_train": {0, 1}}, "y_train: labels must be one-dimensional, got shape ()"),
        ({"y_train": [[0], [0, 1]] * 10}, "y_train: rows of different lengths make no array"),
        ({"y_train": [["cat", "dog"]] * 10}, "y_train: labels must be one-dimensional, got shape"),
        ({"y_train": [None] * 20}, "y_train: labels must be whole numbers, got object values"),
        ({"y_train": Y > 0}, "y_train: labels must be whole numbers, got bool values"),
        ({"y_train": Y + 0.5}, "y_train: labels must be whole numbers, got float64 values"),
        ({"y_train": Y * np.nan}, "y_train: labels must be whole numbers, got float64 values"),
        ({"y_train": Y - 1}, "y_train: labels must not be negative, found -1"),
        ({"y_train": Y * 10**7}, "y_train: label 1e+07 is too large"),
        ({"y_train": Y[:5]}, "x_train and y_train: 20 inputs but 5 labels"),
        ({"y_train": torch.tensor(Y).to_sparse()}, "y_train: a dense tensor is needed"),
        # Inputs
        ({"x_train": [[1, 2], [3]]}, "x_train: rows of different lengths make no array"),
        ({"x_train": [torch.ones(2), torch.ones(3)]}, "x_train: rows of different lengths"),
        ({"x_train": [T[0].clone().requires_grad_()]}, "x_train: this makes no array (Runtime"),
        ({"x_train": np.array([[1], [2, 3]], object)}, "x_train: inputs must be numbers, got obj"),
        ({"x_train": {"a": X}}, "x_train: inputs must be numbers, got object"),
        ({"x_train": (row for row in X)}, "x_train: inputs must be numbers, got object"),
        ({"x_train": "mine.npz"}, "x_train: inputs must be numbers, got <U8"),
        ({"x_train": X * 1j}, "x_train: inputs must be numbers, got complex64"),
        ({"x_train": T * 1j}, "x_train: inputs must be numbers, got a strided tensor of complex"),
        ({"x_train": T.to_sparse()}, "x_train: inputs must be numbers, got a sparse_coo tensor"),
        ({"x_train": 3.0}, "x_train: inputs need a sample and a feature axis, got shape ()"),
        ({"x_train": []}, "x_train: inputs need a sample and a feature axis, got shape (0,)"),
        ({"x_train": X[:, 0]}, "x_train: inputs need a sample and a feature axis, got shape (20,"),
        ({"x_train": X[:, :0]}, "x_train: inputs need a sample and a feature axis, got shape (2"),
        ({"x_train": X * np.nan}, "x_train: inputs hold NaN or infinite values"),
        ({"x_train": T / 0}, "x_train: inputs hold NaN or infinite values"),
        ({"x_train": X[:0], "y_train": Y[:0]}, "x_train: no samples"),
        # The rest
        ({"client_train": [1, 2, 3]}, "client_train: shape (3,), but there are 20 samples"),
        ({"client_train": range(30)}, "client_train: shape (30,), but there are 20 samples"),
        ({"client_train": [[1], [1, 2]]}, "client_train: rows of different lengths make no array"),
        ({"client_train": Y / 2}, "client_train: clients must be whole numbers or names, got flo"),
        ({"client_train": [None] * 20}, "client_train: clients must be whole numbers or names"),
        ({"client_test": Y}, "client_test is given, but no x_test and y_test"),
        (
            {"client_train": Y - 1, "clients": ("a", "b")},
            "client -1 is beyond the 2 names in clients",
        ),
        ({"classes": ("a",)}, "y_train: label 1 is beyond the 1 classes (allowed: 0 to 0)"),
        ({"classes": ()}, "classes: a list of names is needed, got shape (0,)"),
        (
            {"x_train": X[:3], "y_train": [0, 1, 2]},
            "no class is large enough to test with 0.2 of it",
        ),
        ({"x_test": X}, "x_test and y_test must be given together"),
    ],
)
def test_without_a_test_set_nothing_is_said_of_one(given: dict[str, Any], said: str) -> None:
    with pytest.raises(FedtailError) as caught:
        Arrays(**{"x_train": X, "y_train": Y, **given}).load()
    message = str(caught.value)
    assert message.removeprefix("arrays").removeprefix(", ").removeprefix(": ").startswith(said)
    assert "\n" not in message
    assert "test set" not in message


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"y_test": np.eye(2)[Y]}, "arrays, y_test: labels must be one-dimensional, got shape (2"),
        ({"y_test": Y[:5]}, "arrays, x_test and y_test: 20 inputs but 5 labels"),
        ({"x_test": X[:0], "y_test": Y[:0]}, "arrays, x_test: no samples"),
        ({"x_test": X + np.inf}, "arrays, x_test: inputs hold NaN or infinite values"),
        ({"x_test": X[:, :2]}, "arrays: a training input has shape (3,) but a test input (2,)"),
        (
            {"client_train": Y, "client_test": [1]},
            "arrays, client_test: shape (1,), but there are ",
        ),
        ({"client_test": Y}, "arrays: client_test is given, but no client_train"),
        (
            {"client_train": Y.astype(str), "client_test": Y},
            "arrays: of client_train and client_test one holds names and one numbers",
        ),
        (
            {"client_train": Y, "clients": ("ann", "ann")},
            "arrays: two clients are called 'ann' in clients",
        ),
        (
            {"drop": ("1",), "classes": tuple("abc")},
            "arrays: data.drop names '1', but the classes are",
        ),
        (
            {"y_test": 0 * Y, "drop": ("a",), "classes": tuple("abc")},
            "arrays: data.drop leaves no sample in the test set",
        ),
        (
            {"y_train": 0 * Y, "drop": ("a",), "classes": tuple("abc")},
            "arrays: data.drop leaves no sample in the training set",
        ),
        (
            {"y_train": list("ab") * 10, "y_test": list("ab") * 10, "classes": tuple("aba")},
            "arrays: labels are names, and two classes are called 'a'",
        ),
    ],
)
def test_with_a_test_set_it_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(FedtailError) as caught:
        Arrays(**{"x_train": X, "y_train": Y, "x_test": X, "y_test": Y, **given}).load()
    assert str(caught.value).startswith(said)


def test_what_can_be_understood_is_taken() -> None:
    for x, y in [
        (T.clone().requires_grad_(), torch.tensor(Y, dtype=torch.float32, requires_grad=True)),
        (T.bfloat16(), torch.tensor(Y).bfloat16()),
        (X.tolist(), Y.tolist()),
        (list(T), list(torch.tensor(Y))),
    ]:
        found, expected = Arrays(x, y).load().train, Arrays(X, Y).load().train
        assert isinstance(found.x, torch.Tensor)
        assert isinstance(expected.x, torch.Tensor)
        assert not found.x.requires_grad
        assert torch.equal(found.x, expected.x)
        assert torch.equal(found.y, expected.y)


TEXT_TYPES = [object, "S", "U"] + (
    [np.dtypes.StringDType()] if hasattr(np.dtypes, "StringDType") else []  # from NumPy 2 on
)


@pytest.mark.parametrize("kind", TEXT_TYPES, ids=str)
def test_names_come_in_many_types(kind: Any) -> None:
    names = np.array(["ann", "bob"])[Y].astype(kind)  # pandas gives objects
    dataset = Arrays(X, names, X, Y.astype(str), classes=("0", "1", "ann", "bob")).load()
    assert dataset.train.y.tolist() == (Y + 2).tolist()
    dataset = Arrays(X, Y, X, Y, client_train=names, client_test=np.array(["bob", "ann"])[Y]).load()
    assert dataset.client_names == ("ann", "bob")
    assert dataset.client_test is not None
    assert dataset.client_test.tolist() == (1 - Y).tolist()
