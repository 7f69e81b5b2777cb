"""The 8x8 digits that ship inside scikit-learn: real images, no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtail.data.dataset import About, Dataset, Source
from fedtail.data.raw import Raw, dataset_from, stratified

TEST_FRACTION = 0.2
BRIGHTEST = 16
DIGITS_MEAN, DIGITS_STD = 0.3048, 0.3754


@Source.register("digits")
class Digits(Source):
    """1,797 hand-written digits of 8x8 pixels; one fifth of each class is the test set.

    The split is part of the data set: no seed of an experiment changes it.
    """

    default_model: ClassVar[str] = "digits_cnn"
    about: ClassVar[About] = About(
        "hand-written digits, 8x8 grey, inside scikit-learn", "1,438 / 359", "10"
    )

    def load(self) -> Dataset:
        """Return the images as bytes."""
        pixels, labels = read_digits()
        images = np.rint(pixels * (255 / BRIGHTEST)).astype(np.uint8)
        train, test = stratified(labels, TEST_FRACTION, seed=0)
        raw = Raw(images[train], labels[train], images[test], labels[test])
        return dataset_from(raw, self.name, ((DIGITS_MEAN,), (DIGITS_STD,)))

    @classmethod
    def located(cls) -> str | None:
        """Return that nothing has to be fetched."""
        return "built in"

    @classmethod
    def advice(cls) -> str:
        """Return that nothing has to be fetched."""
        return "it is built in"


def read_digits(file: str = "datasets/data/digits.csv.gz") -> tuple[NDArray[Any], NDArray[Any]]:
    """Return images of 8x8 numbers from 0 to 16, and their classes.

    Importing scikit-learn takes a second, and its file a hundredth of it: it is read without, as
    long as it is where it has always been.

    Parameters
    ----------
    file
        Its place inside the package.
    """
    spec = find_spec("sklearn")
    places = [] if spec is None else [Path(p) / file for p in spec.submodule_search_locations or ()]
    if any(place.is_file() for place in places):
        rows = np.loadtxt(next(p for p in places if p.is_file()), delimiter=",")
        return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    data = load_digits()
    return data.images, data.target
