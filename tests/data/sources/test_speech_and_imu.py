"""Sources of signals: wav archives, mel pictures, IMU windows."""

from __future__ import annotations

import io
import math
import tarfile
import wave
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtail.data.formats.mel import mel_filters, mel_pictures, read_wav
from fedtail.data.sources import Imu, SpeechCommands
from fedtail.errors import FedtailError

CLIPS = {
    "yes/aaaa_nohash_0.wav": 440.0,
    "yes/aaaa_nohash_1.wav": 880.0,
    "yes/bbbb_nohash_0.wav": 440.0,
    "no/bbbb_nohash_0.wav": 300.0,
    "no/cccc_nohash_0.wav": 300.0,
    "no/dddd_nohash_0.wav": 300.0,
    "_background_noise_/hum.wav": 100.0,
}
LISTS = {
    "testing_list.txt": b"no/cccc_nohash_0.wav\nyes/bbbb_nohash_0.wav\n",
    "validation_list.txt": b"no/dddd_nohash_0.wav\n",
}


def tone(frequency: float, length: int = 16_000) -> torch.Tensor:
    return 0.5 * torch.sin(2 * math.pi * frequency * torch.arange(length) / 16_000)


def wav(samples: torch.Tensor, rate: int = 16_000) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as clip:
        clip.setnchannels(1)
        clip.setsampwidth(2)
        clip.setframerate(rate)
        clip.writeframes((samples * 32767).numpy().astype("<i2").tobytes())
    return buffer.getvalue()


def contents() -> dict[str, bytes]:
    return {**{name: wav(tone(f)) for name, f in CLIPS.items()}, **LISTS}


def test_mel_filters_are_triangles_on_the_mel_scale() -> None:
    filters = mel_filters(1024)
    assert filters.shape == (513, 32)
    assert float(filters.min()) == 0.0
    assert 0.5 < float(filters.max()) <= 1.0
    # The 33 gaps are equal in mel: the third corner is at 700 (10^(3 m / 2595) - 1) Hz,
    # m = 2595 log10(1 + 8000 / 700) / 33, and there the second band (corners 1 to 3) has ended.
    step = 2595 * math.log10(1 + 8000 / 700) / 33
    corner = 700 * (10 ** (3 * step / 2595) - 1)
    bins = torch.linspace(0, 8000, 513)
    assert float(filters[bins > corner, 1].max()) == 0.0
    assert float(filters[(bins < corner) & (bins > corner * 0.8), 1].max()) > 0.0


def test_neighbouring_bands_share_every_frequency_between_their_peaks() -> None:
    filters = mel_filters(1024)
    bins = torch.linspace(0, 8000, 513)
    middle = (bins > 500) & (bins < 7000)
    assert torch.allclose(filters[middle].sum(1), torch.ones(int(middle.sum())), atol=1e-5)


def test_a_tone_is_loudest_in_its_own_band() -> None:
    picture = mel_pictures([tone(1000.0)])[0, 0]
    step = 2595 * math.log10(1 + 8000 / 700) / 33
    band = round(2595 * math.log10(1 + 1000 / 700) / step) - 1
    assert picture.shape == (32, 32)
    assert int(picture.mean(1).argmax()) == band
    assert float(picture.max() - picture.min()) <= 80.0 + 1e-4


def test_silence_and_odd_lengths_have_finite_pictures_of_the_same_size() -> None:
    clips = [torch.zeros(16_000), tone(440, 12_000), tone(440, 6_000), tone(440, 100)]
    pictures = mel_pictures(clips)
    assert pictures.shape == (4, 1, 32, 32)
    assert bool(torch.isfinite(pictures).all())
    assert torch.equal(pictures[0], torch.full((1, 32, 32), -100.0))


def test_clips_do_not_influence_each_other() -> None:
    together = mel_pictures([tone(440), tone(900, 8_000), tone(2000)])
    alone = torch.cat([mel_pictures([c]) for c in (tone(440), tone(900, 8_000), tone(2000))])
    assert torch.allclose(together, alone, atol=1e-4)


def test_only_the_official_kind_of_wav_is_read() -> None:
    assert read_wav(wav(tone(440)), "clip").shape == (16_000,)
    with pytest.raises(FedtailError, match="clip has 8000 Hz"):
        read_wav(wav(tone(440), rate=8_000), "clip")
    with pytest.raises(FedtailError, match="clip is not a wav file"):
        read_wav(b"RIFF", "clip")


@pytest.mark.parametrize("packed", [True, False])
def test_speech_commands(data: Path, packed: bool) -> None:
    folder = data / "speech_commands"
    if packed:
        with tarfile.open(data / "speech_commands_v0.02.tar.gz", "w:gz") as archive:
            for name, content in contents().items():
                info = tarfile.TarInfo(f"./{name}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    else:
        for name, content in contents().items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    dataset = SpeechCommands().load()
    # "yes" has two training clips, "no" one: the frequent class comes first.
    assert dataset.classes == ("yes", "no")
    assert dataset.train.y.tolist() == [1, 0, 0]
    assert dataset.test.y.tolist() == [1, 0]
    assert dataset.client_names == ("aaaa", "bbbb", "cccc")
    assert dataset.client_train is not None and dataset.client_test is not None
    assert dataset.client_train.tolist() == [1, 0, 0]
    assert dataset.client_test.tolist() == [2, 1]
    assert dataset.input_shape == (1, 32, 32)
    assert (dataset.mean, dataset.std) == ((-9.0,), (61.0,))


def test_a_speech_archive_without_lists_is_refused(data: Path) -> None:
    with tarfile.open(data / "speech_commands_v0.02.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("readme"), io.BytesIO())
    with pytest.raises(FedtailError, match=r"holds no validation_list\.txt"):
        SpeechCommands().load()


def write_imu(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        for person, labels in (("p01", [0, 7]), ("p02", [3])):
            table = np.column_stack([labels, rng.normal(size=(len(labels), 1800))])
            np.savetxt(folder / part / f"{person}.csv", table, delimiter=",")
    np.save(folder / "train" / "p03.npy", np.concatenate([[5.0], np.ones(1800)])[None])


def test_imu_people_are_clients(data: Path) -> None:
    write_imu(data / "imu")
    dataset = Imu().load()
    assert dataset.train.y.tolist() == [0, 7, 3, 5]
    assert dataset.input_shape == (1800,)
    assert dataset.num_classes == 8
    assert dataset.client_names == ("p01", "p02", "p03")


def test_imu_windows_in_an_npz_are_flattened(data: Path) -> None:
    x, y = np.ones((2, 200, 9), np.float32), np.array([0, 1])
    np.savez(data / "imu.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert Imu().load().input_shape == (1800,)


def test_bad_imu_tables_are_refused(data: Path) -> None:
    with pytest.raises(FedtailError, match=r"imu/train/PERSON\.csv"):
        Imu().load()
    write_imu(data / "imu")
    (data / "imu" / "train" / "p01.csv").write_text("1,2,3\n")
    with pytest.raises(FedtailError, match="a row is a label and 1800 values"):
        Imu().load()
    (data / "imu" / "train" / "p01.csv").write_text("walk,2,3\n")
    with pytest.raises(FedtailError, match="not a table of numbers"):
        Imu().load()
