"""Google Speech Commands v0.02: 35 spoken words as log-mel pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedtail.data.dataset import About, Source
from fedtail.data.formats.archives import opened_tar
from fedtail.data.formats.mel import mel_pictures, read_wav
from fedtail.data.public import Archive, PublicSource
from fedtail.data.raw import Constants, Raw
from fedtail.errors import FedtailError

SPEECH_ARCHIVE = "speech_commands_v0.02.tar.gz"
SPLIT_LISTS = ("validation_list.txt", "testing_list.txt")
NOISE = "_background_noise_"
TOGETHER = 1024
OFFSET, RANGE = -9.0, 61.0


@Source.register("speech_commands")
class SpeechCommands(PublicSource):
    """One-second clips of 35 words, as 32x32 log-mel pictures in decibels.

    The training set is what neither list names; the test set is the testing list; the validation
    list is left out. Classes are ordered by training size, most frequent first. A speaker is a
    natural client. Pictures are scaled as BalanceFL does, (x + 9) / 61.
    """

    default_model: ClassVar[str] = "balancefl_resnet8"
    shape: ClassVar[tuple[int, ...]] = (1, 32, 32)
    about: ClassVar[About] = About(
        "spoken words as 32x32 log-mel", "84,843 / 11,005", "35", "2,618 speakers"
    )
    archives: ClassVar[tuple[Archive, ...]] = (
        Archive(
            SPEECH_ARCHIVE,
            f"https://storage.googleapis.com/download.tensorflow.org/data/{SPEECH_ARCHIVE}",
            "sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
        ),
    )

    def constants(self) -> Constants:
        """Return BalanceFL's offset and range of decibels."""
        return (OFFSET,), (RANGE,)

    @classmethod
    def official(cls, folder: Path) -> dict[str, Path]:
        """Return the archive, or the folder it was unpacked to."""
        own = folder / cls.name
        unpacked = all((own / name).is_file() for name in SPLIT_LISTS)
        return {"folder": own} if unpacked else super().official(folder)

    @classmethod
    def read(cls, files: Mapping[str, Path]) -> Raw:
        """Turn every clip into a picture and deal the pictures to the official parts."""
        path = files.get("folder") or files[SPEECH_ARCHIVE]
        contents = _in_folder(path) if path.is_dir() else _in_archive(path)
        return _dealt(*_pictures(contents), str(path))

    @classmethod
    def placing(cls) -> str:
        """Return the forms that can be put in place."""
        return (
            f"speech_commands.npz, {SPEECH_ARCHIVE}, or that archive unpacked as speech_commands/"
        )


def _in_archive(path: Path) -> Iterator[tuple[str, bytes]]:
    with opened_tar(path) as archive:
        for member in archive:
            stream = archive.extractfile(member)
            if stream is not None:
                yield str(PurePosixPath(member.name)), stream.read()


def _in_folder(path: Path) -> Iterator[tuple[str, bytes]]:
    for name in SPLIT_LISTS:
        yield name, (path / name).read_bytes()
    for file in sorted(path.glob("*/*.wav")):
        yield file.relative_to(path).as_posix(), file.read_bytes()


def _pictures(
    contents: Iterator[tuple[str, bytes]],
) -> tuple[dict[str, Tensor], dict[str, set[str]]]:
    """Return one picture a clip, by name, and the names on each list."""
    pictures: dict[str, Tensor] = {}
    lists: dict[str, set[str]] = {}
    waiting: dict[str, Tensor] = {}

    def draw() -> None:
        if waiting:
            drawn = mel_pictures(list(waiting.values()))
            pictures.update(zip(waiting, drawn, strict=True))
            waiting.clear()

    for name, data in contents:
        if name in SPLIT_LISTS:
            lists[name] = set(data.decode("utf-8").split())
        elif name.endswith(".wav") and not name.startswith(NOISE):
            waiting[name] = read_wav(data, name)
        if len(waiting) == TOGETHER:
            draw()
    draw()
    return pictures, lists


def _dealt(pictures: Mapping[str, Tensor], lists: Mapping[str, set[str]], where: str) -> Raw:
    missing = [name for name in SPLIT_LISTS if name not in lists]
    if missing:
        raise FedtailError(f"{where} holds no {missing[0]}")
    test = sorted(name for name in pictures if name in lists["testing_list.txt"])
    train = sorted(name for name in pictures if not any(name in names for names in lists.values()))
    if not train or not test:
        raise FedtailError(f"{where} holds no clips for the training or the test set")
    sizes = Counter(_word(name) for name in train)
    words = sorted({_word(name) for name in pictures}, key=lambda word: (-sizes[word], word))
    label = {word: c for c, word in enumerate(words)}
    return Raw(
        torch.stack([pictures[name] for name in train]),
        np.array([label[_word(name)] for name in train]),
        torch.stack([pictures[name] for name in test]),
        np.array([label[_word(name)] for name in test]),
        classes=words,
        client_train=[_speaker(name) for name in train],
        client_test=[_speaker(name) for name in test],
    )


def _word(name: str) -> str:
    return name.split("/")[0]


def _speaker(name: str) -> str:
    return name.split("/")[1].split("_nohash_")[0]
