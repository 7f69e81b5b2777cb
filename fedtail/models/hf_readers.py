"""Texts and sound as a pretrained network takes them: its tokeniser, its sampling rate.

What reads them stands before the network, not in it: an exported file takes what it makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtail.data.dataset import as_numpy, must_be_inputs
from fedtail.data.formats.sound import resampled
from fedtail.data.texts import texts_of
from fedtail.errors import FedtailError

READ_AT_ONCE = 1024
"""How many inputs are read together."""
FULL_SCALE = 32768.0
"""What 16-bit sound is divided by."""


@dataclass(frozen=True)
class TextReader:
    """Texts to numbers of tokens, all of the same length: longer ones are cut, others padded."""

    tokenizer: Any
    length: int

    def __call__(self, x: Any) -> Tensor:
        """Return (samples, length), int64."""
        rows = [
            self.tokenizer(part, padding="max_length", truncation=True, max_length=self.length)
            for part in _parts(strings(x))
        ]
        return torch.tensor([ids for row in rows for ids in row["input_ids"]], dtype=torch.int64)


@dataclass(frozen=True)
class SoundReader:
    """Waveforms to what the feature extractor of a model makes of them."""

    extractor: Any
    rate: int

    def __call__(self, x: Any) -> Tensor:
        """Return (samples, ...), float32."""
        waves = _waves(x)
        wanted = int(self.extractor.sampling_rate)
        read = [self._read(resampled(part, self.rate, wanted), wanted) for part in _parts(waves)]
        return torch.cat(read).to(torch.float32)

    def _read(self, waves: np.ndarray, rate: int) -> Tensor:
        found = self.extractor(list(waves), sampling_rate=rate, return_tensors="np")
        name = next(name for name in ("input_values", "input_features") if name in found)
        return torch.as_tensor(np.asarray(found[name]))


class Masked:
    """Before a network of texts runs: say which tokens only fill up. A hook that can be copied."""

    def __init__(self, pad: int) -> None:
        self.pad = pad

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the network with its attention mask."""
        mask = (args[0] != self.pad).long()
        # The first counts always: an empty text would attend to nothing at all.
        mask = torch.cat([torch.ones_like(mask[:, :1]), mask[:, 1:]], dim=1)
        return args, {"attention_mask": mask, **kwargs}


def strings(x: Any) -> list[str]:
    """Return inputs as a list of texts, or say that they are none."""
    found = texts_of(x)
    if found is None:
        one = ": one text is [text]" if isinstance(x, str) else ""
        raise FedtailError(f"inputs are texts, one string each{one}")
    return list(found.values)


def longest(tokenizer: Any, texts: Sequence[str], most: int) -> int:
    """Return the length of the longest text in tokens, at most so many and at least one."""
    sizes = [
        len(ids)
        for part in _parts(texts)
        for ids in tokenizer(list(part), truncation=True, max_length=most)["input_ids"]
    ]
    return max(1, *sizes)


def _waves(x: Any) -> np.ndarray:
    waves = as_numpy(x, "inputs")
    must_be_inputs(waves, "inputs")
    if waves.ndim == 3 and 1 in waves.shape[1:]:
        waves = waves.reshape(len(waves), -1)
    if waves.ndim != 2:
        raise FedtailError(
            f"sound is waveforms of one channel, (samples, time), not {tuple(waves.shape)}"
        )
    scale = FULL_SCALE if waves.dtype.kind in "iu" else 1.0
    return (waves / scale).astype(np.float32)


def _parts(rows: Any) -> list[Any]:
    return [rows[start : start + READ_AT_ONCE] for start in range(0, len(rows), READ_AT_ONCE)]
