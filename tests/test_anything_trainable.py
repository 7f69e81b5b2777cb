"""Tokens, categories, data sets of torch, outputs with logits, functions, files of weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from command_line import fedtail, one_sentence
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fedtail import Arrays, Digits, Experiment, FedAvg, FedtailError, TorchData, load, run
from fedtail.device import choose_device
from fedtail.models import build
from fedtail.setting import prepare

RNG = np.random.default_rng(0)
WORDS = RNG.integers(0, 30, (90, 6))
Y = WORDS[:, 0] // 10
X = (RNG.normal(size=(90, 4)) + Y[:, None]).astype(np.float32)
QUICK: dict[str, Any] = {"rounds": 2, "clients": 3, "device": "cpu", "partition": "iid"}


class Reader(nn.Module):
    """Embeds words, and answers as the models of some libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Any:
        return SimpleNamespace(logits=self.last(self.embedding(words)[:, 0]))


def shifted(x: Tensor) -> Tensor:
    return x.float() * 2 + 1


def shorter(x: Tensor) -> Tensor:
    return x[:1]


# Tokens and categories


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.uint16])
def test_a_network_that_embeds_gets_whole_numbers(kind: Any, tmp_path: Path) -> None:
    data = Arrays(WORDS.astype(kind), Y, WORDS[:30], Y[:30])
    method: FedAvg[Any] = FedAvg(local={"lr": 1.0, "batch_size": 5, "epochs": 5})
    chosen = Experiment(data=data, model=Reader, method=method, **QUICK)
    result = run(chosen, out=tmp_path / "run")
    assert result.metrics["accuracy"] > 0.8
    assert prepare(chosen).federation.test_batch(0, 2)[0].dtype == torch.int64
    loaded = load(tmp_path / "run")
    assert loaded.score(WORDS[:30], Y[:30]) == result.metrics["accuracy"]
    with pytest.raises(FedtailError, match="inputs are whole numbers, as in training"):
        loaded.predict(WORDS[:2] + 0.5)
    loaded.export(tmp_path / "reader.pt2")
    program = torch.export.load(tmp_path / "reader.pt2").module()
    assert np.array_equal(program(torch.from_numpy(WORDS))[0].argmax(1), loaded.numbers(WORDS))


def test_whole_numbers_are_standardised_for_other_networks() -> None:
    result = run(Experiment(data=Arrays(WORDS, Y, WORDS, Y), model="mlp", **QUICK))
    assert result.model.file.kind == "numbers"
    np.testing.assert_allclose(result.model.file.mean, WORDS.mean(0), rtol=1e-6)


def test_a_network_that_takes_neither_is_refused_with_what_it_says_of_numbers() -> None:
    chosen = Experiment(data=Arrays(WORDS, Y, WORDS, Y), model=nn.Linear(5, 3), **QUICK)
    with pytest.raises(FedtailError, match=r"does not take a batch of shape \(2, 6\)"):
        prepare(chosen)


# Data sets of torch


class Pairs(Dataset[Any]):
    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return self.x[i], self.y[i]


class Endless(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield X[0], 0


def test_a_data_set_of_torch_is_data() -> None:
    arrays = run(Experiment(data=Arrays(X, Y), **QUICK))
    tensors = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    turned = Pairs(X[:, ::-1].copy()[:, ::-1], Y[:, None] * 1.0)  # whole, if not as whole numbers
    for data in (tensors, Pairs(X, Y), TorchData(Pairs(X, Y)), turned):
        assert run(Experiment(data=data, **QUICK)).digest == arrays.digest
    both = run(Experiment(data=(tensors, Pairs(X[:9], Y[:9])), **QUICK))
    assert both.digest == run(Experiment(data=Arrays(X, Y, X[:9], Y[:9]), **QUICK)).digest


def test_its_labels_may_be_names_and_its_clients_natural() -> None:
    names = [f"class {y}" for y in Y]
    owner = np.arange(90) % 5
    source = TorchData(Pairs(X, names), client_train=owner)
    result = run(Experiment(data=source, rounds=1, device="cpu"))
    # One of the five is held out whole, for the test.
    assert len(result.history[0]["clients"]) == 4
    assert set(result.model.predict(X)) <= set(names)


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (Endless(), "the training data set has no length or no places"),
        (Pairs(X[:0], Y[:0]), "the training data set has no local data"),
        (Pairs(np.array(["a", "b"]), Y), "has inputs that are no tensors, arrays or images"),
        (Pairs([X[0], X[1, :2]], Y), r"has inputs of different shapes, such as"),
        (Pairs(X, Y + 0.9), "torch, y_train: labels must be whole numbers, got float64 values"),
        (Pairs(X, [None] * 90), "y_train: labels must be whole numbers, got object values"),
        (
            Pairs(X, np.eye(3)[Y]),
            r"y_train: .*, got shape \(90, 3\); for one-hot labels give their",
        ),
        (Pairs(X, [[0], [0, 1]] * 45), "set has odd labels: rows of different lengths"),
        (TensorDataset(*map(torch.from_numpy, (X, Y, Y))), "a sample is a pair of input and label"),
        (TensorDataset(torch.from_numpy(X)), "a sample is a pair of input and label"),
    ],
)
def test_other_data_sets_are_refused(dataset: Any, said: str) -> None:
    with pytest.raises(FedtailError, match=said):
        TorchData(dataset).load()


def test_the_command_line_says_that_it_is_for_python() -> None:
    assert "made in Python" in one_sentence(fedtail("run", "--data", "torch"))


# Functions


def test_a_transform_is_a_part_of_the_model(tmp_path: Path) -> None:
    data = Arrays(X[:60], Y[:60], X[60:], Y[60:], transform=shifted)
    result = run(Experiment(data=data, **QUICK), out=tmp_path / "run")
    loaded = load(tmp_path / "run")
    assert loaded.file.transform == "test_anything_trainable:shifted"
    assert result.model.score(X[60:], Y[60:]) == result.metrics["accuracy"]
    assert loaded.score(X[60:], Y[60:]) == result.metrics["accuracy"]
    np.testing.assert_allclose(loaded.file.mean, (X[:60] * 2.0 + 1).mean(0), rtol=1e-5)
    loaded.export(tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    assert np.array_equal(program(torch.from_numpy(X))[0].argmax(1), loaded.numbers(X))


def test_a_transform_gets_the_numbers_in_the_order_of_this_machine() -> None:
    odd = X.astype(">f4")[:, ::-1]
    one, other = (
        run(Experiment(data=Arrays(x, Y, transform=shifted), **QUICK))
        for x in (odd, odd.astype(np.float32))
    )
    assert one.digest == other.digest
    assert np.array_equal(one.model.predict(odd), other.model.predict(odd.astype(np.float32)))


def test_a_transform_that_is_not_here_has_to_be_given(tmp_path: Path) -> None:
    data = Arrays(X, Y, transform=lambda x: x + 1)
    result = run(Experiment(data=data, **QUICK), out=tmp_path / "run")
    with pytest.raises(FedtailError, match="transform="):
        load(tmp_path / "run")
    again = load(tmp_path / "run", transform=lambda x: x + 1)
    assert np.array_equal(again.predict(X), result.model.predict(X))


def test_a_wrong_transform_is_refused() -> None:
    with pytest.raises(FedtailError, match="returns no tensor with one row an input"):
        Arrays(X, Y, transform=shorter).load()
    with pytest.raises(FedtailError, match="is a function that only Python can give"):
        Arrays(X, Y, transform="shifted")


# Devices


def test_a_device_that_is_not_here_is_named() -> None:
    assert Experiment(device="cuda:1").device == "cuda:1"
    if torch.cuda.device_count() < 100:
        with pytest.raises(FedtailError, match=r"device 'cuda:99' is not available here \(avail"):
            choose_device("cuda:99")
    with pytest.raises(FedtailError, match="'cuda:x' is no device"):
        Experiment(device="cuda:x")


# Weights


def test_a_run_goes_on_from_weights(tmp_path: Path) -> None:
    first = run(Experiment(rounds=1, device="cpu"), out=tmp_path / "first")
    file = str(tmp_path / "first" / "model.safetensors")
    torch.save(first.tensors, tmp_path / "state.pt")
    for path in (file, str(tmp_path / "state.pt")):
        model = {"name": "digits_cnn", "weights": path}
        started = prepare(Experiment(model=model, device="cpu")).model.tensors()
        assert all(torch.equal(started[name], t) for name, t in first.tensors.items())
    words = ["--model", "digits_cnn", f"model.weights={file}", "--rounds", "1"]
    done = fedtail("run", *words, "--out", str(tmp_path / "second"))
    assert done.code == 0, done.err
    # What was started from is no part of the model that is shipped.
    (tmp_path / "first" / "model.safetensors").unlink()
    test = Digits().load().test
    x = test.x[torch.arange(len(test))][:, 0]
    assert load(tmp_path / "second").score(x, test.y) > 0


def test_wrong_weights_are_refused(tmp_path: Path) -> None:
    save_file({"fc.weight": torch.ones(2)}, tmp_path / "other.safetensors")
    (tmp_path / "bad.pt").write_bytes(b"nonsense")
    torch.save([1, 2], tmp_path / "list.pt")
    for name, said in (
        ("none.pt", "there is no file"),
        ("bad.pt", "is neither safetensors nor a state dict"),
        ("list.pt", "holds no state dict of tensors"),
        ("other.safetensors", "do not match in"),
    ):
        with pytest.raises(FedtailError, match=said):
            build({"name": "digits_cnn", "weights": str(tmp_path / name)}, (1, 8, 8), 10)


@pytest.mark.parametrize(("mode", "channels"), [("P", 3), ("1", 1), ("LA", 1), ("RGB", 3)])
def test_images_of_any_mode_are_grey_or_colours(mode: str, channels: int) -> None:
    image = Image.new("RGB", (5, 6), (10, 200, 30)).convert(mode)
    dataset = TorchData(Pairs([image] * 20, [0, 1] * 10)).load()
    assert dataset.input_shape == (channels, 6, 5)
    plain = np.asarray(image.convert("RGB" if channels == 3 else "L"))
    found = dataset.train.x[torch.tensor([0])][0]
    assert np.array_equal(found.permute(1, 2, 0).squeeze(-1).numpy(), plain)
