"""`fedtail predict`: the classes of new inputs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtail.cli.options import TrustPlugins
from fedtail.errors import FedtailError, shown
from fedtail.files import write_atomic

if TYPE_CHECKING:
    import numpy as np

    from fedtail.data.dataset import Source

EXAMPLES = """Examples:

fedtail predict runs/digits-slac-seed0 new.npz --out predictions.csv

fedtail predict runs/photos new/photos --probabilities

fedtail predict runs/news letters.csv
"""


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a finished run")],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="inputs as they were given for training: npz, csv, tsv, jsonl, txt (a text a "
            "line), an image, a wav file, or a folder of those",
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

    Inputs are raw, as they were given for training: an npz with x (or x_test); a table with the
    columns that the run was trained on; images, wav files or texts. Labels, if there are any (y or
    y_test, the column of labels, folders called after classes), are compared. The table that is
    written has a line for each input: its number or file, the name of the most probable class, and
    the softmax of it, which is not calibrated.
    """
    from fedtail.new_inputs import read_inputs
    from fedtail.overwrite import must_not_replace
    from fedtail.predictor import load

    must_not_replace(out, [file])
    model = load(run, device=device, trust_plugins=trust_plugins)
    given = read_inputs(file, model, trained_on(run, trust_plugins))
    numbers, scores = model.scored(given.x)
    right = given.right(model, numbers)
    write_atomic(out, predictions_csv(model.classes, given.names, numbers, scores, probabilities))
    print(f"{out}  {len(numbers)} predictions")
    if right is not None:
        print(f"accuracy {right:.4f} on the labels of {shown(str(file))}")


def trained_on(run: Path, trust: bool) -> Source | None:
    """Return where the data of a run came from; nothing if only Python knows."""
    from fedtail.cli.execute import reopen
    from fedtail.folder import RunFolder

    try:
        return reopen(RunFolder(run), trust).data
    except FedtailError:
        return None


def predictions_csv(
    classes: tuple[str, ...],
    names: Sequence[str],
    numbers: np.ndarray,
    scores: np.ndarray,
    each: bool,
) -> str:
    """Return the table as text."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["sample", "class", "probability", *(classes if each else ())])
    for name, c, row in zip(names, numbers.tolist(), scores, strict=True):
        more = [f"{score:.6g}" for score in row] if each else []
        table.writerow([name, classes[c], f"{row[c]:.6g}", *more])
    return text.getvalue()
