"""The features of a data set as a data set of their own, computed beforehand and in one place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fedtail.data.dataset import Samples
from fedtail.data.feature_store import ENCODED_AT_ONCE
from fedtail.data.federation import Federation
from fedtail.data.formats.npz import write_npz
from fedtail.data.raw import Raw
from fedtail.device import choose_device, runs_on_images, to_device
from fedtail.engines.runtime import numerics
from fedtail.errors import FedtailError
from fedtail.experiment import Experiment
from fedtail.once import Encoder
from fedtail.rng import contained, derive
from fedtail.setting import as_taken, network_for
from fedtail.standardise import added_up, constants_of


def write_features(
    experiment: Experiment, path: Path, tell: Callable[[int, int], None] = lambda done, of: None
) -> Raw:
    """Compute the features of all samples, training and test, and keep them as one ``npz``.

    Labels, names of classes and natural clients stay as they are.

    Parameters
    ----------
    experiment
        Names the data and the network; tail, split and method do not matter.
    path
        The file.
    tell
        Is told how many samples are done, and of how many.

    Returns
    -------
    Raw
        What was written.
    """
    if path.suffix != ".npz":
        raise FedtailError(f"'{path}' is refused: features are kept as FILE.npz")
    if path.exists():
        raise FedtailError(f"'{path}' is there already; remove it, or name another file")
    device = choose_device(experiment.device)
    dataset = as_taken(experiment, experiment.data.load())
    with contained(derive(experiment.seed, "model")):
        base, taken = network_for(experiment, dataset)
    images = runs_on_images(base, device)
    to_device((base,), device, images)
    everything = torch.arange(len(dataset.train)).numpy()
    tokens = not taken.is_floating_point()
    federation = Federation(dataset, [everything], None, device, images, (), tokens)
    if not federation.known:
        federation.standardise(*_constants(federation))
    encode, of = Encoder(base), len(dataset.train) + len(dataset.test)

    def encoded(samples: Samples, before: int) -> Tensor:
        parts = []
        for index in torch.split(torch.arange(len(samples)), ENCODED_AT_ONCE):
            parts.append(encode(federation.ready(samples.x[index].to(device))).cpu())
            tell(before + int(index[-1]) + 1, of)
        return torch.cat(parts)

    with numerics(experiment.threads):
        raw = Raw(
            encoded(federation.train, 0).numpy(),
            dataset.train.y.numpy(),
            encoded(federation.test, len(dataset.train)).numpy(),
            dataset.test.y.numpy(),
            dataset.classes,
            dataset.client_train,
            dataset.client_test,
            dataset.client_names or None,
        )
    write_npz(path, raw)
    return raw


def _constants(federation: Federation) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of the training inputs, as clients would report them."""
    whole, channels = federation.client(0), federation.channels
    frame = {"shift": torch.zeros(channels).double(), "scale": torch.ones(channels).double()}
    shift, scale = constants_of(added_up(whole, frame), frame)
    frame = {"shift": shift, "scale": scale}  # numbers of about 1 have squares that add up well
    return constants_of(added_up(whole, frame), frame)
