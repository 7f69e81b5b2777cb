"""The number that a run reports is that of its model: in memory, loaded, exported, predicted."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from command_line import fedtail, files, one_sentence
from PIL import Image
from torch import Tensor, nn

import fedtail as library
from fedtail import Arrays, Digits, Experiment, FedAvg, FedtailError, Npz, load, run
from fedtail.result import Result

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 120)
TABLE = RNG.normal(size=(120, 4)) * [1, 50, 1e4, 0.1] + [0, 9, 1e5, 3]
TABLE[:, :2] += Y[:, None] * [2, 100]
PICTURES = (RNG.integers(0, 60, (120, 9, 8, 3)) + 90 * Y[:, None, None, None]).astype(np.uint8)
NAMES = np.array(["ash", "birch", "cedar"])[Y]


class Small(nn.Module):
    """A network of the user's own."""

    def __init__(self, num_classes: int, p: float = 0.1) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(p))
        self.last = nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.body(x))
        return logits


def seeded() -> Small:
    torch.manual_seed(0)
    return Small(3)


def halves(x: np.ndarray, y: np.ndarray, **fields: Any) -> Arrays:
    return Arrays(x[:80], y[:80], x[80:], y[80:], **fields)


def npz(folder: Path) -> Npz:
    test: dict[str, Any] = {"x_test": TABLE[80:], "y_test": NAMES[80:]}
    np.savez(folder / "mine.npz", x_train=TABLE[:80], y_train=NAMES[:80], **test)
    return Npz(path=folder / "mine.npz")


def grey(folder: Path) -> Arrays:
    # Whole numbers that are scaled, and images without a channel axis.
    return halves(PICTURES[..., 0].astype(np.int16), Y, scale=0.5)


CASES: dict[str, tuple[Any, Any, np.ndarray, np.ndarray]] = {
    "arrays": (lambda _: halves(TABLE.astype(np.float32), Y), "mlp", TABLE[80:], Y[80:]),
    "npz": (npz, "mlp", TABLE[80:], NAMES[80:]),
    "images": (lambda _: halves(PICTURES, Y), "small_cnn", PICTURES[80:], Y[80:]),
    "scaled": (grey, "mlp", PICTURES[80:, ..., 0].astype(np.int16), Y[80:]),
    "tabular": (lambda _: halves(TABLE, NAMES), "mlp", TABLE[80:], NAMES[80:]),
    "own class": (lambda _: halves(TABLE, Y), Small, TABLE[80:], Y[80:]),
    "own module": (lambda _: halves(TABLE, Y), seeded(), TABLE[80:], Y[80:]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_reported_accuracy_is_that_of_the_loaded_and_exported_model(
    name: str, tmp_path: Path
) -> None:
    make, model, x, y = CASES[name]
    method: FedAvg[Any] = FedAvg(local={"lr": 0.1, "batch_size": 10})
    chosen = Experiment(
        data=make(tmp_path), model=model, method=method, clients=4, rounds=3, device="cpu"
    )
    result = run(chosen, out=tmp_path / "run")
    reported = result.metrics["accuracy"]
    given: dict[str, Any] = {"network": Small(3)} if name == "own module" else {}
    loaded = load(tmp_path / "run", **given)

    assert reported > 0.45  # it has learned something that wrong inputs would undo
    assert result.model.score(x, y) == loaded.score(x, y) == reported
    assert np.array_equal(result.model.predict(x), loaded.predict(x))
    proba = loaded.predict_proba(x)
    assert np.allclose(proba.sum(1), 1, atol=1e-5)
    assert np.array_equal(proba, result.model.predict_proba(x))
    assert (loaded.predict(x) == y).mean() == reported
    assert loaded.classes == result.model.classes
    assert sum(loaded.counts) == 80
    _check_files(loaded, x, tmp_path)


def _check_files(model: Any, x: np.ndarray, folder: Path) -> None:
    kind = {"bytes": np.uint8, "numbers": np.float32}[model.file.kind]
    expected = model.numbers(x)
    model.export(folder / "model.pt2")
    program = torch.export.load(folder / "model.pt2").module()
    logits, proba = program(torch.from_numpy(x.astype(kind)))
    assert np.array_equal(logits.argmax(1).numpy(), expected)
    torch.testing.assert_close(
        proba, torch.from_numpy(model.predict_proba(x)), rtol=1e-3, atol=1e-5
    )

    onnxruntime = pytest.importorskip("onnxruntime")
    model.export(folder / "model.onnx", "onnx")
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    (answer,) = session.run(["probabilities"], {"inputs": x[:7].astype(kind)})
    assert np.array_equal(answer.argmax(1), expected[:7])
    (answer,) = session.run(["logits"], {"inputs": x.astype(kind)})
    assert np.array_equal(answer.argmax(1), expected)


def test_a_cosine_head_is_put_back(tmp_path: Path) -> None:
    result = run(Experiment(rounds=1, head="cosine", device="cpu"), out=tmp_path / "run")
    test = Digits().load().test
    x = test.x[torch.arange(len(test))][:, 0]
    assert load(tmp_path / "run").score(x, test.y) == result.metrics["accuracy"]


def test_a_cosine_head_of_a_network_of_ones_own(tmp_path: Path) -> None:
    chosen = Experiment(data=halves(TABLE, Y), model=Small, head="cosine", rounds=1, device="cpu")
    result = run(chosen, out=tmp_path / "run")
    for given in ({}, {"network": Small}):
        model = load(tmp_path / "run", **given)  # type: ignore[arg-type]
        assert model.score(TABLE[80:], Y[80:]) == result.metrics["accuracy"]


# Looking for the user's network


def trained(folder: Path, model: Any) -> Result:
    return run(Experiment(data=halves(TABLE, Y), model=model, rounds=1, device="cpu"), out=folder)


def test_a_network_that_is_not_here_has_to_be_given(tmp_path: Path) -> None:
    local = type("Local", (Small,), {"__module__": "somewhere.else"})
    trained(tmp_path / "run", local)
    with pytest.raises(
        FedtailError, match=r"import 'somewhere.else' first, or give it: .*network="
    ):
        load(tmp_path / "run")
    assert load(tmp_path / "run", network=Small).score(TABLE, Y) >= 0


def test_a_network_that_changed_is_not_taken_for_the_trained_one(tmp_path: Path) -> None:
    trained(tmp_path / "run", Small(3, p=0.5))
    # The class makes a network with the same tensors, but another dropout.
    with pytest.raises(FedtailError, match="is not the one that was trained: give the network"):
        load(tmp_path / "run")
    trained(tmp_path / "partial", functools.partial(Small, 3))
    with pytest.raises(FedtailError, match="is not the one that was trained: give the network"):
        load(tmp_path / "partial")
    with pytest.raises(FedtailError, match=r"does not fit what .*'last\.weight' has the shape"):
        load(tmp_path / "run", network=Small(7))


def test_modules_are_imported_only_if_they_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from torch import nn\ndef net():\n    return nn.Sequential(nn.Linear(4, 3))\n"
    (tmp_path / "my_nets.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import my_nets  # type: ignore[import-not-found]

    trained(tmp_path / "run", my_nets.net)
    monkeypatch.delitem(sys.modules, "my_nets")
    with pytest.raises(FedtailError, match="import 'my_nets' first"):
        load(tmp_path / "run")
    assert "my_nets" not in sys.modules
    assert load(tmp_path / "run", trust_plugins=True).file.model == {"python": "my_nets:net"}


# Wrong input


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "run"
    run(Experiment(rounds=1, device="cpu"), out=folder)
    return folder


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (
            np.zeros((8, 8), np.uint8),
            r"the shape \(samples, 8, 8\), not \(8, 8\): one input is x\[",
        ),
        (np.zeros((2, 8, 7), np.uint8), r"the shape \(samples, 8, 8\), not \(2, 8, 7\)"),
        (np.zeros((2, 8, 8)), "whole numbers from 0 to 255, as in training; got float64"),
        (np.full((2, 8, 8), 300), "whole numbers from 0 to 255"),
        (np.full((2, 8, 8), "a"), "inputs must be numbers"),
        ([[1], [2, 3]], "rows of different lengths"),
    ],
)
def test_inputs_unlike_those_of_training_are_refused(digits: Path, x: Any, said: str) -> None:
    with pytest.raises(FedtailError, match=said):
        load(digits).predict(x)


def test_labels_must_be_as_many_as_inputs(digits: Path) -> None:
    with pytest.raises(FedtailError, match="2 inputs but 1 labels"):
        load(digits).score(np.zeros((2, 8, 8), np.uint8), [1])


def test_labels_that_are_no_classes_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    y = np.array(["a", "b"] * 20)
    run(Experiment(data=Arrays(x, y), rounds=1, device="cpu"), out=tmp_path / "run")
    model = load(tmp_path / "run")
    with pytest.raises(FedtailError, match=r"none is a class of the model: A, B \(classes: a, b\)"):
        model.score(x[:2], ["A", "B"])
    found = model.predict(x[:1])[0]
    caplog.clear()
    assert model.score(x[:2], [found, "zz"]) == 0.5
    assert "labels: 1 of 2 are no class of the model: zz (classes: a, b)" in caplog.text
    assert model.score(x[:1], [found]) == 1


def test_where_a_class_is_left_out_labels_stay_as_they_were_given(tmp_path: Path) -> None:
    # Class 1 of 0, 1 and 2 is dropped: what is left is answered as 0 and 2.
    data = halves(TABLE, Y, classes=("ash", "birch", "cedar"), drop=("birch",))
    result = run(Experiment(data=data, model="mlp", clients=2, rounds=3), out=tmp_path / "run")
    test = Y[80:] != 1
    model = load(tmp_path / "run")
    assert set(model.predict(TABLE[80:][test]).tolist()) <= {0, 2}
    assert model.score(TABLE[80:][test], Y[80:][test]) == result.metrics["accuracy"]
    np.savez(tmp_path / "new.npz", x=TABLE[80:][test], y=Y[80:][test])
    words = [str(tmp_path / "run"), str(tmp_path / "new.npz"), "--out", str(tmp_path / "out.csv")]
    told = fedtail("predict", *words)
    assert f"accuracy {result.metrics['accuracy']:.4f}" in told.out + told.err


def test_a_table_for_a_model_of_arrays_is_inputs_and_a_label_alone(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    run(Experiment(data=Arrays(x, np.arange(40) % 2), rounds=1, device="cpu"), out=tmp_path / "run")
    table = tmp_path / "new.csv"
    words = ["predict", str(tmp_path / "run"), str(table), "--out", str(tmp_path / "out.csv")]
    table.write_text("a,b,label\n0.5,1.5,0\n-1,2,1\n")
    assert fedtail(*words).code == 0
    table.write_text("a,b,site\n0.5,1.5,north\n-1,2,south\n")
    assert "was trained on no table that says which are" in one_sentence(fedtail(*words))


def test_whole_numbers_of_any_type_are_bytes(digits: Path) -> None:
    x = np.arange(128).reshape(2, 8, 8)
    assert np.array_equal(load(digits).predict(x), load(digits).predict(x.astype(np.uint8)))
    assert np.array_equal(load(digits).predict(x), load(digits).predict(torch.from_numpy(x)))


@pytest.mark.parametrize("kind", [">i4", ">f8", "u2", "u4", "u8", "longdouble"])
def test_arrays_of_any_type_and_order_are_taken_as_in_training(kind: str, digits: Path) -> None:
    odd = PICTURES[:, 0, 0].astype(kind)[:, ::-1]
    plain = odd.astype(np.float32)
    one, other = (
        run(Experiment(data=halves(x, Y), rounds=1, device="cpu")).model for x in (odd, plain)
    )
    assert np.array_equal(one.predict_proba(odd), other.predict_proba(plain))
    if np.dtype(kind).kind in "iu":
        pixels = np.arange(128).reshape(2, 8, 8)[:, :, ::-1]
        found = load(digits).predict(pixels.astype(kind))
        assert np.array_equal(found, load(digits).predict(pixels.astype(np.uint8)))


def test_bytes_are_no_numbers_as_they_are() -> None:
    x = PICTURES[..., 0].reshape(120, -1)
    model = run(Experiment(data=halves(x.astype(np.float32), Y), rounds=1, device="cpu")).model
    with pytest.raises(FedtailError, match=r"uint8 counts 0 to 1 there: give x\.astype"):
        model.predict(x)
    with pytest.raises(FedtailError, match=r"uint8 counts 0 to 1 there"):
        model.predict(torch.from_numpy(x))
    scaled = run(Experiment(data=halves(x, Y, scale=0.5), rounds=1, device="cpu")).model
    assert scaled.predict(x).shape == (120,)  # they were scaled, and count as that


def test_a_folder_without_a_whole_model_is_refused(digits: Path, tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match="is not a run folder"):
        load(tmp_path)
    for name in ("experiment.toml", "model.json", "model.safetensors", "model.safetensors.sha256"):
        (tmp_path / name).write_bytes((digits / name).read_bytes())
    (tmp_path / "model.json").write_text((digits / "model.json").read_text().replace("0.3", "0.4"))
    with pytest.raises(FedtailError, match=r"model\.json' is damaged: its SHA-256 is not"):
        load(tmp_path)
    (tmp_path / "model.json").unlink()
    with pytest.raises(FedtailError, match=r"has no 'model\.json'"):
        load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FedtailError, match="has no model yet"):
        load(tmp_path)


def test_an_unknown_format_is_refused(digits: Path, tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match="format 'tflite' is unknown"):
        load(digits).export(tmp_path / "x", "tflite")  # type: ignore[arg-type]


def test_it_says_what_it_is(digits: Path) -> None:
    assert repr(load(digits)) == "Predictor(digits_cnn, bytes of 8 x 8 to 10 classes)"
    assert library.load is load


# The command line


def test_predict_writes_a_table(digits: Path, tmp_path: Path) -> None:
    test = Digits().load().test
    x = test.x[torch.arange(len(test))][:, 0].numpy()
    np.savez(tmp_path / "new.npz", x=x, y=test.y.numpy())
    out = tmp_path / "out.csv"
    done = fedtail("predict", str(digits), str(tmp_path / "new.npz"), "--out", str(out))
    assert done.code == 0, done.err
    lines = out.read_text().splitlines()
    assert lines[0] == "sample,class,probability"
    model = load(digits)
    assert [line.split(",")[1] for line in lines[1:]] == list(map(str, model.predict(x)))
    score = json.loads((digits / "metrics.jsonl").read_text().splitlines()[-1])["accuracy"]
    assert f"accuracy {score:.4f}" in done.out
    words = ["--out", str(out), "--probabilities"]
    assert fedtail("predict", str(digits), str(tmp_path / "new.npz"), *words).code == 0
    first = out.read_text().splitlines()[1].split(",")
    assert np.allclose([float(p) for p in first[3:]], model.predict_proba(x[:1])[0], rtol=1e-5)


def test_predictions_are_not_written_over_inputs_or_models(digits: Path, tmp_path: Path) -> None:
    table, before = tmp_path / "new.npz", files(digits)
    np.savez(table, x=np.zeros((2, 8, 8), np.uint8))
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "a.png")
    for given, out in ((table, table), (tmp_path, tmp_path / "a.png")):
        kept = out.read_bytes()
        done = fedtail("predict", str(digits), str(given), "--out", str(out))
        assert one_sentence(done) == f"'{out}' is refused: it is an input; name another file"
        assert out.read_bytes() == kept
    for name in ("model.safetensors", "model.json", "model.safetensors.sha256"):
        out = digits / name
        for words in (["predict", str(digits), str(table)], ["export", str(digits)]):
            said = one_sentence(fedtail(*words, "--out", str(out)))
            assert said.startswith(f"'{out}' is refused: it is among the files of a run")
    with pytest.raises(FedtailError, match="is among the files of a run"):
        load(digits).export(digits / "model.json")
    assert files(digits) == before
    out = tmp_path / "out.csv"
    for _ in range(2):  # what was written before may be written again
        assert fedtail("predict", str(digits), str(table), "--out", str(out)).code == 0


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_export_checks_what_it_wrote(digits: Path, tmp_path: Path, format: str) -> None:
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    out = tmp_path / "model"
    done = fedtail("export", str(digits), "--format", format, "--out", str(out))
    assert done.code == 0, done.err
    assert out.is_file()
    assert "checked on the test set: 359 of 359 predictions are those of the model" in done.out
    score = json.loads((digits / "metrics.jsonl").read_text().splitlines()[-1])["accuracy"]
    assert f"accuracy {score:.4f}, and the run reported {score:.4f}" in done.out


def test_export_says_when_there_is_nothing_to_check_with(tmp_path: Path) -> None:
    data = halves(TABLE, Y)
    run(Experiment(data=data, model="mlp", rounds=1, device="cpu"), out=tmp_path / "run")
    done = fedtail("export", str(tmp_path / "run"))
    assert done.code == 0, done.err
    assert "not checked on the test set: this run's data was made in Python" in done.out
    assert (tmp_path / "run" / "model.pt2").is_file()


def test_an_untested_run_is_exported_with_its_first_test(tmp_path: Path) -> None:
    chosen = Experiment(rounds=1, test="none", device="cpu")
    run(chosen, out=tmp_path / "run")
    done = fedtail("export", str(tmp_path / "run"))
    assert done.code == 0, done.err
    assert "359 of 359 predictions are those of the model" in done.out
    assert done.out.endswith(", and the run was not tested\n")


def test_export_notices_another_test_set(tmp_path: Path) -> None:
    run(Experiment(data=npz(tmp_path), rounds=1, device="cpu"), out=tmp_path / "run")
    test: dict[str, Any] = {"x_test": TABLE[80:], "y_test": np.roll(NAMES[80:], 1)}
    np.savez(tmp_path / "mine.npz", x_train=TABLE[:80], y_train=NAMES[:80], **test)
    done = fedtail("export", str(tmp_path / "run"))
    assert done.code == 1
    assert "40 of 40 predictions are those of the model" in done.out
    assert "is not as good as was reported: is the test set the same?" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict", "nothing", "new.npz"], "'nothing' is not a run folder"),
        (["predict", "RUN", "nothing.npz"], "there is no file or folder nothing.npz"),
        (
            ["export", "RUN", "--format", "tflite"],
            "--format tflite is unknown (known: torch, onnx)",
        ),
        (["export", "nothing"], "'nothing' is not a run folder"),
    ],
)
def test_wrong_words_are_one_sentence(digits: Path, words: list[str], said: str) -> None:
    done = fedtail(*[str(digits) if word == "RUN" else word for word in words])
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1


def test_an_operation_that_onnx_lacks_is_said_in_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    layers = [nn.Conv2d(3, 4, 4), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(16, 4)]
    model = run(tiny.experiment(None, lambda: nn.Sequential(*layers), rounds=1)).model
    with pytest.raises(FedtailError, match=r"to ONNX: it has no 'aten.adaptive_max_pool2d' \("):
        model.export(tmp_path / "model.onnx", "onnx")
    assert not list(tmp_path.iterdir())
