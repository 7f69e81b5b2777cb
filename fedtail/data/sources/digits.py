"""The 8x8 digits that ship inside scikit-learn: real images, no download."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

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
        from sklearn.datasets import load_digits  # slow to import, and only this source needs it

        data = load_digits()
        images = np.rint(data.images * (255 / BRIGHTEST)).astype(np.uint8)
        train, test = stratified(data.target, TEST_FRACTION, seed=0)
        raw = Raw(images[train], data.target[train], images[test], data.target[test])
        return dataset_from(raw, self.name, ((DIGITS_MEAN,), (DIGITS_STD,)))

    @classmethod
    def located(cls) -> str | None:
        """Return that nothing has to be fetched."""
        return "built in"

    @classmethod
    def advice(cls) -> str:
        """Return that nothing has to be fetched."""
        return "it is built in"
