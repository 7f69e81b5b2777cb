"""Texts as inputs: strings, until the tokeniser of a model makes numbers of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, eq=False)
class Texts:
    """The inputs of samples that are texts; see `fedtail.data.dataset.Features`."""

    values: np.ndarray

    @property
    def shape(self) -> torch.Size:
        """The number of samples: one text has no shape."""
        return torch.Size(self.values.shape)

    @property
    def dtype(self) -> torch.dtype:
        """What a tokeniser makes of them: whole numbers."""
        return torch.int64

    def __getitem__(self, index: Any) -> Any:
        return Texts(self.values[np.asarray(index)])

    def __len__(self) -> int:
        return len(self.values)


def texts_of(x: Any) -> Texts | None:
    """Return inputs as texts, if that is what they are."""
    if isinstance(x, Texts):
        return x
    if isinstance(x, list | tuple) and len(x) and isinstance(x[0], str):
        x = np.array(x, dtype=object)
    if not isinstance(x, np.ndarray) or x.ndim != 1 or not x.size:
        return None
    if x.dtype.kind == "U" or (x.dtype.kind == "O" and all(isinstance(t, str) for t in x)):
        return Texts(x.astype(object))
    return None
