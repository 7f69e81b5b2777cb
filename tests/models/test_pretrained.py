"""Networks of transformers, saved as real ones are and loaded by the real code."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_pretrained
import torch
from command_line import fedtail, one_sentence
from PIL import Image
from transformers import AutoTokenizer, ViTConfig, ViTForImageClassification

from fedtail import GBME, Arrays, Experiment, FedAvg, FedtailError, Predictor, load, run
from fedtail.data.formats.sound import resampled
from fedtail.models import build
from fedtail.models.hf_images import Preprocessing, Resized
from fedtail.models.hf_readers import Masked
from fedtail.setting import prepare

METHOD: FedAvg[Any] = FedAvg(local=tiny.quick())
TEXTS = [f"{'very ' * (i % 3)}{'good' if i % 2 else 'bad'} film" for i in range(40)]
MOODS = ["glad" if i % 2 else "sad" for i in range(40)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the names of tiny networks, one a kind."""
    at = tmp_path_factory.mktemp("models")
    makers = ("vit", "resnet", "wav2vec", "ast", "bert")
    return {maker: getattr(tiny_pretrained, maker)(at / maker) for maker in makers}


def images(model: str, **fields: Any) -> Experiment:
    return tiny.experiment(METHOD, model, **fields)


def sounds(model: str, **fields: Any) -> Experiment:
    """Three tones at 16 kHz, for networks that take 8 kHz."""
    y = np.repeat([0, 1, 2], 12)
    tone = np.sin(np.arange(800)[None] * (0.05 + 0.1 * y[:, None]))
    data = Arrays(tone.astype(np.float32), y, **{"rate": 16000, **fields.pop("data", {})})
    chosen = {"clients": 3, "rounds": 2, "device": "cpu", "method": METHOD, **fields}
    return Experiment(data=data, model=model, **chosen)


def texts(model: str, **fields: Any) -> Experiment:
    local = {"lr": 0.01, "optimizer": "adam", "batch_size": 4}
    chosen: dict[str, Any] = {"clients": 3, "rounds": 2, "device": "cpu", "partition": "iid"}
    chosen |= {"method": FedAvg(local=local), "data": Arrays(TEXTS, MOODS), **fields}
    return Experiment(model=model, **chosen)


# Images


def test_the_body_is_the_one_that_was_saved_and_the_classifier_is_new(folders: Any) -> None:
    saved = ViTForImageClassification.from_pretrained(folders["vit"].removeprefix("hf:"))
    model = build(folders["vit"], (3, 16, 16), 5)
    assert model.classifier_name == "classifier"
    assert model.classifier.weight.shape == (5, 8)
    before, after = saved.state_dict(), model.whole(model.tensors())
    assert before.keys() == after.keys()
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert before.keys() - same == {"classifier.weight", "classifier.bias"}
    # For as many classes as it was trained on, it is the old one.
    kept = build(folders["vit"], (3, 16, 16), 3).tensors()
    assert torch.equal(kept["classifier.weight"], before["classifier.weight"])
    fresh = build({"name": folders["vit"], "initial": "random"}, (3, 16, 16), 3).tensors()
    assert not torch.equal(fresh["vit.embeddings.cls_token"], before["vit.embeddings.cls_token"])


def test_a_run_trains_tests_ships_and_predicts(folders: Any, tmp_path: Path) -> None:
    held = tiny.arrays((3, 16, 16))
    data = Arrays(**held)
    result = run(images(folders["vit"], data=data), out=tmp_path / "run")
    assert {p.name for p in (tmp_path / "run" / "pretrained").iterdir()} == {
        "config.json",
        "preprocessor_config.json",
    }
    loaded = load(tmp_path / "run")  # without the folder that it began with
    assert loaded.score(held["x_test"], held["y_test"]) == result.metrics["accuracy"]
    # What was shipped loads into the plain architecture, and the constants are the model's own.
    plain = ViTForImageClassification(
        ViTConfig(**{**tiny_pretrained.SMALL, "num_labels": 4}, image_size=16, patch_size=8)
    ).eval()
    plain.load_state_dict(result.tensors)
    x = torch.from_numpy(held["x_test"]) / 255
    mean, std = (torch.tensor(tiny_pretrained.IMAGES[k]) for k in ("image_mean", "image_std"))
    with torch.no_grad():
        wanted = plain((x - mean[:, None, None]) / std[:, None, None]).logits.softmax(1)
    torch.testing.assert_close(torch.tensor(loaded.predict_proba(held["x_test"])), wanted)


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_a_head_is_all_that_travels(folders: Any, kind: str) -> None:
    result = run(images(folders[kind], train="head"))
    each = 4 * (8 * 4 + 4)
    assert result.metrics["bytes_down"] == 4 * each
    assert result.metrics["bytes_up"] == 4 * (each + 16)


def test_workers_and_a_resumed_run_are_the_same(folders: Any, tmp_path: Path) -> None:
    plain = images(folders["resnet"], train="last:2")
    whole = run(plain)
    assert run(plain.but(workers=2)).digest == whole.digest
    run(plain.but(rounds=1), out=tmp_path / "run")
    assert run(plain, out=tmp_path / "run", resume=True).digest == whole.digest


def test_experts_are_heads_on_a_frozen_body(folders: Any, tmp_path: Path) -> None:
    method = GBME(local=tiny.quick(), experts=2)
    result = run(tiny.experiment(method, folders["vit"], train="head"), out=tmp_path / "run")
    held = tiny.arrays()
    again = load(tmp_path / "run")
    assert again.score(held["x_test"], held["y_test"]) == result.metrics["accuracy"]


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("size", "crop"), [((5, 9), None), ((24, 20), None), ((24, 20), (8, 8))])
def test_images_are_resized_as_pillow_does(mode: str, size: tuple[int, int], crop: Any) -> None:
    x = torch.rand(1, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    hook = Resized(Preprocessing(resize=size, crop=crop, mode=mode, mean=(0.0,), std=(1.0,)))
    found = hook.resized(x)[0, 0].numpy()
    filters = Image.Resampling
    picture = Image.fromarray(x[0, 0].numpy()).resize(size[::-1], filters[mode.upper()])
    wanted = np.asarray(picture)
    if crop:  # (24 - 8) / 2 rows and (20 - 8) / 2 columns on every side
        wanted = wanted[8:16, 6:14]
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("plain", "wanted"),
    [
        # (x / 255 - 1/2) / (1/4), by bytes of 0..1.
        ({"image_mean": [0.5], "image_std": [0.25]}, Preprocessing(mean=(0.5,), std=(0.25,))),
        # x / 127.5 - 1, then nothing: (x/255 - 1/2) / (1/2).
        (
            {"rescale_factor": 1 / 127.5, "rescale_offset": True, "do_normalize": False},
            Preprocessing(mean=(0.5,), std=(0.5,)),
        ),
        # Bytes as they are, less 127 and by 128.
        (
            {"do_rescale": False, "image_mean": 127, "image_std": 128},
            Preprocessing(mean=(127 / 255,), std=(128 / 255,)),
        ),
        ({"size": 8, "do_normalize": False}, Preprocessing(resize=(8, 8), mean=(0.0,), std=(1.0,))),
        (
            {"size": {"shortest_edge": 8}, "crop_pct": 0.5, "do_normalize": False, "resample": 3},
            Preprocessing(shorter=16, crop=(8, 8), mode="bicubic", mean=(0.0,), std=(1.0,)),
        ),
        (
            {"size": 10, "do_center_crop": True, "crop_size": 8, "do_normalize": False},
            Preprocessing(shorter=10, crop=(8, 8), mean=(0.0,), std=(1.0,)),
        ),
    ],
)
def test_preprocessing_is_read_from_the_model(plain: Any, wanted: Preprocessing) -> None:
    found = Preprocessing.of(plain, 1, None)
    assert found.mean == pytest.approx(wanted.mean)
    assert found.std == pytest.approx(wanted.std)
    for field in ("shorter", "resize", "crop", "mode"):
        assert getattr(found, field) == getattr(wanted, field)


def test_grey_images_and_real_numbers(folders: Any) -> None:
    held = tiny.arrays((1, 8, 8))
    bytes_ = prepare(images(folders["vit"], data=Arrays(**held)))
    assert bytes_.federation.constants[0] == pytest.approx([0.5, 0.25, 0.5])
    assert run(images(folders["vit"], data=Arrays(**held), rounds=1)).metrics["round"] == 1
    unit = {k: v / 255 if k.startswith("x") else v for k, v in held.items()}
    assert prepare(images(folders["vit"], data=Arrays(**unit))).federation.known
    wide = {k: v * 9.0 if k.startswith("x") else v for k, v in held.items()}
    ready = prepare(images(folders["vit"], data=Arrays(**wide, normalisation="none")))
    assert ready.federation.constants == ([0.0], [1.0])


# Sound


@pytest.mark.parametrize("kind", ["wav2vec", "ast"])
def test_sound_is_resampled_read_trained_and_predicted(
    folders: Any, kind: str, tmp_path: Path
) -> None:
    np.random.seed(1)  # noqa: NPY002 - networks of sound draw from it, if they are let
    experiment = sounds(folders[kind])
    result = run(experiment, out=tmp_path / "run")
    np.random.seed(2)  # noqa: NPY002
    assert run(experiment).digest == result.digest
    # 800 samples at 16 kHz are 400 at 8 kHz; the other network takes 16 frames of 16 bands.
    assert result.model.file.shape == {"wav2vec": (400,), "ast": (16, 16)}[kind]
    x = np.asarray(experiment.data.x_train)  # type: ignore[attr-defined]
    assert np.array_equal(load(tmp_path / "run").predict_proba(x), result.model.predict_proba(x))


def test_a_tone_is_the_same_tone_at_another_rate() -> None:
    # One period in 16 samples at 16 kHz is one in 8 at 8 kHz; the ends feel the filter.
    fast = np.sin(2 * np.pi * np.arange(1600) / 16)[None].astype(np.float32)
    slow = np.sin(2 * np.pi * np.arange(800) / 8)[None]
    found = resampled(fast, 16000, 8000)
    assert found.shape == (1, 800)
    np.testing.assert_allclose(found[:, 50:-50], slow[:, 50:-50], atol=2e-3)
    assert resampled(fast, 8000, 8000) is fast


def test_the_rate_has_to_be_said(folders: Any) -> None:
    with pytest.raises(FedtailError, match="sound of 8000 samples a second: say how many"):
        prepare(sounds(folders["ast"], data={"rate": None}))


# Texts


def test_texts_are_learned_and_predicted_offline(folders: Any, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(folders["bert"].removeprefix("hf:"), copy)
    result = run(texts(f"hf:{copy}", rounds=8), out=tmp_path / "run")
    assert result.metrics["accuracy"] == 1.0
    shutil.rmtree(copy)
    loaded = load(tmp_path / "run")
    assert loaded.predict(["good film", "very very bad film"]).tolist() == ["glad", "sad"]
    assert loaded.file.kind == "tokens"
    assert loaded.file.shape == (4,)  # very very good film
    assert loaded.predict(["very " * 50]).shape == (1,)  # longer ones are cut
    assert str(loaded) == "Predictor(hf, texts to 2 classes)"


def test_an_exported_file_takes_tokens(folders: Any, tmp_path: Path) -> None:
    result = run(texts(folders["bert"], rounds=1))
    result.model.export(tmp_path / "model.pt2")
    tokenizer = AutoTokenizer.from_pretrained(folders["bert"].removeprefix("hf:"))
    ids = tokenizer(TEXTS, padding="max_length", max_length=4, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        found = torch.export.load(tmp_path / "model.pt2").module()(ids)[1]
    torch.testing.assert_close(found, torch.tensor(result.model.predict_proba(TEXTS)))


def test_what_fills_up_is_not_looked_at(folders: Any) -> None:
    model = build(folders["bert"], (4,), 2).eval()
    short, filled = torch.tensor([[2, 4]]), torch.tensor([[2, 4, 0, 0]])
    with torch.no_grad():
        torch.testing.assert_close(model(short), model(filled))
    mask = Masked(0)(model, (torch.tensor([[0, 0], [2, 0]]),), {})[1]["attention_mask"]
    assert mask.tolist() == [[1, 0], [1, 0]]


def test_tokens_are_counted(folders: Any) -> None:
    assert prepare(texts({"name": folders["bert"], "tokens": 3})).dataset.input_shape == (3,)  # type: ignore[arg-type]
    with pytest.raises(FedtailError, match=r"model.tokens = 13 is more than the 12"):
        prepare(texts({"name": folders["bert"], "tokens": 13}))  # type: ignore[arg-type]


# Wrong input


def test_what_does_not_go_together_is_said(folders: Any) -> None:
    with pytest.raises(FedtailError, match=r"takes texts, and the inputs are numbers of shape"):
        prepare(images(folders["bert"]))
    with pytest.raises(FedtailError, match="takes images, and the inputs are texts"):
        prepare(texts(folders["vit"]))
    with pytest.raises(FedtailError, match="which only a model with a tokeniser reads"):
        prepare(texts("mlp"))
    with pytest.raises(FedtailError, match="which only a model with a tokeniser reads"):
        prepare(Experiment(data=Arrays(TEXTS, MOODS)))
    with pytest.raises(FedtailError, match=r"takes images of 3 channels \(or grey ones\)"):
        prepare(images(folders["vit"], data=Arrays(**tiny.arrays((2, 8, 8)))))
    reader: Predictor = run(texts(folders["bert"], rounds=1)).model
    with pytest.raises(FedtailError, match=r"inputs are texts, one string each: one text is"):
        reader.predict("good")


def test_what_cannot_be_loaded_is_said_in_a_sentence(tmp_path: Path, monkeypatch: Any) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(FedtailError, match="'hf:me/none' is neither a folder nor a model that was"):
        prepare(images("hf:me/none"))
    with pytest.raises(FedtailError, match=f"cannot be loaded from '{tmp_path}'"):
        prepare(images(f"hf:{tmp_path}"))
    # As the hub's own programs keep what they fetched.
    name = tiny_pretrained.vit(tmp_path / "vit").removeprefix("hf:")
    place = tmp_path / "cache" / "models--me--vit"
    shutil.copytree(name, place / "snapshots" / "abc")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc")
    assert prepare(images("hf:me/vit")).base.num_classes == 4


def test_without_the_library_the_extra_is_named(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(FedtailError, match=r"needs the package transformers.*\.\[pretrained\]"):
        prepare(images("hf:me/none"))
    assert "pretrained" in one_sentence(fedtail("run", "--model", "hf:me/none"))
