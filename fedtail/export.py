"""A trained model as one file that runs without fedtail: raw inputs in, probabilities out.

The graph holds all that stands between: scale, layout, normalisation, network, softmax.
"""

from __future__ import annotations

import copy
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedtail.data.dataset import Samples
from fedtail.data.raw import arranged
from fedtail.engines.runtime import TEST_BATCH
from fedtail.errors import FedtailError, missing_extra
from fedtail.files import write_atomic
from fedtail.model_file import ModelFile
from fedtail.overwrite import must_not_replace
from fedtail.plugins import first_line
from fedtail.predictor import Predictor, normalised_for

Format = Literal["torch", "onnx"]
ENDINGS = {"torch": ".pt2", "onnx": ".onnx"}
TYPES = {"bytes": torch.uint8, "tokens": torch.int64, "numbers": torch.float32}
"""What the graph takes, by what the model was trained on."""


class Graph(nn.Module):
    """From raw inputs to logits and probabilities, as one module of plain tensor operations."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.file = predictor.file
        self.transform = predictor.transform
        # A copy: networks for images have channels last here, and a graph says nothing about that.
        plain: Any = copy.deepcopy(predictor.model)
        self.model = plain.to("cpu", memory_format=torch.contiguous_format)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return (logits, probabilities)."""
        x = inputs if self.transform is None else self.transform(inputs)
        if self.file.scale:
            x = x.float() * torch.tensor(self.file.scale)
        elif self.file.kind == "numbers":
            x = x.float()
        laid_out = torch.as_tensor(arranged(x, None, "inputs"))
        logits = self.model(normalised_for(self.file, laid_out))
        return logits, logits.softmax(dim=1)


def example(predictor: Predictor, samples: int = 2) -> Tensor:
    """Return inputs of the kind that the graph takes."""
    return torch.zeros((samples, *graph_shape(predictor)), dtype=TYPES[predictor.file.kind])


def graph_shape(predictor: Predictor) -> tuple[int, ...]:
    """Return the shape of one input of the graph: raw, but for what a reader makes of it first."""
    file = predictor.file
    return file.given_shape if predictor.reader is None else file.shape


def export(predictor: Predictor, path: Path, format: Format) -> Callable[[np.ndarray], np.ndarray]:
    """Write a model as one file, and return what the file itself predicts: inputs to classes.

    Parameters
    ----------
    predictor
        The model.
    path
        The file.
    format
        "torch" is a program of ``torch.export`` (``.pt2``), "onnx" runs in ONNX Runtime.
    """
    if format not in ENDINGS:
        raise FedtailError(f"format '{format}' is unknown (known: {', '.join(ENDINGS)})")
    must_not_replace(path)
    run = _to_onnx(predictor, path) if format == "onnx" else _to_torch(predictor, path)
    wanted = TYPES[predictor.file.kind]

    def predicted(x: np.ndarray) -> np.ndarray:
        batches = torch.split(torch.as_tensor(x).to(wanted), TEST_BATCH)
        return np.concatenate([run(batch.numpy()).argmax(1) for batch in batches])

    return predicted


def agreement(
    predictor: Predictor, predicted: Callable[[np.ndarray], np.ndarray], samples: Samples
) -> tuple[int, int]:
    """Return how many samples an exported file takes for what the model does, and how many rightly.

    Parameters
    ----------
    predictor, predicted
        The model, and what its file predicts.
    samples
        The test set, as a data set holds it.
    """
    same = right = 0
    for index in torch.split(torch.arange(len(samples)), TEST_BATCH):
        x: Any = samples.x[index]
        if predictor.reader is None:
            x = as_given(predictor.file, x)
        found = predicted(x if predictor.reader is None else predictor.inputs(x).numpy())
        same += int((found == predictor.numbers(x)).sum())
        right += int((found == samples.y[index].numpy()).sum())
    return same, right


def as_given(file: ModelFile, x: Tensor) -> np.ndarray:
    """Return inputs of a data set as they were given: the inverse of scale and layout."""
    if file.scale:
        x = x / torch.tensor(file.scale)
    if len(file.given_shape) < x.ndim - 1:
        x = x[:, 0]
    elif tuple(x.shape[1:]) != file.given_shape:
        x = x.movedim(1, -1)
    return x.contiguous().numpy()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from telling what it is about to do, and which packages it could do more with."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _program(predictor: Predictor) -> Any:
    samples = {"inputs": {0: torch.export.Dim("samples")}}
    try:
        with quiet(), torch.no_grad():
            graph = Graph(predictor).eval()
            return torch.export.export(graph, (example(predictor),), dynamic_shapes=samples)
    except Exception as error:  # a user's network may do anything
        raise FedtailError(
            f"the model cannot be exported: torch.export says {first_line(error)}"
        ) from error


def _to_torch(predictor: Predictor, path: Path) -> Callable[[np.ndarray], np.ndarray]:
    saved = io.BytesIO()
    torch.export.save(_program(predictor), saved)
    write_atomic(path, saved.getvalue())
    program = torch.export.load(io.BytesIO(path.read_bytes())).module()

    def run(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            logits: np.ndarray = program(torch.from_numpy(x))[0].numpy()
        return logits

    return run


def _to_onnx(predictor: Predictor, path: Path) -> Callable[[np.ndarray], np.ndarray]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 - torch.onnx needs it
    except ImportError as error:
        raise missing_extra("format 'onnx'", f"'{error.name}'", "onnx") from None
    program = _program(predictor)
    try:
        with quiet():
            made = torch.onnx.export(
                program,
                (),
                input_names=["inputs"],
                output_names=["logits", "probabilities"],
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # an operation that ONNX lacks; its own words are pages
        unknown = re.search(r"No ONNX function found for \S*op='([\w.]+)'", str(error))
        what = f"it has no '{unknown[1]}'" if unknown else first_line(error)
        raise FedtailError(
            f"the model cannot be exported to ONNX: {what} (format torch may do)"
        ) from error
    assert made is not None
    proto = made.model_proto
    facts = {"classes": "\n".join(predictor.classes), "kind": predictor.file.kind}
    onnx.helper.set_model_props(proto, facts)
    onnx.checker.check_model(proto)
    write_atomic(path, proto.SerializeToString())
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])

    def run(x: np.ndarray) -> np.ndarray:
        logits: np.ndarray = session.run(["logits"], {"inputs": x})[0]
        return logits

    return run
