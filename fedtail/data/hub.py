"""The same tails and partitions for flwr-datasets: a preprocessor and a partitioner.

They work on any Hugging Face `Dataset` with a column of whole-number labels, from the Hub or from
memory, and give the clients that `make_split` gives for the same labels and seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from fedtail.data.dataset import checked_labels
from fedtail.data.longtail import Tail
from fedtail.data.partitions.base import Labels, Partition
from fedtail.errors import FedtailError, missing_extra
from fedtail.rng import numpy_generator


def preprocessor(tail: Tail, label: str = "label", seed: int = 0) -> Callable[[Any], Any]:
    """Return a flwr-datasets preprocessor that cuts the long tail.

    Parameters
    ----------
    tail
        The tail; only the split named "train" is cut.
    label
        The column with the labels.
    seed
        Where the random choice of samples comes from.

    Returns
    -------
    Callable
        From `DatasetDict` to `DatasetDict`, for `FederatedDataset(preprocessor=...)`.
    """

    def cut(splits: Any) -> Any:
        if "train" not in splits:
            raise FedtailError(f"the data has no split 'train' (it has: {', '.join(splits)})")
        labels = _labels(splits["train"], label, None)
        kept = tail.keep(labels, numpy_generator(seed, "tail"))
        return type(splits)({**splits, "train": splits["train"].select(kept)})

    return cut


def partitioner(
    partition: Partition,
    clients: int | None,
    label: str = "label",
    seed: int = 0,
    owner: str | None = None,
) -> Any:
    """Return a `flwr_datasets.partitioner.Partitioner` that shares samples out by this scheme.

    Parameters
    ----------
    partition
        The scheme.
    clients
        How many clients; `None` means all natural ones.
    label
        The column with the labels.
    seed
        Where every random choice comes from.
    owner
        The column that names each sample's natural client, for the partition `natural`.
    """
    try:
        from flwr_datasets.partitioner import Partitioner
    except ImportError as error:
        raise missing_extra("a partitioner of Flower Datasets", "flwr-datasets", "hf") from error

    scheme = type("SchemePartitioner", (_Scheme, Partitioner), {})
    return scheme(partition, clients, label, seed, owner)


class _Scheme:
    """What a partitioner does, without its base class, which comes from an optional package."""

    dataset: Any

    def __init__(
        self, partition: Partition, clients: int | None, label: str, seed: int, owner: str | None
    ) -> None:
        super().__init__()
        self.partition = partition
        self.clients = clients
        self.label = label
        self.seed = seed
        self.owner = owner

    @cached_property
    def parts(self) -> Sequence[np.ndarray]:
        """For each client the positions of its samples."""
        labels = _labels(self.dataset, self.label, self.owner)
        clients = self.partition.all_clients(labels) if self.clients is None else self.clients
        return self.partition.split(labels, clients, numpy_generator(self.seed, "partition"))

    @property
    def num_partitions(self) -> int:
        """How many clients there are."""
        return len(self.parts)

    def load_partition(self, partition_id: int) -> Any:
        """Return one client's samples."""
        last = self.num_partitions - 1
        if not 0 <= partition_id <= last:
            raise FedtailError(f"there is no partition {partition_id} (allowed: 0 to {last})")
        return self.dataset.select(self.parts[partition_id])


def _labels(dataset: Any, label: str, owner: str | None) -> Labels:
    for column in (label, owner):
        if column is not None and column not in dataset.column_names:
            raise FedtailError(
                f"the data has no column '{column}' (it has: {', '.join(dataset.column_names)})"
            )
    y = checked_labels(np.asarray(dataset[label][:]), None, f"column '{label}'").numpy()
    named = getattr(dataset.features[label], "num_classes", None)
    classes = named if named is not None else 1 + int(y.max(initial=-1))
    owners = None if owner is None else np.unique(dataset[owner][:], return_inverse=True)[1]
    return Labels(y, classes, owners)
