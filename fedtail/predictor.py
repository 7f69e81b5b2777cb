"""A trained model that takes inputs as they were given for training.

Everything between raw inputs and class names is inside: scale, layout, normalisation, network. It
is what a run returns (`Result.model`) and what `load` makes of a run folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedtail.data.augment import as_float, per_channel
from fedtail.data.dataset import (
    Transform,
    as_numpy,
    checked_features,
    must_be_inputs,
    tensor_from,
)
from fedtail.data.raw import Array, arranged, numbered_labels
from fedtail.device import choose_device, runs_on_images, to_device
from fedtail.engines.runtime import TEST_BATCH
from fedtail.errors import FedtailError
from fedtail.folder import RunFolder
from fedtail.model_file import ModelFile, found, network_of, spec_of
from fedtail.models.spec import ModelSpec, Reader
from fedtail.models.split_model import SplitModel
from fedtail.plugins import load_plugins, must_be_trusted
from fedtail.setting import Setting

RawInputs = Array | Sequence[str]
"""Raw inputs: arrays of numbers, or texts where a model reads those."""


class Predictor:
    """A trained model with all that belongs to it.

    Parameters
    ----------
    file
        What is known of it beside its tensors.
    model
        The network, loaded.
    transform
        The user's own function that inputs go through first, if there is one.
    reader
        What makes numbers of raw inputs, if they are texts or sound for a pretrained network.

    Attributes
    ----------
    classes
        The names of the classes; a label is a position in them.
    counts
        How many training samples all clients together hold of each.
    """

    def __init__(
        self,
        file: ModelFile,
        model: SplitModel,
        transform: Transform | None = None,
        reader: Reader | None = None,
    ) -> None:
        self.file = file
        self.reader = reader
        self.model = model.eval()
        self.transform = transform
        self.classes = file.classes
        self.counts = file.counts
        self.device = next((t.device for _, t in model.live()), torch.device("cpu"))
        self.images = runs_on_images(model, self.device) and len(file.shape) == 3

    @property
    def network(self) -> nn.Module:
        """The plain network, which takes normalised inputs."""
        return self.model.module

    def predict(self, x: RawInputs) -> np.ndarray:
        """Return the most probable class of each input, as labels were given for training.

        That is names where they were names, and whole numbers where they were numbers.
        """
        found: np.ndarray = self.labels[self.numbers(x)]
        return found

    @property
    def labels(self) -> np.ndarray:
        """The label of each class as it was given: its name, or its number."""
        file = self.file
        return np.array(file.classes if file.named else file.labels or range(len(file.classes)))

    def numbers(self, x: RawInputs) -> np.ndarray:
        """Return the most probable class of each input as a position in `classes`."""
        rows = [logits.argmax(dim=1).cpu() for logits in self._logits(x)]
        return torch.cat(rows).numpy()

    def predict_proba(self, x: RawInputs) -> np.ndarray:
        """Return the softmax of the network's output, one row an input and one column a class.

        It is as the network gives it: not calibrated, and for the class frequencies of training
        unless the method corrects for them.
        """
        rows = [logits.softmax(dim=1).cpu() for logits in self._logits(x)]
        return torch.cat(rows).numpy()

    def scored(self, x: RawInputs) -> tuple[np.ndarray, np.ndarray]:
        """Return what `numbers` and `predict_proba` do, of one pass through the network."""
        rows = [
            (logits.argmax(dim=1).cpu(), logits.softmax(dim=1).cpu()) for logits in self._logits(x)
        ]
        numbers, scores = (torch.cat(part).numpy() for part in zip(*rows, strict=True))
        return numbers, scores

    def score(self, x: RawInputs, y: Any) -> float:
        """Return the share of inputs whose label is predicted: the accuracy that a run reports."""
        labels = numbered_labels(y, self.labels.tolist(), "labels")
        if len(labels) != len(x):
            raise FedtailError(f"{len(x)} inputs but {len(labels)} labels")
        right = int((self.numbers(x) == labels).sum())
        return right / len(labels)

    def export(self, path: str | Path, format: Literal["torch", "onnx"] = "torch") -> None:
        """Write the model as one file that runs without fedtail and takes raw inputs.

        "torch" is a program of ``torch.export``, "onnx" runs in ONNX Runtime. Its outputs are
        ``logits`` and ``probabilities``.
        """
        from fedtail.export import export  # slow to import, and rarely needed

        export(self, Path(path), format)

    def inputs(self, x: RawInputs) -> Tensor:
        """Return raw inputs as the network takes them, before they are normalised; all checked."""
        if self.reader is not None:
            return self.reader(x)
        array = x if isinstance(x, Tensor) else as_numpy(x, "inputs")
        must_be_inputs(array, "inputs")
        given = self.file.given_shape
        if tuple(array.shape[1:]) not in (given, self.file.shape):
            one = ": one input is x[None]" if tuple(array.shape) == given else ""
            shape = ", ".join(["samples", *map(str, given)])
            raise FedtailError(f"inputs have the shape ({shape}), not {tuple(array.shape)}{one}")
        if self.transform is not None:
            array = self.transform(torch.as_tensor(array))
        return checked_features(
            arranged(self._typed(array), self.file.scale or None, "inputs"), "inputs"
        )

    def _typed(self, x: Array) -> Tensor:
        """Return inputs with the type of the training inputs: it decides what is done to them."""
        tensor = x if isinstance(x, Tensor) else tensor_from(x)
        whole = not tensor.is_floating_point()
        if self.file.kind == "numbers":
            if tensor.dtype == torch.uint8 and not self.file.scale:
                raise FedtailError(
                    "inputs are numbers taken as they are, as in training, and uint8 counts 0 to 1 "
                    "there: give x.astype('float32'), divided by 255 if training had it so"
                )
            return tensor.float()
        if self.file.kind == "tokens" and whole:
            return tensor
        if self.file.kind == "bytes" and whole and _are_bytes(tensor):
            return tensor.to(torch.uint8)
        allowed = "whole numbers from 0 to 255" if self.file.kind == "bytes" else "whole numbers"
        raise FedtailError(f"inputs are {allowed}, as in training; got {x.dtype} values")

    def _logits(self, x: RawInputs) -> Iterator[Tensor]:
        inputs = self.inputs(x)
        for batch in torch.split(inputs, TEST_BATCH):  # as a run tests: the same bits
            ready = normalised_for(self.file, batch.to(self.device))
            if self.images:
                ready = ready.contiguous(memory_format=torch.channels_last)
            with torch.inference_mode():
                yield self.model(ready)

    def __repr__(self) -> str:
        name = self.file.model.get("name") or self.file.model.get("python")
        return f"Predictor({name}, {self.takes} to {len(self.classes)} classes)"

    @property
    def takes(self) -> str:
        """What one raw input is, in words."""
        if self.reader is not None and not self.file.rate:
            return "texts"
        kind = f"sound of {self.file.rate} Hz" if self.file.rate else self.file.kind
        return f"{kind} of {' x '.join(map(str, self.file.given_shape))}"


def normalised_for(file: ModelFile, x: Tensor) -> Tensor:
    """Return inputs as the network sees them: standardised, or whole."""
    if file.kind == "tokens":
        return x.long()
    mean, std = (
        per_channel(torch.tensor(numbers, dtype=torch.float32, device=x.device), x.shape[1:])
        for numbers in (file.mean, file.std)
    )
    return as_float(x).sub(mean).div(std)


def predictor_of(setting: Setting, network: SplitModel) -> Predictor:
    """Return the model of a run that is over in this process."""
    file, spec = ModelFile.of(setting), setting.architecture
    reader = spec.reader(file.shape, file.rate) if isinstance(spec, ModelSpec) else None
    return Predictor(file, network, setting.dataset.given.transform, reader)


def load(
    folder: str | Path,
    *,
    network: Any = None,
    transform: Transform | None = None,
    device: str = "cpu",
    trust_plugins: bool = False,
) -> Predictor:
    """Return the model of a finished run, ready to predict from raw inputs.

    Parameters
    ----------
    folder
        The run folder.
    network
        The user's own network, or the function that makes it, where it cannot be found by its name;
        a copy of it gets the trained weights.
    transform
        The function that inputs went through first, where it cannot be found by its name.
    device
        Where to predict.
    trust_plugins
        Whether plug-ins and modules that the folder names may be imported, which runs them.
    """
    run = RunFolder(Path(folder))
    run.must_be_a_run()
    if not run.finished:
        raise FedtailError(f"'{run.path}' has no model yet: fedtail run --resume {run.path}")
    tensors, file = run.shipped(), ModelFile.from_json(run.described(), str(run.description))
    must_be_trusted(file.plugins, run.path, trust_plugins)
    load_plugins(file.plugins)
    if transform is None and file.transform:
        transform = found(file.transform, str(run.path), "transform", trust_plugins)
    model = network_of(file, tensors, network, trust_plugins, str(run.path))
    to_device((model,), choose_device(device), images=False)
    spec = None if network is not None else spec_of(file, str(run.path))
    reader = None if spec is None else spec.reader(file.shape, file.rate)
    predictor = Predictor(file, model, transform, reader)
    if predictor.images:
        cast(Any, model).to(memory_format=torch.channels_last)  # torch's stub lacks it
    return predictor


def _are_bytes(whole: Tensor) -> bool:
    if whole.dtype == torch.uint8 or not whole.numel():
        return True
    low, high = torch.aminmax(whole.long())  # torch compares no uint16
    return bool(low >= 0 and high <= 255)
