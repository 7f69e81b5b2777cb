"""Official archives of images: tiny ones are written here, byte by byte as their formats say."""

from __future__ import annotations

import gzip
import io
import json
import struct
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from scipy.io import savemat

from fedtail.data.dataset import Features
from fedtail.data.formats.idx import parse_idx
from fedtail.data.sources import Cifar10, Cifar100, FashionMnist, Femnist, Mnist, Source, Svhn
from fedtail.errors import FedtailError

RNG = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def tar(path: Path, members: Mapping[str, bytes], mode: Literal["w:gz", "w:bz2"] = "w:gz") -> None:
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def every(x: Features, n: int) -> np.ndarray:
    return np.asarray(x[torch.arange(n)])


def write_mnist(folder: Path) -> np.ndarray:
    folder.mkdir()
    images = pixels(4, 28, 28)
    for part, n in (("train", 4), ("t10k", 2)):
        files = {"images-idx3": images[:n], "labels-idx1": np.arange(n)}
        for name, array in files.items():
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    return images


@pytest.mark.parametrize("source", [Mnist(), FashionMnist()])
def test_idx_files(data: Path, source: Mnist | FashionMnist) -> None:
    images = write_mnist(data / source.name)
    dataset = source.load()
    assert np.array_equal(every(dataset.train.x, 4), images[:, None])
    assert dataset.test.y.tolist() == [0, 1]
    assert dataset.num_classes == 10
    assert source.located() == str(data / source.name / "train-images-idx3-ubyte.gz")


def test_idx_files_of_another_set_are_not_taken_for_mnist(data: Path) -> None:
    write_mnist(data / "mnist")
    for path in (data / "mnist").iterdir():
        path.rename(data / path.name)  # loose files: only the official hash says whose they are
    with pytest.raises(FedtailError, match="fedtail data fetch mnist"):
        Mnist().load()


def test_damaged_idx_files_are_refused() -> None:
    whole = idx(np.zeros((2, 3)))
    for broken in (b"", b"hello", whole[:6], whole[:-1], gzip.compress(whole)[:-9]):
        with pytest.raises(FedtailError, match=r"^file "):
            parse_idx(broken, "file")


def test_normalisation_constants() -> None:
    assert Mnist().constants() == ((), ())
    assert Mnist(normalisation="standard").constants() == ((0.1307,), (0.3081,))
    assert Cifar10().constants()[1] == (0.2470, 0.2435, 0.2616)
    assert Cifar10(normalisation="balancefl").constants()[1] == (0.2023, 0.1994, 0.2010)
    assert Cifar10(normalisation="none").constants() == ((), ())
    assert Cifar100().constants()[0] == (0.5071, 0.4865, 0.4409)


def test_cifar10_binary(data: Path) -> None:
    images = pixels(6, 3, 32, 32)
    records = [bytes([9 - i]) + images[i].tobytes() for i in range(6)]
    names = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]
    members = dict(zip([*names, "cifar-10-batches-bin/test_batch.bin"], records, strict=True))
    tar(data / "cifar-10-binary.tar.gz", members)
    dataset = Cifar10().load()
    assert dataset.train.y.tolist() == [9, 8, 7, 6, 5]
    assert np.array_equal(every(dataset.train.x, 5), images[:5])
    assert np.array_equal(every(dataset.test.x, 1), images[5:])
    assert dataset.classes[9] == "truck"


def test_cifar100_binary_uses_the_fine_label(data: Path) -> None:
    images = pixels(2, 3, 32, 32)
    members = {
        "cifar-100-binary/train.bin": bytes([4, 1]) + images[0].tobytes(),
        "cifar-100-binary/test.bin": bytes([4, 0]) + images[1].tobytes(),
        "cifar-100-binary/fine_label_names.txt": b"apple\nbear\n",
    }
    (data / "cifar100").mkdir()
    tar(data / "cifar100" / "cifar-100-binary.tar.gz", members)
    dataset = Cifar100().load()
    assert dataset.train.y.tolist() == [1]
    assert dataset.classes == ("apple", "bear")
    assert np.array_equal(every(dataset.test.x, 1), images[1:])


def test_damaged_cifar_archives_are_refused(data: Path) -> None:
    archive = data / "cifar-100-binary.tar.gz"
    tar(archive, {"train.bin": b"abc", "test.bin": b"", "fine_label_names.txt": b"a"})
    with pytest.raises(FedtailError, match="3 bytes are not a whole number of 3074-byte records"):
        Cifar100().load()
    tar(archive, {"train.bin": b"abc"})
    with pytest.raises(FedtailError, match=r"holds no test\.bin"):
        Cifar100().load()
    archive.write_bytes(b"not a tar")
    with pytest.raises(FedtailError, match="damaged archive"):
        Cifar100().load()


def test_svhn_mat(data: Path) -> None:
    images = pixels(32, 32, 3, 3)
    (data / "svhn").mkdir()
    for part in ("train", "test"):
        content = {"X": images, "y": np.array([[10], [1], [9]], np.uint8)}
        savemat(data / "svhn" / f"{part}_32x32.mat", content)
    dataset = Svhn().load()
    assert dataset.train.y.tolist() == [0, 1, 9]
    assert np.array_equal(every(dataset.train.x, 3)[1], images[:, :, :, 1].transpose(2, 0, 1))
    (data / "svhn" / "test_32x32.mat").write_bytes(b"no")
    with pytest.raises(FedtailError, match="not a MATLAB file"):
        Svhn().load()


def leaf(writers: dict[str, list[int]]) -> str:
    users = {
        name: {"x": [[label / 100] * 784 for label in labels], "y": labels}
        for name, labels in writers.items()
    }
    return json.dumps({"users": list(users), "user_data": users})


def write_leaf(folder: Path) -> None:
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
    (folder / "train" / "a.json").write_text(leaf({"w1": [0, 61], "w0": [5]}))
    (folder / "train" / "b.json").write_text(leaf({"w2": [5, 5]}))
    (folder / "test" / "a.json").write_text(leaf({"w0": [5, 5, 0], "w1": [5, 61]}))


def test_femnist_leaf_json(data: Path) -> None:
    write_leaf(data / "femnist")
    dataset = Femnist(per_class=2).load()
    assert dataset.train.y.tolist() == [0, 61, 5, 5, 5]
    assert dataset.client_names == ("w0", "w1", "w2")
    assert dataset.client_train is not None and dataset.client_test is not None
    assert dataset.client_train.tolist() == [1, 1, 0, 2, 2]
    # Balanced: the first two of class 5 in file order; class 0 and 61 have one each.
    assert dataset.test.y.tolist() == [5, 5, 0, 61]
    assert dataset.client_test.tolist() == [0, 0, 0, 1]
    assert every(dataset.train.x, 5)[1, 0, 0, 0] == round(255 * 0.61)
    assert len(Femnist(test="full").load().test) == 5
    (data / "femnist" / "test" / "a.json").write_text("{}")
    with pytest.raises(FedtailError, match="not a LEAF file"):
        Femnist().load()


def test_femnist_h5_asks_for_h5py(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data / "femnist").mkdir()
    for part in ("train", "test"):
        (data / "femnist" / f"fed_emnist_{part}.h5").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(FedtailError, match="pip install h5py"):
        Femnist().load()


@pytest.mark.parametrize("packed", [False, True])
def test_femnist_h5(data: Path, packed: bool) -> None:
    h5py = pytest.importorskip("h5py")
    folder = data / "femnist"
    folder.mkdir()
    for part in ("train", "test"):
        with h5py.File(folder / f"fed_emnist_{part}.h5", "w") as file:
            for writer in ("f0", "f1"):
                group = file.create_group(f"examples/{writer}")
                group["pixels"] = np.full((2, 28, 28), 0.2, np.float32)
                group["label"] = np.array([3, 7], np.int32)
    if packed:
        files = {f.name: f.read_bytes() for f in folder.iterdir()}
        for file in list(folder.iterdir()):
            file.unlink()
        tar(folder / "fed_emnist.tar.bz2", files, "w:bz2")
    dataset = Femnist().load()
    assert dataset.train.y.tolist() == [3, 7, 3, 7]
    assert dataset.client_names == ("f0", "f1")
    assert every(dataset.train.x, 1)[0, 0, 0, 0] == 51


def test_a_ready_npz_comes_first_and_must_have_the_right_shape(data: Path) -> None:
    write_mnist(data / "mnist")
    x, y = pixels(2, 28, 28), np.array([1, 0])
    np.savez(data / "mnist.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert len(Mnist().load().train) == 2
    assert Mnist.located() == str(data / "mnist.npz")
    np.savez(data / "cifar10.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(FedtailError, match="those of cifar10"):
        Cifar10().load()


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar100", "svhn"])
def test_missing_data_says_what_to_do(data: Path, name: str) -> None:
    with pytest.raises(FedtailError) as caught:
        Source.registry[name]().load()
    assert f"fedtail data fetch {name}" in str(caught.value)
    assert str(data) in str(caught.value)
