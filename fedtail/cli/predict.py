"""`fedtail predict`: the classes of new inputs."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtail.cli.options import TrustPlugins
from fedtail.errors import FedtailError, shown
from fedtail.files import write_atomic

if TYPE_CHECKING:
    import numpy as np

EXAMPLES = """Examples:

fedtail predict runs/digits-fedavg-seed0 new.npz --out predictions.csv

fedtail predict runs/mine test.npz --probabilities
"""

INPUTS, LABEL_ARRAYS = ("x", "x_test"), ("y", "y_test")
"""What arrays in a file may be called."""


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a finished run")],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="an npz with inputs x (or x_test), as they were given for training; labels y (or "
            "y_test) are compared",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="the table")] = Path("predictions.csv"),
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="add a column for each class")
    ] = False,
    device: Annotated[str, typer.Option(metavar="NAME", help="where to predict")] = "cpu",
    trust_plugins: TrustPlugins = False,
) -> None:
    """Predict the classes of new inputs with the model of a run.

    FILE is an npz with inputs x (or x_test), raw, as they were given for training; labels y (or
    y_test), if it has any, are compared. The table has a line for each input: its number, the name
    of the most probable class, and the softmax of it, which is not calibrated.
    """
    from fedtail.data.formats.npz import read_arrays
    from fedtail.predictor import load

    model = load(run, device=device, trust_plugins=trust_plugins)
    arrays = read_arrays(file, (*INPUTS, *LABEL_ARRAYS))
    key = next((key for key in INPUTS if key in arrays), None)
    if key is None:
        raise FedtailError(f"{file}: neither of {', '.join(INPUTS)} is there")
    scores = model.predict_proba(arrays[key])
    labels = model.predict(arrays[key])
    write_atomic(
        out, predictions_csv(model.classes, labels, scores, probabilities, model.file.named)
    )
    print(f"{out}  {len(labels)} predictions")
    truth = next((arrays[name] for name in LABEL_ARRAYS if name in arrays), None)
    if truth is not None:
        print(f"accuracy {model.score(arrays[key], truth):.4f} on the labels of {shown(str(file))}")


def predictions_csv(
    classes: tuple[str, ...], labels: np.ndarray, scores: np.ndarray, each: bool, named: bool
) -> str:
    """Return the table as text."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["sample", "class", "probability", *(classes if each else ())])
    place = {name: c for c, name in enumerate(classes)}
    for number, (label, row) in enumerate(zip(labels.tolist(), scores, strict=True)):
        c = place[label] if named else label
        more = [f"{score:.6g}" for score in row] if each else []
        table.writerow([number, classes[c], f"{row[c]:.6g}", *more])
    return text.getvalue()
