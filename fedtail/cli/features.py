"""`fedtail features`: the features of a data set, computed beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedtail.cli.options import FLAGS, OUTPUT, Plugins, TrustPlugins, Words, with_flags
from fedtail.cli.tables import say

EXAMPLES = """Examples:

fedtail features --data cifar10 --model resnet8 model.weights=resnet8.safetensors --out features.npz

fedtail run --data features.npz --model mlp 'model.hidden=[]'
"""


@with_flags(*(FLAGS.keys() - {"data", "model", "seed", "threads", "device"}))
def features_command(
    flags: dict[str, Any],
    out: Annotated[
        Path,
        typer.Option(metavar="FILE.npz", help="where they are written", rich_help_panel=OUTPUT),
    ],
    words: Words = None,
    plugin: Plugins = None,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Compute what a network gives to its classifier, for all samples, as a data set of its own.

    Labels, names of classes and natural clients are kept. A run on the file trains a head; a run
    with --train head does the same by itself, and ships the whole network.
    """
    from rich.console import Console
    from rich.progress import Progress

    from fedtail.cli.describe import experiment_from
    from fedtail.feature_file import write_features

    experiment = experiment_from(words, flags, plugin, trust_plugins)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("features")
        raw = write_features(
            experiment, out, lambda done, of: bar.update(task, completed=done, total=of)
        )
    samples, width = raw.x_train.shape
    tested = 0 if raw.x_test is None else len(raw.x_test)
    say(f"{out}  {width} features of {samples} training and {tested} test samples")
    say(f"train a head on them: fedtail run --data {out} --model mlp 'model.hidden=[]'")
