"""What a finished model makes of the classes: a map of its features, and its classifier's norms.

The features are what enters the classifier, of some test samples, laid out in the plane by t-SNE
(van der Maaten and Hinton, JMLR 2008). The norms are the lengths ‖w_c‖ of the classifier's vectors.
Both are made anew from the run folder: its description gives data and network, its seed the samples
and the start of the map, so that the same folder gives the same picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedtail.data.federation import Federation
from fedtail.described import load_experiment, made_in_python, make_experiment
from fedtail.engines.runtime import TEST_BATCH, numerics
from fedtail.errors import FedtailError
from fedtail.experiment import Experiment
from fedtail.folder import RunFolder
from fedtail.metrics.groups import Groups
from fedtail.models.ensemble import Ensemble
from fedtail.models.heads import CosineHead, class_axis
from fedtail.models.spec import ModelSpec
from fedtail.models.split_model import SplitModel
from fedtail.plugins import load_plugins, must_be_trusted, stored_plugins
from fedtail.rng import derive, numpy_generator
from fedtail.setting import Setting, data_digests, prepare
from fedtail.settled import restore_inputs
from fedtail.study.lines import Line
from fedtail.study.runs import Run

SHOWN_SAMPLES = 1000
"""How many test samples are shown by default."""
FEWEST_SAMPLES = 5
"""With fewer samples a map says nothing."""
PERPLEXITY = 30.0
"""How many neighbours a sample is to keep; a third of the samples if these are few."""
GROUPS = ("many", "medium", "few")
SIDES = ("majority", "minority", "missing")
"""What a class is to one client."""


@dataclass(frozen=True, eq=False)
class FeatureView:
    """One model, seen through some test samples.

    Attributes
    ----------
    path, seed
        The run.
    classes
        Class names.
    counts
        (clients, classes): who was trained on what.
    groups
        The many-, medium- and few-shot classes.
    positions, labels, predicted
        (n,): which test samples are shown, their classes, and what the model takes them for.
    points
        (n, 2): where the map puts them.
    norms
        (heads, classes): ‖w_c‖; one row, or one an expert.
    """

    path: Path
    seed: int
    classes: tuple[str, ...]
    counts: np.ndarray
    groups: Groups
    positions: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    points: np.ndarray
    norms: np.ndarray

    @property
    def class_counts(self) -> list[int]:
        """How many training samples of each class all clients hold together."""
        return [int(n) for n in self.counts.sum(axis=0)]

    def marks(self, client: int | None = None) -> list[str]:
        """Return for each class its group or, for one client, its side."""
        if client is None:
            named = {c: group for group, members in self.groups.items() for c in members}
            return [named.get(c, "") for c in range(len(self.classes))]
        if not 0 <= client < len(self.counts):
            raise FedtailError(
                f"client {client} is refused: '{self.path}' has the clients 0 to "
                f"{len(self.counts) - 1}"
            )
        return sides(self.counts[client].tolist())


def sides(counts: Sequence[int]) -> list[str]:
    """Return what each class is to a client with these samples.

    Missing are the classes that it has not. Of those that it has, minority are the ones with fewer
    samples than their mean, as in FedLC's deviation, and majority the others.
    """
    held = [n for n in counts if n > 0]
    mean = sum(held) / max(len(held), 1)
    return ["missing" if n == 0 else "minority" if n < mean else "majority" for n in counts]


def first_finished(line: Line) -> Run | None:
    """Return the run of a line that is looked at: that of the first seed with a model."""
    return next((run for run in line.runs if run.finished), None)


def feature_view(
    run: Run,
    experiment: Experiment | None = None,
    samples: int = SHOWN_SAMPLES,
    trust_plugins: bool = False,
) -> FeatureView:
    """Return the view of a finished run.

    Parameters
    ----------
    run
        The run (see `read_run`).
    experiment
        What was run; needed only where data or model were made in Python, and the folder can only
        name them.
    samples
        How many test samples to show, as many of each class as the test set allows.
    trust_plugins
        Whether the plug-ins that the folder names may be imported, which runs them.
    """
    if samples < FEWEST_SAMPLES:
        raise FedtailError(f"{samples} samples make no map: give at least {FEWEST_SAMPLES}")
    if not run.finished:
        raise FedtailError(f"'{run.path}' has no model yet: features are those of a finished run")
    try:
        chosen = stored_experiment(run.path, trust_plugins) if experiment is None else experiment
        with numerics(chosen.threads):
            return _view(run, prepare(chosen), samples)
    except FedtailError as error:
        raise FedtailError(f"no features of '{run.path}': {error}") from None


def stored_experiment(path: Path, trust_plugins: bool) -> Experiment:
    """Return the experiment that a folder describes, on any device that is here."""
    plain = load_experiment(RunFolder(path).experiment)
    for part in made_in_python(plain):
        raise FedtailError(
            f"its {part} was made in Python; look at it there, with "
            "fedtail.report.feature_view(run, experiment)"
        )
    plugins = stored_plugins(plain)
    must_be_trusted(plugins, path, trust_plugins)
    load_plugins(plugins)
    experiment = make_experiment({**plain, "device": "auto"})
    if isinstance(experiment.model, ModelSpec):  # what was pretrained need not be here any more
        experiment = experiment.but(model=experiment.model.kept(path))
    return experiment


def _view(run: Run, setting: Setting, samples: int) -> FeatureView:
    split, dataset, seed = setting.split, setting.dataset, setting.experiment.seed
    folder = RunFolder(run.path)
    if split.digest != (run.split or {}).get("digest"):
        raise FedtailError("its split cannot be rebuilt, so the data is not what it was trained on")
    # Natural clients are the same with other labels. The frozen part is in what was shipped.
    folder.must_be_on(data_digests(dataset, split))
    restore_inputs(setting, folder)
    model = load_model(run.path, setting)
    norms = classifier_norms(model)
    positions = choose_samples(dataset.test.y.numpy(), samples, seed)
    features, logits = look(model, setting.federation, positions)
    return FeatureView(
        path=run.path,
        seed=seed,
        classes=dataset.classes,
        counts=split.counts,
        groups=setting.experiment.groups.assign(split.counts.sum(axis=0).tolist()),
        positions=positions,
        labels=dataset.test.y.numpy()[positions],
        predicted=logits.argmax(dim=1).numpy(),
        points=t_sne(features.numpy(), seed),
        norms=norms,
    )


def load_model(path: Path, setting: Setting) -> SplitModel:
    """Return the model that a run ships, ready to be tested."""
    return setting.runtime().load_tested(RunFolder(path).shipped())


def classifier_norms(model: SplitModel) -> np.ndarray:
    """Return ‖w_c‖ for each head (row) and class (column)."""
    members = model.members if isinstance(model, Ensemble) else [model]
    return np.stack([_norms(head) for member in members for head in member.heads])


def _norms(head: nn.Module) -> np.ndarray:
    if not isinstance(head, nn.Linear | CosineHead):
        raise FedtailError(
            f"its classifier is a {type(head).__name__}, not linear: it has no vector for each "
            "class whose length could be shown"
        )
    weight = head.weight.detach().cpu().double()
    norms: np.ndarray = torch.linalg.vector_norm(weight, dim=1 - class_axis(head)).numpy()
    return norms


def choose_samples(labels: np.ndarray, samples: int, seed: int) -> np.ndarray:
    """Return positions of some samples, ascending: equally many of each class, while it has any.

    Rare classes are what the map is looked at for; by chance there would be few of them.
    """
    drawn = numpy_generator(seed, "report/features").permutation(len(labels))
    turn = np.empty(len(labels), dtype=np.int64)
    for c in np.unique(labels):
        of_class = labels[drawn] == c
        turn[of_class] = np.arange(of_class.sum())
    # The first of every class, then the second of every class, and so on.
    return np.sort(drawn[np.lexsort((labels[drawn], turn))][:samples])


def look(model: SplitModel, federation: Federation, positions: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return what enters the classifier for some test samples, and what comes out."""
    seen = []
    with torch.inference_mode():
        for index in torch.split(torch.from_numpy(positions), TEST_BATCH):
            x = federation.ready(federation.test.x[index].to(federation.device))
            seen.append(model.output(x))
    features = torch.cat([output.features for output in seen])
    return features.cpu(), torch.cat([output.logits for output in seen]).cpu()


def t_sne(features: np.ndarray, seed: int) -> np.ndarray:
    """Lay features (n, width) out in the plane, (n, 2), rounded to what can be seen."""
    # Slow to import, and only this view needs them. The second comes with the first.
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    if len(features) < FEWEST_SAMPLES:
        raise FedtailError(
            f"its test set has {len(features)} samples; a map needs {FEWEST_SAMPLES}"
        )
    if not np.isfinite(features).all():
        raise FedtailError("its features are not finite: the model has diverged")
    if not np.ptp(features, axis=0).any():
        return np.zeros((len(features), 2))  # all the same: one point
    # One thread: more change the result, and wait for each other on a busy machine.
    with threadpool_limits(1):
        points: np.ndarray = TSNE(
            perplexity=min(PERPLEXITY, (len(features) - 1) / 3),
            init="pca" if features.shape[1] > 1 else "random",
            random_state=derive(seed, "report/t-sne") % 2**32,
            n_jobs=1,
        ).fit_transform(features)
    rounded: np.ndarray = np.round(points.astype(np.float64), 2)
    return rounded
