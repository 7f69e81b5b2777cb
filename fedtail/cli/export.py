"""`fedtail export`: the model of a run as one file for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtail.cli.options import TrustPlugins
from fedtail.errors import FedtailError, RunStopped

if TYPE_CHECKING:
    from fedtail.folder import RunFolder

EXAMPLES = """Examples:

fedtail export runs/digits-slac-seed0 --format onnx

fedtail export runs/digits-slac-seed0 --format torch --out digits.pt2
"""


def export_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a finished run")],
    format: Annotated[
        str, typer.Option(metavar="NAME", help="torch (a torch.export program) or onnx")
    ] = "torch",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="the file (default: model.pt2 or model.onnx in RUN)"),
    ] = None,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Write the model of a run as one file that takes raw inputs and needs no fedtail.

    The file is then run on the run's test set, if that can be loaded here, and has to predict what
    the model predicts, for every sample.
    """
    from fedtail.cli.execute import reopen
    from fedtail.export import ENDINGS, Format, agreement, export, graph_shape
    from fedtail.folder import RunFolder
    from fedtail.predictor import load

    if format not in ENDINGS:
        raise FedtailError(f"--format {format} is unknown (known: {', '.join(ENDINGS)})")
    kind: Format = "onnx" if format == "onnx" else "torch"
    model = load(run, trust_plugins=trust_plugins)
    path = run / f"model{ENDINGS[kind]}" if out is None else out
    predicted = export(model, path, kind)
    inputs = " x ".join(["samples", *map(str, graph_shape(model))])
    first = "" if model.reader is None else f", as {run / 'pretrained'} makes them of {model.takes}"
    print(f"{path}  takes {model.file.kind} of {inputs}{first}, gives logits and probabilities")
    folder = RunFolder(run)
    try:
        test = reopen(folder, trust_plugins).data.load().test
    except FedtailError as error:
        print(f"not checked on the test set: {error}")
        return
    same, right = agreement(model, predicted, test)
    print(f"checked on the test set: {same} of {len(test)} predictions are those of the model")
    found = reported(folder)
    known = "the run was not tested" if found is None else f"the run reported {found:.4f}"
    print(f"accuracy {right / len(test):.4f}, and {known}")
    if same != len(test):
        raise RunStopped(f"'{path}' predicts {len(test) - same} samples otherwise than the model")
    if found is not None and round(found * len(test)) != right:
        raise RunStopped(f"'{path}' is not as good as was reported: is the test set the same?")


def reported(folder: RunFolder) -> float | None:
    """Return the accuracy of the shipped model, as the run's table of confusions has it."""
    if not folder.confusion.is_file():  # there were too many classes, or it was not tested
        from fedtail.callbacks import read_records
        from fedtail.metrics import shipped_record

        accuracy: float | None = shipped_record(read_records(folder.metrics))["accuracy"]
        return accuracy
    confusion = json.loads(folder.confusion.read_bytes())["confusion"]
    return float(sum(row[c] for c, row in enumerate(confusion)) / sum(map(sum, confusion)))
