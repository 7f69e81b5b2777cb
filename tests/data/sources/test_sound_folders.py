"""Folders of wav files, one a class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import wavfile

from fedtail.data.formats.sound import read_clip
from fedtail.data.sources import Folder
from fedtail.errors import FedtailError


def clip(path: Path, wave: np.ndarray, rate: int = 8000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, rate, wave)
    return path


def test_numbers_of_any_width_count_from_minus_one_to_one(tmp_path: Path) -> None:
    half = {"uint8": 192, "int16": 2**14, "int32": 2**30, "float32": 0.5}
    for kind, value in half.items():
        wave, rate = read_clip(clip(tmp_path / f"{kind}.wav", np.array([value, value], kind)))
        assert wave.tolist() == [0.5, 0.5], kind
        assert wave.dtype == np.float32
        assert rate == 8000
    both = np.array([[2**14, 0], [2**14, -(2**14)]], np.int16)  # left, right
    assert read_clip(clip(tmp_path / "two.wav", both))[0].tolist() == [0.25, 0.0]


def test_clips_get_one_length_and_one_rate(tmp_path: Path) -> None:
    ones = np.ones(10, np.float32)
    for i in range(3):
        clip(tmp_path / "train" / "low" / f"{i}.wav", ones[: 4 + i])
        clip(tmp_path / "train" / "high" / f"{i}.WAV", ones[:2])
    clip(tmp_path / "test" / "low" / "0.wav", ones)
    dataset = Folder(path=str(tmp_path)).load()
    assert dataset.classes == ("high", "low")
    assert dataset.input_shape == (6,)  # the longest that trains; the test clip is cut
    assert dataset.train.x[torch.tensor([0, 3])].tolist() == [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
    ]
    assert dataset.test.x[torch.tensor([0])].tolist() == [[1] * 6]
    assert dataset.given.rate == 8000
    assert dataset.normalisation == "global"
    assert Folder(path=str(tmp_path), seconds=0.001).load().input_shape == (8,)
    # At 16 kHz the longest has twice as many samples.
    assert Folder(path=str(tmp_path), rate=16000).load().input_shape == (12,)


def test_what_is_no_sound_is_refused(tmp_path: Path) -> None:
    good = clip(tmp_path / "a" / "0.wav", np.ones(4, np.float32))
    (tmp_path / "a" / "1.wav").write_bytes(b"no sound")
    with pytest.raises(FedtailError, match=r"1\.wav is not a wav file that can be read"):
        Folder(path=str(tmp_path)).load()
    clip(tmp_path / "a" / "1.wav", np.ones(0, np.float32))
    with pytest.raises(FedtailError, match=r"1\.wav (holds no sound|is not a wav file)"):
        Folder(path=str(tmp_path)).load()
    Image.new("L", (4, 4)).save(tmp_path / "a" / "1.png")
    with pytest.raises(FedtailError, match="holds both images and wav files"):
        Folder(path=str(tmp_path)).load()
    assert good.is_file()
