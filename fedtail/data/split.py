"""A split: who holds which samples, as a recipe that can be written down and rebuilt.

The recipe (tail, partition, clients, seed) and the labels determine the split, so its file holds
the recipe, what came out of it for people to read, and a digest that tells whether a rebuilt split
is the same one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import Field, ValidationError
from rich.table import Table

from fedtail.config import Config
from fedtail.data.dataset import checked_labels
from fedtail.data.held_out import Validation, hold_out
from fedtail.data.longtail import Tail
from fedtail.data.partitions.base import Labels, Partition
from fedtail.data.partitions.natural import Natural
from fedtail.data.parts import Parts
from fedtail.data.plot import count_table
from fedtail.data.statistics import Statistics, class_table, statistics
from fedtail.errors import FedtailError, sentence
from fedtail.rng import numpy_generator

SPLIT_FORMAT = 1
TABLE_CELLS = 1_000_000
"""Beyond this many clients times classes the file leaves table and names out: it can be rebuilt."""


class SplitRecipe(Config):
    """Everything but the labels that determines a split."""

    tail: Tail = Field(description="how many samples of each class are kept")
    partition: Partition = Field(description="how the kept samples are shared out")
    clients: int | None = Field(
        default=None, ge=1, description="how many clients (default: all natural ones)"
    )
    seed: int = Field(default=0, description="where every random choice comes from")
    server_per_class: int = Field(
        default=0, ge=0, description="samples of each class that the server holds and no client"
    )
    validation: Validation = Field(Validation(), description="what is held out of training")


@dataclass(frozen=True, eq=False)
class Split:
    """Who holds which samples.

    Attributes
    ----------
    recipe
        What the split was made from.
    labels
        The labels of the original training set.
    num_classes
        How many classes there are.
    kept
        Positions that the tail left for the clients, ascending.
    parts
        For each client the positions of its samples in the original training set, ascending.
    server
        Positions that the server holds, ascending; no client has them.
    held_out
        For each client the positions that it holds out; clients held out whole come after those
        that train. Empty if nothing is held out.
    owners
        The natural client behind each client; empty where a partition made them.
    """

    recipe: SplitRecipe
    labels: np.ndarray = field(repr=False)
    num_classes: int
    kept: np.ndarray = field(repr=False)
    parts: Sequence[np.ndarray] = field(repr=False)
    server: np.ndarray = field(repr=False)
    held_out: Sequence[np.ndarray] = field(default=(), repr=False)
    owners: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64), repr=False)

    def __len__(self) -> int:
        return len(self.parts)

    @cached_property
    def counts(self) -> np.ndarray:
        """How many samples each client (rows) holds of each class (columns)."""
        return class_table(self.labels, self.parts, self.num_classes)

    def ranges(self, classes: np.ndarray, clients: np.ndarray | None = None) -> np.ndarray:
        """Return how many samples ranges of clients (rows) hold of ranges of classes (columns).

        `counts` has a cell for each client and class, which are too many of many of both.

        Parameters
        ----------
        classes, clients
            Where the ranges begin, and at last where they end; without `clients` each is a row.
        """
        of_class = np.repeat(np.arange(len(classes) - 1), np.diff(classes))
        parts = Parts.of(self.parts)
        if clients is not None:
            parts = Parts(parts.order, parts.offsets[clients])
        return class_table(of_class[self.labels], parts, len(classes) - 1)

    @cached_property
    def statistics(self) -> Statistics:
        """Sizes, classes and distance to the global mix of every client."""
        return statistics(self.labels, self.parts, self.num_classes)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the positions of all clients, those of the server, and what is held out."""
        parts, held = Parts.of(self.parts), Parts.of(self.held_out)
        apart = [held.offsets, held.order] if self.held_out else []
        hashed = hashlib.sha256()
        for array in (parts.offsets, parts.order, self.server, *apart):
            hashed.update(np.ascontiguousarray(array, dtype="<i8").data)
        return hashed.hexdigest()

    @cached_property
    def held_counts(self) -> np.ndarray:
        """How many samples of each class are held out, all clients together."""
        held = self.labels[Parts.of(self.held_out).order]
        return np.bincount(held, minlength=self.num_classes)

    def names(self, natural: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the names of all clients: those of the natural clients, or their numbers.

        Parameters
        ----------
        natural
            The names of the data's natural clients.
        """
        if len(self.owners) and natural:
            return tuple(natural[owner] for owner in self.owners.tolist())
        return tuple(str(k) for k in range(max(len(self.parts), len(self.held_out))))

    def to_json(self, natural: Sequence[str] = ()) -> str:
        """Return the recipe, what came out of it, and the digest, as JSON text.

        Parameters
        ----------
        natural
            The names of the data's natural clients.
        """
        rows = self.counts.tolist() if len(self) * self.num_classes <= TABLE_CELLS else None
        content = {
            "format": SPLIT_FORMAT,
            "recipe": self.recipe.describe(),
            "digest": self.digest,
            "statistics": self.statistics.describe(),
            "class_counts": self.statistics.class_counts.tolist(),
            "server_samples": len(self.server),
            "held_out_counts": self.held_counts.tolist() if self.held_out else None,
            "clients": self.names(natural) if rows and len(self.owners) and natural else None,
            "counts": rows,
        }
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(
        cls, text: str, labels: np.ndarray, num_classes: int, owner: np.ndarray | None = None
    ) -> Split:
        """Rebuild a split from its file and the same labels, and check that it is the same one."""
        content = _read(text)
        try:
            recipe = SplitRecipe.inside(content["recipe"])
        except ValidationError as error:
            raise FedtailError(sentence(error, "recipe")) from error
        split = from_recipe(recipe, labels, num_classes, owner)
        # Where positions do not depend on labels, as with `iid`, counts tell these from others.
        rows = content.get("counts")
        same = rows is None or rows == split.counts.tolist()
        if split.digest != content["digest"] or not same:
            what = (
                "its counts differ" if split.digest == content["digest"] else "its digest differs"
            )
            raise FedtailError(
                f"the split cannot be rebuilt: {what}, so the labels are not those it "
                "was made from, or another version of fedtail or NumPy made it"
            )
        return split

    def summary(self) -> list[str]:
        """Return a few lines on sizes, classes and skew."""
        lines = self.statistics.lines()
        if not self.held_out:
            return lines
        who = sum(len(part) > 0 for part in self.held_out)
        return [
            *lines,
            f"held out for validation: {self.held_counts.sum()} samples of {who} clients",
        ]

    def table(self, class_names: Sequence[str] | None = None, natural: Sequence[str] = ()) -> Table:
        """Return clients x classes for the terminal; long and wide tables are condensed."""
        return count_table(self, class_names, self.names(natural))


def make_split(
    labels: np.ndarray,
    num_classes: int,
    tail: Tail,
    partition: Partition,
    clients: int | None,
    seed: int,
    owner: np.ndarray | None = None,
    server_per_class: int = 0,
    validation: Validation | None = None,
) -> Split:
    """Cut the tail, set the server's samples aside, and share the rest out.

    Parameters
    ----------
    labels
        Labels of the training set.
    num_classes
        How many classes there are; some may have no sample.
    tail, partition
        The long tail and the scheme.
    clients
        How many clients; `None` means all natural ones.
    seed
        Where every random choice comes from.
    owner
        Each sample's natural client, where the data has one.
    server_per_class
        How many samples of each class the server is to hold. They come from those the tail dropped;
        where these are too few, from those the clients would get, but never more than half.
    validation
        What clients hold out of training; nothing if not given.
    """
    recipe = SplitRecipe(
        tail=tail,
        partition=partition,
        clients=clients,
        seed=seed,
        server_per_class=server_per_class,
        validation=validation or Validation(),
    )
    return from_recipe(recipe, labels, num_classes, owner)


def from_recipe(
    recipe: SplitRecipe, labels: np.ndarray, num_classes: int, owner: np.ndarray | None = None
) -> Split:
    """Make the split that a recipe describes."""
    y = checked_labels(labels, num_classes, "split").numpy()
    if owner is not None and len(owner) != len(y):
        raise FedtailError(f"split: {len(y)} labels but {len(owner)} client numbers")
    whole = Labels(y, num_classes, owner)
    kept = recipe.tail.keep(whole, numpy_generator(recipe.seed, "tail"))
    server = _server_positions(whole, kept, recipe)
    kept = np.setdiff1d(kept, server, assume_unique=True) if len(server) else kept
    everything = len(kept) == len(y)  # then nothing has to be copied
    left = whole if everything else whole.at(kept)
    clients = recipe.clients or recipe.partition.all_clients(left)
    drawn = recipe.partition.split(left, clients, numpy_generator(recipe.seed, "partition"))
    whole_parts = Parts.of(drawn) if everything else Parts.of(drawn).within(kept)
    parts, held, order = hold_out(y, whole_parts, recipe.validation, recipe.seed)
    if owner is None or not isinstance(recipe.partition, Natural):
        return Split(recipe, y, num_classes, kept, parts, server, held)
    owners = owner[whole_parts.order[whole_parts.offsets[:-1]]][order]
    return Split(recipe, y, num_classes, kept, parts, server, held, owners)


def _server_positions(whole: Labels, kept: np.ndarray, recipe: SplitRecipe) -> np.ndarray:
    chosen = [np.empty(0, dtype=np.int64)]
    if recipe.server_per_class:
        rng = numpy_generator(recipe.seed, "server-split")
        is_kept = np.zeros(len(whole.y), dtype=bool)
        is_kept[kept] = True
        ends = np.cumsum(whole.counts())[:-1]
        for of_class in np.split(np.argsort(whole.y, kind="stable"), ends):
            dropped = rng.permutation(of_class[~is_kept[of_class]])
            chosen.append(dropped[: recipe.server_per_class])
            held = rng.permutation(of_class[is_kept[of_class]])
            more = recipe.server_per_class - len(chosen[-1])
            chosen.append(held[: min(more, len(held) // 2)])
    return np.sort(np.concatenate(chosen))


def _read(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise FedtailError(f"the split file is not JSON: {error}") from error
    if not isinstance(content, dict) or not {"format", "recipe", "digest"} <= content.keys():
        raise FedtailError("the split file needs 'format', 'recipe' and 'digest'")
    if content["format"] != SPLIT_FORMAT:
        raise FedtailError(
            f"the split file has format {content['format']!r}; this version reads format "
            f"{SPLIT_FORMAT}"
        )
    return content
