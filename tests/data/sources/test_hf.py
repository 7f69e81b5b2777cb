from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedtail.data.sources import HuggingFace
from fedtail.errors import FedtailError


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FedtailError, match=r"pip install '\.\[hf\]'"):
        HuggingFace(path="ylecun/mnist").load()


def test_a_data_set_saved_on_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    images = [np.full((8, 8, 3), i, np.uint8) for i in range(10)]
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "who": datasets.Value("string"),
        }
    )
    columns = {"image": images, "label": [0, 1] * 5, "who": ["ann", "bob"] * 5}
    train = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict({"train": train}).save_to_disk(str(tmp_path / "saved"))
    source = HuggingFace(path=str(tmp_path / "saved"), client="who")
    dataset = source.load()
    assert dataset.classes == ("cat", "dog")
    assert dataset.input_shape == (3, 8, 8)
    assert (len(dataset.train), len(dataset.test)) == (8, 2)
    assert dataset.client_names == ("ann", "bob")
    with pytest.raises(FedtailError, match="no column 'fine'"):
        source.but(label="fine").load()
    with pytest.raises(FedtailError, match="no split 'all'"):
        source.but(train_split="all").load()


def test_words_as_labels_and_rows_of_numbers(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    columns = {"x": [[1.0, 2.0], [3.0, 4.0]], "y": ["b", "a"]}
    part = datasets.Dataset.from_dict(columns)
    datasets.DatasetDict({"train": part, "test": part}).save_to_disk(str(tmp_path / "saved"))
    dataset = HuggingFace(path=str(tmp_path / "saved"), input="x", label="y").load()
    assert dataset.classes == ("a", "b")
    assert dataset.train.y.tolist() == [1, 0]
    assert dataset.input_shape == (2,)
