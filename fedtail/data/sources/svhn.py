"""SVHN: cropped house-number digits from the two MATLAB files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedtail.data.dataset import About, Source
from fedtail.data.public import Archive, PublicSource
from fedtail.data.raw import Constants, Raw
from fedtail.errors import FedtailError

ADDRESS = "http://ufldl.stanford.edu/housenumbers/"


@Source.register("svhn")
class Svhn(PublicSource):
    """Street View House Numbers, cropped: 73,257 and 26,032 colour digits, naturally uneven."""

    default_model: ClassVar[str] = "resnet8"
    shape: ClassVar[tuple[int, ...]] = (3, 32, 32)
    about: ClassVar[About] = About("house-number digits, 32x32 RGB", "73,257 / 26,032", "10")
    archives: ClassVar[tuple[Archive, ...]] = (
        Archive(
            "train_32x32.mat",
            f"{ADDRESS}train_32x32.mat",
            "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
        ),
        Archive(
            "test_32x32.mat",
            f"{ADDRESS}test_32x32.mat",
            "md5:eb5a983be6a315427106f1b164d9cef3",
        ),
    )

    normalisation: Literal["standard", "none"] = Field(
        "standard", description="standard: std .1980 .2010 .1970; none: values in 0..1"
    )

    def constants(self) -> Constants:
        """Return the training set's constants, if wanted."""
        if self.normalisation == "none":
            return (), ()
        return (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)

    @classmethod
    def read(cls, files: Mapping[str, Path]) -> Raw:
        """Return the arrays of both files."""
        x, y = _read_mat(files["train_32x32.mat"])
        x_test, y_test = _read_mat(files["test_32x32.mat"])
        return Raw(x, y, x_test, y_test, tuple("0123456789"))


def _read_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images as NCHW and labels; the file has (H, W, C, N), and calls the digit 0 ten."""
    # Slow to import, and only this source needs them.
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(path, variable_names=["X", "y"])
        images, labels = content["X"], content["y"].reshape(-1)
    # NotImplementedError is how scipy says that a file is of version 7.3, which it does not read.
    except (MatReadError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise FedtailError(f"{path} is not a MATLAB file with X and y") from error
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels % 10
