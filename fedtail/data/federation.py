"""A federation: one data set in memory, and for each client the positions of its samples."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtail.data.augment import Augment, as_float, channel_axis, normalised, per_channel
from fedtail.data.dataset import Dataset, Samples, rows_at
from fedtail.data.feature_store import FeatureStore
from fedtail.data.parts import Parts

FEW = 1 << 22
"""So many numbers (16 MB) are normalised once and kept; more are normalised batch by batch."""


@dataclass(frozen=True)
class ServerData:
    """Samples that the server holds and no client does."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class ClientData:
    """One client's samples: positions into the shared data, gathered batch by batch.

    With a `store`, what is gathered are their features, computed once.
    """

    samples: Samples
    positions: Tensor
    labels: Tensor
    mean: Tensor
    std: Tensor
    augment: Augment
    device: torch.device
    channels_last: bool = False
    apart: Tensor | None = None  # positions of what is held out
    tokens: bool = False
    ready: Tensor | None = None  # all inputs of the shared data, normalised, if they are few
    store: FeatureStore | None = None

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def is_augmented(self) -> bool:
        """Whether batches with a generator differ from those without."""
        return self.augment.on and len(self.samples.x.shape) == 4

    @property
    def held_out(self) -> ClientData:
        """What the client holds out of training."""
        positions = self.positions[:0] if self.apart is None else self.apart
        return replace(self, positions=positions, labels=self.samples.y[positions], apart=None)

    def batch(
        self, index: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return normalised inputs and labels of some local samples.

        They are augmented if a generator is given.
        """
        wanted, y = rows_at(self.positions, index), rows_at(self.labels, index).to(self.device)
        if self.store is not None:
            constants = (self.mean, self.std)
            x = self.store.features(wanted, self.positions, self._inputs, constants)
            return x.to(self.device), y
        return self._inputs(wanted, generator), y

    def _inputs(self, positions: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if self.ready is not None:
            x = rows_at(self.ready, positions)
        else:
            x = rows_at(self.samples.x, positions).to(self.device)
            x = x.long() if self.tokens else normalised(x, self.mean, self.std)
        if generator is not None:
            x = self.augment(x, generator, (self.mean, self.std))
        return laid_out(x, self.channels_last)

    def values(self, start: int, stop: int) -> Tensor:
        """Return a range of inputs as they are, in float64; bytes count 0 to 1."""
        return as_float(
            rows_at(self.samples.x, self.positions[start:stop]).to("cpu"), torch.float64
        )


class _Inputs(NamedTuple):
    """Constants as they were told and as they are used, and all inputs, normalised, if few."""

    told: Mapping[str, Tensor]
    mean: Tensor
    std: Tensor
    ready: Tensor | None


class Federation:
    """The data set, and who holds which part of it.

    Positions of all clients lie in one array, client after client, so that a hundred thousand
    clients cost one integer a sample and one offset each.

    Parameters
    ----------
    dataset
        All samples.
    parts
        For each client that trains, the positions of its samples.
    augment, device, channels_last
        Random changes of training images, where they are, and in which layout.
    held_out
        For each client the positions that it holds out; who only holds out comes after who trains.
    tokens
        Whether inputs are numbers of things (words, categories), which stay whole.

    Attributes
    ----------
    stores
        Of training and of test samples, features in the place of inputs (`with_features`).
    """

    def __init__(
        self,
        dataset: Dataset,
        parts: Sequence[np.ndarray],
        augment: Augment | None = None,
        device: torch.device | str = "cpu",
        channels_last: bool = False,
        held_out: Sequence[np.ndarray] = (),
        tokens: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self.channels_last = channels_last and len(dataset.input_shape) == 3
        self.dataset = dataset
        self.train = _placed(dataset.train, self.device)
        self.test = _placed(dataset.test, self.device)
        self.augment = augment or Augment()
        self.order, self.offsets = _joined(parts)
        self._held_order, self._held_offsets = _joined(held_out)
        owner = dataset.client_test
        self.test_owner = None if owner is None else torch.from_numpy(owner.astype(np.int64))
        self.tokens = tokens
        self.asks = "none" if tokens else dataset.normalisation
        self.known = self.asks == "none"
        self.mean, self.std = self._normalisation()
        self._known: _Inputs | None = None
        self.stores: tuple[FeatureStore, FeatureStore] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return self.dataset.num_classes

    def client(self, k: int, told: Mapping[str, Tensor] | None = None) -> ClientData:
        """Return client k's data, normalised with the constants that it was told, if any."""
        positions = _part(self.order, self.offsets, k)
        inputs = self._inputs(told or {"mean": self.mean, "std": self.std})
        return ClientData(
            samples=self.train,
            positions=positions,
            labels=rows_at(self.train.y, positions),
            mean=inputs.mean,
            std=inputs.std,
            augment=self.augment,
            device=self.device,
            channels_last=self.channels_last,
            apart=_part(self._held_order, self._held_offsets, k),
            tokens=self.tokens,
            ready=inputs.ready,
            # Before constants are known, nothing but sums of inputs is asked for.
            store=self.stores[0] if self.stores and (told or self.known) else None,
        )

    def _inputs(self, told: Mapping[str, Tensor]) -> _Inputs:
        """Return constants as they are used, and the inputs that were normalised with them."""
        known, x = self._known, self.train.x
        if known is None or any(known.told[name] is not told[name] for name in ("mean", "std")):
            mean, std, ready = self._shaped(told["mean"]), self._shaped(told["std"]), None
            if known is not None and torch.equal(known.mean, mean) and torch.equal(known.std, std):
                ready = known.ready
            elif not self.tokens and isinstance(x, Tensor) and x.numel() <= FEW:
                ready = normalised(x, mean, std)
            # Copies: `standardise` changes the constants in place.
            self._known = known = _Inputs(dict(told), mean.clone(), std.clone(), ready)
        return known

    def with_features(self, stores: tuple[FeatureStore, FeatureStore]) -> Federation:
        """Return the same federation, whose batches are features of training and test samples."""
        same = copy.copy(self)
        same.stores = stores
        return same

    def with_parts(self, train: Samples, parts: Sequence[np.ndarray]) -> Federation:
        """Return the same federation, whose clients hold other samples; features are made anew."""
        same = copy.copy(self)
        same.train, same.stores, same._known = _placed(train, self.device), None, None
        same.order, same.offsets = _joined(parts)
        vars(same).pop("_class_counts", None)
        return same

    def held(self) -> Tensor:
        """Return the positions of all samples that clients train on or hold out."""
        return torch.cat([self.order, self._held_order])

    def positions(self, k: int) -> Tensor:
        """Return where client k's samples stand in the data set."""
        return _part(self.order, self.offsets, k)

    def size(self, k: int) -> int:
        """Return how many samples client k has, those that it holds out included."""
        return _length(self.offsets, k) + _length(self._held_offsets, k)

    def counts(self, k: int) -> Tensor:
        """Return client k's class counts."""
        positions = _part(self.order, self.offsets, k)
        return torch.bincount(rows_at(self.train.y, positions), minlength=self.num_classes)

    def class_counts(self) -> Tensor:
        """Return the class counts of all clients together."""
        return self._class_counts.clone()

    @cached_property
    def _class_counts(self) -> Tensor:  # every test asks, and a million clients take a while
        return torch.bincount(rows_at(self.train.y, self.order), minlength=self.num_classes)

    def test_batch(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return normalised test inputs and labels from one range."""
        return self.test_samples(torch.arange(start, min(stop, len(self.test))))

    def test_samples(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised test inputs and labels at some positions."""
        y = rows_at(self.test.y, positions).to(self.device)
        if self.stores is None:
            return self._ready_at(self.test, positions), y
        inputs, constants = partial(self._ready_at, self.test), (self.mean, self.std)
        x = self.stores[1].features(positions, positions, inputs, constants)
        return x.to(self.device), y

    def example(self, most: int) -> Tensor:
        """Return a few inputs as the network takes them: test samples, where there are any."""
        samples = self.test if len(self.test) else self.train
        return self._ready_at(samples, torch.arange(min(most, len(samples))))

    def tested_by(self, owner: int) -> Tensor:
        """Return the positions of a natural client's test samples."""
        if self.test_owner is None:
            return torch.empty(0, dtype=torch.int64)
        return torch.nonzero(self.test_owner == owner)[:, 0]

    def server_data(self, positions: np.ndarray) -> ServerData | None:
        """Return the training samples at these positions, for the server; none if empty."""
        if not len(positions):
            return None
        where = torch.from_numpy(positions)
        inputs, y = partial(self._ready_at, self.train), self.train.y[where].to(self.device)
        if self.stores is None:
            return ServerData(inputs(where), y)
        store = self.stores[0]
        if not self.known:  # constants come later, and then the server is given these again
            return ServerData(store.encode(inputs(where)), y)
        x = store.features(where, where, inputs, (self.mean, self.std))
        return ServerData(x.to(self.device), y)

    @property
    def channels(self) -> int:
        """How many pairs of constants inputs are normalised with: one a channel or feature."""
        shape = self.dataset.input_shape
        each = self.asks == "standard" and len(shape) <= 3
        return shape[channel_axis(shape) - 1] if each else 1

    @property
    def constants(self) -> tuple[list[float], list[float]]:
        """Mean and deviation of each channel."""
        return self.mean.flatten().tolist(), self.std.flatten().tolist()

    def standardise(self, mean: Tensor, std: Tensor) -> None:
        """Normalise with these from now on.

        In place: worker processes have the same tensors, in shared memory, and test with them.
        """
        self.mean.copy_(self._shaped(mean))
        self.std.copy_(self._shaped(std))
        self.known, self._known = True, None

    def _ready_at(self, samples: Samples, positions: Tensor) -> Tensor:
        return self.ready(rows_at(samples.x, positions).to(self.device))

    def ready(self, x: Tensor) -> Tensor:
        """Return inputs on the device as the network takes them."""
        x = x.long() if self.tokens else normalised(x, self.mean, self.std)
        return laid_out(x, self.channels_last)

    def _shaped(self, numbers: Tensor) -> Tensor:
        return per_channel(numbers.to(self.device, torch.float32), self.dataset.input_shape)

    def _normalisation(self) -> tuple[Tensor, Tensor]:
        mean = self.dataset.mean or (0.0,) * self.channels
        std = self.dataset.std or (1.0,) * self.channels
        return self._shaped(torch.tensor(mean)), self._shaped(torch.tensor(std))


def _joined(parts: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Return the positions of all clients in one array, and where each one's begin."""
    whole = Parts.of(parts)
    return torch.from_numpy(whole.order), torch.from_numpy(whole.offsets)


def _part(order: Tensor, offsets: Tensor, k: int) -> Tensor:
    """Return client k's positions; of a client beyond the last one, none."""
    start, stop = _ends(offsets, k)
    return order[start:stop]


def _ends(offsets: Tensor, k: int) -> tuple[int, int]:
    """Return where client k's positions begin and end; a client beyond the last has none."""
    ends = offsets.numpy()[k : k + 2].tolist()
    return (ends[0], ends[1]) if len(ends) == 2 else (0, 0)


def _length(offsets: Tensor, k: int) -> int:
    """Return how many positions client k has, quickly."""
    at = offsets.numpy()
    return int(at[k + 1] - at[k]) if k + 1 < len(at) else 0


def laid_out(x: Tensor, channels_last: bool) -> Tensor:
    """Return the batch in the memory layout that the network runs in."""
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


def _placed(samples: Samples, device: torch.device) -> Samples:
    """Put inputs on the device, once; labels stay on the CPU, where batches are drawn."""
    if isinstance(samples.x, Tensor):
        return Samples(samples.x.to(device), samples.y)
    return samples
