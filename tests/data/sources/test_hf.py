from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

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
    assert (len(dataset.train), len(dataset.test)) == (5, 5)  # one of two clients, whole
    assert set(dataset.client_names) == {"ann", "bob"}
    assert len(source.but(client=None).load().test) == 2  # of each class a fifth
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


class Split(dict[str, Any]):
    """Columns, as far as the source looks at a split of a Hugging Face data set."""

    @property
    def column_names(self) -> list[str]:
        return list(self)

    @property
    def features(self) -> dict[str, Any]:
        return dict.fromkeys(self)


def hub(monkeypatch: pytest.MonkeyPatch, **splits: Split) -> None:
    package = SimpleNamespace(load_dataset=lambda path, subset: splits)
    monkeypatch.setitem(sys.modules, "datasets", package)


def test_words_that_are_only_tested_are_classes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    x = [[float(i)] for i in range(4)]
    hub(monkeypatch, train=Split(x=x, y=list("caca")), test=Split(x=x, y=list("abca")))
    dataset = HuggingFace(path="some/name", input="x", label="y").load()
    assert dataset.classes == ("a", "b", "c")
    assert dataset.test.y.tolist() == [0, 1, 2, 0]
    assert dataset.given.named  # so predictions are words


def test_a_split_that_tests_must_be_there_if_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    x = [[float(i)] for i in range(20)]
    hub(monkeypatch, train=Split(x=x, y=[0, 1] * 10))
    source = HuggingFace(path="some/name", input="x", label="y")
    assert len(source.load().test) == 4
    assert len(source.but(test_split=None).load().test) == 4
    with pytest.raises(FedtailError, match="no split 'validaton'"):
        source.but(test_split="validaton").load()


def test_images_with_palettes_are_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [Image.new("RGB", (5, 5), (10 * i, 0, 255)).convert("P") for i in range(4)]
    colours = [np.asarray(image.convert("RGB")) for image in images]
    hub(
        monkeypatch,
        train=Split(image=images, label=[0, 1] * 2),
        test=Split(image=images, label=[0, 1] * 2),
    )
    x = HuggingFace(path="some/name").load().train.x
    assert np.array_equal(np.asarray(x).transpose(0, 2, 3, 1), np.stack(colours))
