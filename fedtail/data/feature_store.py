"""Features of samples, computed when they are first asked for and kept: in memory or in files.

A row in memory is computed together with the other samples of its client, always the same ones. A
row in a file is computed together with its neighbours in the data set, so that it does not depend
on who asked first: several runs, with other splits, share the file. Worker processes share either.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fedtail.data.dataset import rows_at
from fedtail.data.public import data_folder
from fedtail.errors import FedtailError
from fedtail.metrics.traffic import human_bytes
from fedtail.state import digest

ENCODED_AT_ONCE = 64
"""Samples that are given to the network at a time."""
CACHE = "features-1"

MeanAndStd = tuple[Tensor, Tensor]
InputsAt = Callable[[Tensor], Tensor]
"""From positions of samples to inputs as the network takes them."""


class FeatureStore:
    """Rows of features, one a sample.

    Parameters
    ----------
    encode
        From inputs to features; it can be sent to another process.
    width
        How wide features are.
    positions
        The samples that may be asked for, of `samples` in the data set.
    device
        Where rows in memory are.
    key
        Names data and network in one word; rows are then kept in files below `data_folder`.
    """

    def __init__(
        self,
        encode: Callable[[Tensor], Tensor],
        width: int,
        positions: Tensor,
        samples: int,
        device: torch.device,
        key: str = "",
    ) -> None:
        self.encode, self.width, self.samples, self.key = encode, width, samples, key
        self._known: MeanAndStd | tuple[()] = ()
        self._values, self._marks = torch.empty(0, width), torch.zeros(0, dtype=torch.int64)
        self._row = torch.arange(0)
        if not key:
            self._row = torch.full((samples,), -1)
            self._row[positions] = torch.arange(len(positions))
            self._values = torch.empty(len(positions), width, device=device)
            self._marks = torch.zeros(len(positions), dtype=torch.int64)

    @property
    def nbytes(self) -> int:
        """What all rows take."""
        rows = self.samples if self.key else len(self._marks)
        return 4 * rows * self.width

    def features(
        self, wanted: Tensor, together: Tensor, inputs: InputsAt, constants: MeanAndStd
    ) -> Tensor:
        """Return features of samples; those that are missing are computed, and kept.

        Parameters
        ----------
        wanted
            Positions of samples in the data set.
        together
            Those whose rows are computed at the first call: all of the same client, these included.
        inputs
            Gives the inputs of samples.
        constants
            Mean and deviation that inputs are normalised with: other files for others.
        """
        if self.key:
            self._open(constants)
        rows = wanted if self.key else self._row[wanted]
        if not bool(rows_at(self._marks, rows).all()):
            self._compute(together, inputs)
        return rows_at(self._values, rows)

    def _compute(self, together: Tensor, inputs: InputsAt) -> None:
        for part in self._groups(together):
            rows = part if self.key else self._row[part]
            if bool(rows_at(self._marks, rows).all()):
                continue
            found = self.encode(inputs(part)).to(self._values)
            self._values[rows] = found
            self._marks[rows] = _sums(found.cpu())  # last: a marked row is a whole row

    def _groups(self, together: Tensor) -> list[Tensor]:
        if not self.key:
            return list(torch.split(together, ENCODED_AT_ONCE))
        blocks = torch.unique(together // ENCODED_AT_ONCE).tolist()
        return [
            torch.arange(b * ENCODED_AT_ONCE, min((b + 1) * ENCODED_AT_ONCE, self.samples))
            for b in blocks
        ]

    def _open(self, constants: MeanAndStd) -> None:
        """Map the files; rows that a power cut left half written do not count."""
        if self._known and all(map(torch.equal, self._known, constants)):
            return
        mean, std = (numbers.detach().cpu() for numbers in constants)
        folder = data_folder() / CACHE / digest({self.key: torch.stack([mean, std])})[:32]
        sizes = {"rows": 4 * self.samples * self.width, "marks": 8 * self.samples}
        folder.mkdir(parents=True, exist_ok=True)
        for file, size in sizes.items():
            _reserve(folder / file, size)
        rows, marks = (str(folder / file) for file in sizes)
        values = torch.from_file(rows, True, self.samples * self.width, dtype=torch.float32)
        self._values = values.view(self.samples, self.width)
        self._marks = torch.from_file(marks, True, self.samples, dtype=torch.int64)
        for part in torch.split(torch.arange(self.samples), 64 * ENCODED_AT_ONCE):
            said = self._marks[part]
            lost = (said != 0) & (said != _sums(self._values[part]))
            self._marks[part[lost]] = 0
        self._known = constants

    def __getstate__(self) -> dict[str, object]:
        state = dict(self.__dict__)
        if self.key:  # another process maps the files itself
            empty = FeatureStore(self.encode, self.width, torch.arange(0), 0, torch.device("cpu"))
            state |= {n: getattr(empty, n) for n in ("_known", "_values", "_marks", "_row")}
        return state


def _sums(rows: Tensor) -> Tensor:
    """Return a number for the bits of each row, never 0."""
    return rows.contiguous().view(torch.int32).sum(dim=1, dtype=torch.int64) | 1


def _reserve(path: Path, size: int) -> None:
    """Make a file of this size that the disk has room for; writing to a mapped file cannot fail."""
    if path.is_file() and path.stat().st_size == size:
        return
    free = shutil.disk_usage(path.parent).free
    if free < size:
        raise FedtailError(
            f"features take {human_bytes(size)}, but {path.parent} has {human_bytes(free)} left: "
            "set FEDTAIL_DATA to another disk, or features=anew"
        )
    with path.open("ab") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        file.truncate(size)
