"""Sources of image files: folders by class, ImageNet-LT's lists."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedtail.data.sources import Folder, ImagenetLT
from fedtail.errors import FedtailError


def draw(path: Path, size: tuple[int, int], colour: int | tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(path)


def test_train_and_test_folders(tmp_path: Path) -> None:
    for part, n in (("train", 3), ("test", 1)):
        for i in range(n):
            draw(tmp_path / part / "cat" / f"{i}.png", (8, 6), (i, 50, 200))
            draw(tmp_path / part / "dog" / f"{i}.png", (8, 6), (0, 0, 0))
    draw(tmp_path / "train" / "emu" / "0.png", (8, 6), (9, 9, 9))
    dataset = Folder(path=str(tmp_path)).load()
    assert dataset.classes == ("cat", "dog", "emu")
    assert dataset.train.y.tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert dataset.test.y.tolist() == [0, 1]
    assert dataset.input_shape == (3, 6, 8)
    assert dataset.train.x[torch.tensor([2])][0, :, 0, 0].tolist() == [2, 50, 200]


@pytest.mark.parametrize(("held", "tested"), [("Test", 2), ("val", 2), (None, 4)])
def test_folders_without_a_test_set(held: str | None, tested: int, tmp_path: Path) -> None:
    parts = [("Train", 10), *([(held, 1)] if held else [])]
    for part, n in parts:
        for i in range(n):
            for name in ("cat", "dog"):
                draw(tmp_path / part / name / f"{i}.png", (8, 6), i)
    dataset = Folder(path=str(tmp_path)).load()
    assert dataset.classes == ("cat", "dog")
    assert (len(dataset.train), len(dataset.test)) == (20 if held else 16, tested)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("train", "tram"):
        for i in range(5):
            draw(tmp_path / name / f"{i}.png", (8, 6), i)
    assert Folder(path=str(tmp_path)).load().classes == ("train", "tram")


def test_one_folder_is_split_and_sizes_are_brought_together(tmp_path: Path) -> None:
    for i in range(10):
        draw(tmp_path / "a" / f"{i}.png", (20 + i, 30), i)
        draw(tmp_path / "b" / f"{i}.png", (40, 20), i)
    source = Folder(path=str(tmp_path), size=16)
    dataset = source.load()
    assert dataset.input_shape == (1, 16, 16)
    assert (len(dataset.train), len(dataset.test)) == (16, 4)
    assert Folder(path=str(tmp_path), size=32, colour="rgb").load().input_shape == (3, 32, 32)
    with pytest.raises(FedtailError, match="give 'size'"):
        Folder(path=str(tmp_path)).load()


def test_test_images_are_read_as_the_training_images(tmp_path: Path) -> None:
    for part, colour in (("train", (9, 50, 200)), ("test", 70)):
        for name in ("cat", "dog"):
            draw(tmp_path / part / name / "0.png", (8, 6), colour)
    test = Folder(path=str(tmp_path)).load().test
    assert test.x[torch.arange(2)][:, :, 0, 0].tolist() == [[70, 70, 70]] * 2
    draw(tmp_path / "test" / "cat" / "0.png", (9, 6), (1, 2, 3))
    with pytest.raises(
        FedtailError, match=r"0\.png is 9x6 pixels where others are 8x6; give 'size'"
    ):
        Folder(path=str(tmp_path)).load()


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
def test_pixels_of_more_than_a_byte_are_refused(kind: type, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for i in range(3):
            draw(tmp_path / name / f"{i}.tiff", (8, 6), 40 + i)
    assert len(Folder(path=str(tmp_path)).load().train) == 4
    deep: np.ndarray = np.arange(48).reshape(6, 8).astype(kind) * 1000
    Image.fromarray(deep).save(tmp_path / "dog" / "1.tiff")
    with pytest.raises(
        FedtailError, match=r"dog/1\.tiff has pixels of more than 8 bits, and images"
    ):
        Folder(path=str(tmp_path)).load()


def test_bad_folders_are_refused(tmp_path: Path, data: Path) -> None:
    with pytest.raises(FedtailError, match="there is no folder nowhere"):
        Folder(path="nowhere").load()
    (tmp_path / "empty").mkdir()
    with pytest.raises(FedtailError, match="no folders of classes"):
        Folder(path=str(tmp_path / "empty")).load()
    (tmp_path / "empty" / "cat").mkdir()
    with pytest.raises(FedtailError, match="holds no images"):
        Folder(path=str(tmp_path / "empty")).load()
    (tmp_path / "empty" / "cat" / "x.png").write_bytes(b"no image")
    with pytest.raises(FedtailError, match="not an image"):
        Folder(path=str(tmp_path / "empty")).load()
    for i in range(5):  # the last one is cut: its header can be read
        path = tmp_path / "empty" / "cat" / f"{'xyzuv'[i]}.png"
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (20, 20), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(FedtailError, match=r"v\.png is not an image that can be read"):
        Folder(path=str(tmp_path / "empty")).load()


def write_lists(folder: Path) -> None:
    lines = {"train": [], "test": []}  # type: dict[str, list[str]]
    for i, (part, label) in enumerate([("train", 0), ("train", 1), ("train", 1), ("test", 1)]):
        name = f"{'val' if part == 'test' else 'train'}/n0{label}/{i}.JPEG"
        draw(folder / name, (40 + 10 * i, 30), (100 * label, 0, 0))
        lines[part].append(f"{name} {label}\n")
    for part, text in lines.items():
        (folder / f"ImageNet_LT_{part}.txt").write_text("".join(text))


def test_imagenet_lt_decodes_on_demand(data: Path) -> None:
    write_lists(data / "imagenet_lt")
    dataset = ImagenetLT(resize=24, size=20).load()
    assert dataset.classes == ("n00", "n01")
    assert dataset.train.y.tolist() == [0, 1, 1]
    assert tuple(dataset.train.x.shape) == (3, 3, 20, 20)
    batch = dataset.train.x[torch.tensor([2, 0])]
    assert batch.dtype == torch.uint8
    assert batch[:, 0].float().mean((1, 2)).tolist() == pytest.approx([100, 0], abs=3)
    copy = pickle.loads(pickle.dumps(dataset.train.x))
    assert torch.equal(copy[torch.tensor([2, 0])], batch)
    assert dataset.train.x[torch.tensor([], dtype=torch.int64)].shape == (0, 3, 20, 20)


def test_the_centre_is_cut(data: Path) -> None:
    write_lists(data / "imagenet_lt")
    stripes = np.zeros((30, 90, 3), np.uint8)
    stripes[:, 30:60] = 255
    Image.fromarray(stripes).save(data / "imagenet_lt" / "train/n00/0.JPEG", quality=95)
    image = ImagenetLT(resize=30, size=20).load().train.x[torch.tensor([0])]
    assert float(image.float().mean()) > 250


def test_imagenet_lt_refusals(data: Path) -> None:
    with pytest.raises(FedtailError, match=r"ImageNet_LT_train\.txt"):
        ImagenetLT().load()
    with pytest.raises(FedtailError) as caught:
        ImagenetLT(resize=10)
    assert str(caught.value) == "'size' = 224 is larger than 'resize' = 10"
    write_lists(data / "imagenet_lt")
    (data / "imagenet_lt" / "train/n00/0.JPEG").unlink()
    with pytest.raises(FedtailError, match="there is no image"):
        ImagenetLT().load()
    (data / "imagenet_lt" / "ImageNet_LT_train.txt").write_text("only-a-name\n")
    with pytest.raises(FedtailError, match="every line must be an image and its label"):
        ImagenetLT().load()
