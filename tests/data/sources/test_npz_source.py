"""The user's own npz: what is read from it, and one sentence for each thing wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedtail.data.formats.npz import read_npz, write_npz
from fedtail.data.raw import Raw
from fedtail.data.sources import Npz
from fedtail.errors import FedtailError

LABELS = np.array([0, 1, 2, 0, 1, 2])


def arrays(**changes: Any) -> dict[str, Any]:
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    return {"x_train": x, "y_train": LABELS, "x_test": x[:3], "y_test": LABELS[:3], **changes}


def saved(folder: Path, **changes: Any) -> Npz:
    kept = {key: value for key, value in arrays(**changes).items() if value is not None}
    np.savez(folder / "mine.npz", **kept)
    return Npz(path=str(folder / "mine.npz"))


def refusal(folder: Path, **changes: Any) -> str:
    source = saved(folder, **changes)
    with pytest.raises(FedtailError) as caught:
        source.load()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_vectors_labels_and_derived_class_names(tmp_path: Path) -> None:
    dataset = saved(tmp_path).load()
    assert dataset.train.x.shape == (6, 2)
    assert dataset.classes == ("0", "1", "2")
    assert dataset.train.y.tolist() == LABELS.tolist()
    # Nobody looks at all training data: the run asks its clients (tests/test_standardise.py).
    assert (dataset.mean, dataset.std, dataset.normalisation) == ((), (), "standard")
    assert saved(tmp_path).model_for(dataset) == "mlp"


def test_normalisation_can_be_given_or_left_out(tmp_path: Path) -> None:
    source = saved(tmp_path)
    assert source.but(normalisation="none").load().normalisation == "none"
    given = source.but(mean=(1.0, 2.0), std=(3.0, 4.0)).load()
    assert (given.mean, given.std, given.normalisation) == ((1.0, 2.0), (3.0, 4.0), "none")
    with pytest.raises(FedtailError, match="3 numbers, but inputs have 2 channels or features"):
        source.but(mean=(1.0, 2.0, 3.0), std=(1.0,) * 3).load()
    for mean, std in (((1.0,), ()), ((1.0,), (0.0,)), ((), (1.0,))):
        with pytest.raises(FedtailError, match="go together"):
            source.but(mean=mean, std=std)


def test_labels_may_be_names(tmp_path: Path) -> None:
    names = np.array(list("cabcab"))
    dataset = saved(tmp_path, y_train=names, y_test=np.array(["b", "c", "a"])).load()
    assert dataset.classes == ("a", "b", "c")
    assert dataset.train.y.tolist() == [2, 0, 1, 2, 0, 1]
    assert dataset.test.y.tolist() == [1, 2, 0]
    assert dataset.given.named
    order = saved(
        tmp_path, y_train=names, y_test=names[:3], classes=np.array(["b", "c", "a", "d"])
    ).load()
    assert order.classes == ("b", "c", "a", "d")
    assert order.test.y.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("shape", "expected", "model"),
    [
        ((6, 40, 32, 3), (3, 40, 32), "resnet8"),
        ((6, 3, 32, 40), (3, 32, 40), "resnet8"),
        ((6, 28, 28), (1, 28, 28), "cnn"),
        ((6, 28, 28, 1), (1, 28, 28), "cnn"),
        ((6, 16, 16), (1, 16, 16), "small_cnn"),
        ((6, 16, 16, 3), (3, 16, 16), "small_cnn"),
    ],
)
def test_images_become_nchw(
    tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...], model: str
) -> None:
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    source = saved(tmp_path, x_train=x, x_test=x[:3])
    dataset = source.load()
    assert dataset.input_shape == expected
    assert dataset.train.x.dtype == torch.uint8
    assert source.model_for(dataset) == model


def test_a_channel_last_pixel_keeps_its_place(tmp_path: Path) -> None:
    x = np.zeros((6, 8, 9, 3), np.uint8)
    x[4, 2, 5, 1] = 200
    dataset = saved(tmp_path, x_train=x, x_test=x[:3]).load()
    assert dataset.train.x[torch.tensor([4])][0, 1, 2, 5] == 200


def test_integers_are_scaled_along_the_last_axis(tmp_path: Path) -> None:
    x = np.ones((6, 4, 2), np.int16) * 10
    dataset = saved(tmp_path, x_train=x, x_test=x[:3], scale=np.array([0.5, 2.0])).load()
    assert dataset.train.x[torch.tensor([0])][0, 0].tolist() == [5.0, 20.0]
    assert dataset.given.scale == (0.5, 2.0)
    assert "last axis" in refusal(tmp_path, x_train=x, x_test=x[:3], scale=np.ones(3))


def test_clients_are_numbered_with_training_clients_first(tmp_path: Path) -> None:
    dataset = saved(
        tmp_path,
        client_train=np.array([205, 101, 205, 101, 300, 300]),
        client_test=np.array([100, 101, 100]),
    ).load()
    assert dataset.client_train is not None and dataset.client_test is not None
    assert dataset.client_train.tolist() == [1, 0, 1, 0, 2, 2]
    assert dataset.client_test.tolist() == [3, 0, 3]
    assert dataset.client_names == ("101", "205", "300", "100")


def test_clients_may_have_names(tmp_path: Path) -> None:
    numbers = np.array([2, 0, 2, 0, 2, 2], np.uint8)
    dataset = saved(tmp_path, client_train=numbers, clients=np.array(["ann", "bob", "cy"])).load()
    assert dataset.client_names == ("ann", "cy")
    words = np.array(["b", "a", "b", "a", "b", "b"])
    assert saved(tmp_path, client_train=words).load().client_names == ("a", "b")


def test_a_missing_test_set_is_cut_from_every_class(tmp_path: Path) -> None:
    y = np.repeat([0, 1, 2], [20, 10, 1])
    x = np.arange(62, dtype=np.float32).reshape(31, 2)
    source = saved(tmp_path, x_train=x, y_train=y, x_test=None, y_test=None)
    dataset = source.load()
    # One fifth of 20 and of 10; the lone sample of class 2 stays in the training set.
    assert dataset.test.y.bincount(minlength=3).tolist() == [4, 2, 0]
    assert dataset.train.y.bincount(minlength=3).tolist() == [16, 8, 1]
    assert torch.equal(dataset.test.y, source.load().test.y)
    other = source.but(split_seed=1).load()
    assert not torch.equal(
        dataset.test.x[torch.arange(6)][:, 0], other.test.x[torch.arange(6)][:, 0]
    )


def test_natural_clients_are_held_out_whole_if_there_is_no_test_set(tmp_path: Path) -> None:
    # Ten clients of three samples each: a fifth of them is two, whichever they are.
    owner = np.repeat(np.arange(10), 3)
    x = np.arange(30, dtype=np.float32)[:, None]
    given = {"x_train": x, "y_train": owner % 2, "client_train": owner}
    source = saved(tmp_path, x_test=None, y_test=None, **given)
    dataset = source.load()
    assert dataset.client_train is not None and dataset.client_test is not None
    trained, tested = set(dataset.client_train.tolist()), set(dataset.client_test.tolist())
    assert (len(dataset.test), len(tested), len(trained)) == (6, 2, 8)
    assert not trained & tested
    # Every sample is where its client is: sample 3 k + i is of client k.
    names = [dataset.client_names[k] for k in dataset.client_test]
    assert [str(int(v) // 3) for v in dataset.test.x[torch.arange(6)][:, 0]] == names
    assert torch.equal(dataset.test.y, source.load().test.y)
    others = [source.but(split_seed=seed).load().client_names[8:] for seed in range(5)]
    assert len(set(others)) > 1  # who only tests has the last numbers


def test_samples_of_a_lone_client_are_cut(tmp_path: Path) -> None:
    given = {"x_train": np.ones((10, 2), np.float32), "y_train": np.arange(10) % 2}
    source = saved(tmp_path, x_test=None, y_test=None, client_train=np.zeros(10, int), **given)
    assert len(source.load().test) == 2


def test_classes_can_be_left_out_by_name(tmp_path: Path) -> None:
    source = saved(
        tmp_path,
        classes=np.array(["N", "S", "V"]),
        client_train=np.array([7, 7, 7, 8, 9, 9]),
        client_test=np.array([7, 7, 9]),
    )
    dataset = source.but(drop=("N",)).load()
    assert dataset.classes == ("S", "V")
    # Labels 0, 1, 2, 0, 1, 2 lose their zeros; what follows moves up by one.
    assert dataset.train.y.tolist() == [0, 1, 0, 1]
    assert dataset.test.y.tolist() == [0, 1]
    rows = dataset.train.x[torch.arange(4)][:, 0].tolist()
    assert rows == [2.0, 4.0, 8.0, 10.0]
    # Client 8 held class N alone; the numbers of the others stay.
    assert dataset.client_train is not None and dataset.client_train.tolist() == [0, 0, 2, 2]
    assert dataset.client_test is not None and dataset.client_test.tolist() == [0, 2]
    assert dataset.client_names == ("7", "8", "9")


@pytest.mark.parametrize(
    ("drop", "words"),
    [
        (("Q",), "data.drop names 'Q', but the classes are N, S, V"),
        (("N", "S"), "data.drop leaves fewer than two classes"),
    ],
)
def test_a_class_that_cannot_be_left_out(tmp_path: Path, drop: tuple[str, ...], words: str) -> None:
    source = saved(tmp_path, classes=np.array(["N", "S", "V"])).but(drop=drop)
    with pytest.raises(FedtailError, match=words):
        source.load()


def test_a_relative_path_is_also_looked_for_in_the_data_folder(data: Path) -> None:
    np.savez(data / "mine.npz", **arrays())
    assert len(Npz(path="mine.npz").load().train) == 6


def test_a_path_object_is_described_as_text(tmp_path: Path) -> None:
    source = Npz.model_validate({"path": tmp_path / "mine.npz"})
    assert source.describe()["path"] == str(tmp_path / "mine.npz")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_train": None}, "key 'y_train' is missing"),
        ({"y_test": None}, "x_test and y_test must be given together"),
        ({"y_train": LABELS[:5]}, "6 inputs but 5 labels"),
        ({"y_train": LABELS - 1}, "must not be negative, found -1"),
        ({"y_train": LABELS + 0.5}, "must be whole numbers"),
        ({"y_train": np.where(LABELS == 2, np.inf, LABELS)}, "must be whole numbers"),
        ({"y_train": np.array(list("abcabc"))}, "y_test holds numbers, but other labels are names"),
        (
            {
                "y_train": np.array(list("abcabc")),
                "y_test": np.array(list("abx")),
                "classes": np.array(list("abc")),
            },
            "label 'x' is none of the classes (a, b, c)",
        ),
        ({"y_train": LABELS + 10**9}, "too large"),
        ({"classes": np.array(["a", "b"])}, "label 2 is beyond the 2 classes"),
        ({"x_train": np.full((6, 2), np.nan)}, "NaN or infinite"),
        ({"x_train": np.full((6, 2), 1e300)}, "NaN or infinite"),
        ({"x_train": np.array([["a"]] * 6)}, "must be numbers"),
        ({"x_train": np.ones(6)}, "a sample and a feature axis"),
        ({"x_test": np.ones((3, 5))}, "a training input has shape (2,)"),
        ({"x_test": np.ones((0, 2)), "y_test": LABELS[:0]}, "no samples"),
        ({"client_train": np.zeros(4, int)}, "there are 6 samples"),
        ({"client_train": np.zeros(6)}, "whole numbers or names"),
        ({"client_train": LABELS, "clients": np.array(["a"])}, "beyond the 1 names"),
        ({"x_train": np.array([[None, {}]] * 6)}, "pickled objects are refused"),
    ],
)
def test_bad_content_is_refused_in_one_sentence(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    assert words in refusal(tmp_path, **changes)


def test_bad_files_are_refused(tmp_path: Path, data: Path) -> None:
    with pytest.raises(FedtailError, match=r"there is no file none\.npz"):
        Npz(path="none.npz").load()
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(FedtailError, match="is not an npz"):
        Npz(path=str(tmp_path / "text.npz")).load()
    np.save(tmp_path / "one.npy", LABELS)
    with pytest.raises(FedtailError, match="holds one array"):
        Npz(path=str(tmp_path / "one.npy")).load()


def test_writing_leaves_only_the_whole_file(tmp_path: Path) -> None:
    target = tmp_path / "new" / "set.npz"
    write_npz(target, Raw(**arrays(classes=["a", "b", "c"])))
    assert [path.name for path in target.parent.iterdir()] == ["set.npz"]
    raw = read_npz(target)
    assert raw.classes is not None and list(raw.classes) == ["a", "b", "c"]
    with pytest.raises(FedtailError, match="cannot be kept"):
        write_npz(target, Raw(**arrays(classes=np.array([object()]))))
    assert [path.name for path in target.parent.iterdir()] == ["set.npz"]
    assert read_npz(target).clients is None
