"""Pretrained networks on the command line: images, sound and texts from files, end to end."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_pretrained
from command_line import fedtail, one_sentence
from PIL import Image
from scipy.io import wavfile

from fedtail import load

CLASSES = ("blue", "green", "red")
LOCAL = ["method.local.optimizer=adam", "--lr", "0.01", "--batch-size", "4"]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with models, data, and a finished run of each kind."""
    at = tmp_path_factory.mktemp("commands")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(at)
        for maker in ("vit", "wav2vec", "bert"):
            getattr(tiny_pretrained, maker)(at / maker)
        pictures(at / "pictures")
        clips(at / "clips")
        rows(at / "rows.csv", 60)
        for name, words in {
            "images": ["folder:pictures", "data.size=20", "--model", "hf:vit", "--train", "head"],
            "sounds": ["folder:clips", "--model", "hf:wav2vec", "--train", "lora:r=2"],
            "texts": ["rows.csv", "data.client=who", "--model", "hf:bert"],
        }.items():
            more = ["--clients", "3", "--rounds", "2"] if name != "texts" else ["--rounds", "12"]
            done = fedtail("run", "--data", *words, *more, *LOCAL, "--out", f"runs/{name}")
            assert done.code == 0, done
        # Predictions need neither of them.
        for maker in ("vit", "wav2vec", "bert"):
            shutil.move(maker, f"away-{maker}")
        yield at


def pictures(root: Path) -> None:
    rng = np.random.default_rng(0)
    for part, count in (("train", 8), ("test", 3)):
        for c, name in enumerate(CLASSES):
            (root / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 50, (20 + i, 24, 3), dtype=np.uint8)
                pixels[..., 2 - c] += 150
                Image.fromarray(pixels).save(root / part / name / f"{i}.png")


def clips(root: Path) -> None:
    for c, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for i in range(10):
            tone = np.sin(np.arange(700 + 10 * i) * (0.05 + 0.1 * c))
            wavfile.write(root / name / f"{i}.wav", 16000, (20000 * tone).astype(np.int16))


def rows(path: Path, count: int) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "label", "who"])
        for i in range(count):
            text = f"{'very ' * (i % 3)}{'good' if i % 2 else 'bad'} film"
            table.writerow([text, "glad" if i % 2 else "sad", f"person {i % 5}"])


def predicted() -> list[dict[str, str]]:
    with Path("predictions.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_raw_texts_are_predicted_from_any_file(here: Path) -> None:
    done = fedtail("predict", "runs/texts", "rows.csv")
    assert "accuracy 1.0000 on the labels of 'rows.csv'" in done.out, done
    assert [row["class"] for row in predicted()] == ["sad", "glad"] * 30
    Path("new.txt").write_text("very good film\nvery very bad film\n")
    done = fedtail("predict", "runs/texts", "new.txt", "--probabilities")
    assert "accuracy" not in done.out
    first, second = predicted()
    assert (first["class"], second["class"]) == ("glad", "sad")
    assert float(first["glad"]) + float(first["sad"]) == pytest.approx(1, abs=1e-5)
    assert first["glad"] == first["probability"]
    texts = ["not bad", "42"]  # a number is a text here
    plain = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    Path("new.jsonl").write_text(plain)
    assert fedtail("predict", "runs/texts", "new.jsonl").code == 0
    assert [row["class"] for row in predicted()] == load("runs/texts").predict(texts).tolist()
    tokenised = {"config.json", "tokenizer.json", "tokenizer_config.json"}
    assert {p.name for p in Path("runs/texts/pretrained").iterdir()} == tokenised


def test_images_and_sounds_are_predicted_from_files_and_folders(here: Path) -> None:
    done = fedtail("predict", "runs/images", "pictures/test")
    reported = json.loads(Path("runs/images/metrics.jsonl").read_text().splitlines()[-1])
    assert f"accuracy {reported['accuracy']:.4f} on the labels" in done.out
    assert [row["sample"] for row in predicted()][:2] == ["blue/0.png", "blue/1.png"]
    in_folder = predicted()[-1]
    assert fedtail("predict", "runs/images", "pictures/test/red/2.png").code == 0
    assert predicted() == [{**in_folder, "sample": "2.png"}]
    done = fedtail("predict", "runs/sounds", "clips")
    assert "30 predictions" in done.out
    assert "accuracy" in done.out
    assert fedtail("predict", "runs/sounds", "clips/red").code == 0  # files without labels
    assert [row["sample"] for row in predicted()][:2] == ["0.wav", "1.wav"]


@pytest.mark.parametrize("kind", ["images", "sounds", "texts"])
def test_exports_are_checked_on_raw_test_data(here: Path, kind: str) -> None:
    for format in ("torch", "onnx"):
        done = fedtail("export", f"runs/{kind}", "--format", format, columns=200)
        assert done.code == 0, done
        checked = {"images": "9 of 9", "sounds": "6 of 6", "texts": "12 of 12"}[kind]
        assert f"{checked} predictions are those of the model" in done.out
    assert fedtail("report", f"runs/{kind}", "--features").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["images", "rows.csv"], "rows.csv is a table, and the model takes bytes of 3 x 20 x 20"),
        (["images", "clips/red"], "is sound, and the model takes bytes of 3 x 20 x 20"),
        (["sounds", "pictures/test"], "is an image, and the model takes sound of 16000 Hz"),
        (["sounds", "rows.csv"], "rows.csv is a table, and the model takes sound of 16000 Hz"),
        (["texts", "pictures/test/red/0.png"], "is an image, and the model takes texts"),
        (["texts", "numbers.npz"], "inputs are texts, one string each"),
        (["texts", "wrong.csv"], "wrong.csv has no column 'text' (found: words, more)"),
        (["texts", "bert.py"], "there is no file or folder bert.py"),
        (["texts", "away-bert/config.json"], "config.json cannot be read (known: .npz, .csv"),
        (["images", "clips/.."], "holds no images or wav files, nor do the folders in it"),
    ],
)
def test_wrong_input_is_refused(here: Path, words: list[str], said: str) -> None:
    np.savez("numbers.npz", x=np.zeros((2, 3)))
    Path("wrong.csv").write_text("words,more\ngood,film\n")
    Path("predictions.csv").unlink(missing_ok=True)
    assert said in one_sentence(fedtail("predict", f"runs/{words[0]}", words[1], columns=200))
    assert not Path("predictions.csv").exists()


def test_a_run_goes_on_and_asks_for_its_model(here: Path) -> None:
    more = ["run", "--resume", "runs/texts", "--rounds", "13"]
    assert "'hf:bert' is neither a folder nor a model" in one_sentence(fedtail(*more, columns=200))
    shutil.move("away-bert", "bert")
    done: Any = fedtail(*more)
    shutil.move("bert", "away-bert")
    assert done.code == 0, done
    assert "round 13/13" in done.err + done.out
