"""The features of a report as CSV for a program."""

from __future__ import annotations

from collections.abc import Mapping

from fedtail.metrics.groups import by_frequency
from fedtail.report.features import FeatureView
from fedtail.study.tables import written


def features_csv(views: Mapping[str, FeatureView], client: int | None = None) -> str:
    """Return a row a test sample: its class, the mark of the class, and where the map puts it."""
    head = ["method", "seed", "sample", "class", "mark", "predicted", "x", "y"]
    rows = []
    for label, view in views.items():
        marks = view.marks(client)
        columns = (view.positions, view.labels, view.predicted, view.points)
        for sample, c, guess, (x, y) in zip(*(column.tolist() for column in columns), strict=True):
            told = [sample, view.classes[c], marks[c], view.classes[guess], x, y]
            rows.append([label, view.seed, *told])
    return written(head, rows)


def norms_csv(views: Mapping[str, FeatureView], client: int | None = None) -> str:
    """Return a row a class and head, from the most to the least frequent class: ‖w_c‖."""
    head = ["method", "seed", "head", "class", "mark", "samples", "norm"]
    rows = []
    for label, view in views.items():
        marks, counts = view.marks(client), view.class_counts
        for number, norms in enumerate(view.norms.tolist()):
            for c in by_frequency(counts):
                told = [view.classes[c], marks[c], counts[c], norms[c]]
                rows.append([label, view.seed, number, *told])
    return written(head, rows)
