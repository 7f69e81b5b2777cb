"""Counts, means and second moments of features, from sums over clients: what heads are made of.

A first exchange adds up class counts, C whole numbers a client. The second sends the model with
these counts n_c, and every client answers with its parts of means: Σ h / n_c of each class,
Σ h² / N of each feature, and Σ p_y h hᵀ, where the weight p_c of a class's samples is 1 / N, or
1 / (L n_c) if all L classes that somebody holds are to count the same. Parts of means are as large
as features, whatever number of samples there is, which is what secure sums have room for.

The symmetric h hᵀ travels as its upper triangle, d (d + 1) / 2 numbers. Where these are too many,
the product with a random matrix Ω of r columns is sent in their place. It is linear in h hᵀ, so it
adds up as well, and A = Σ p h hᵀ is approximated by (A Ω) (Ωᵀ A Ω)⁺ (A Ω)ᵀ, which is exact if A has
at most rank r (Tropp, Yurtsever, Udell, Cevher, "Fixed-Rank Approximation of a
Positive-Semidefinite Matrix from Streaming Data", NIPS 2017).

Ω can be aimed, too, in blocks of one exchange each, of which every one is chosen by what the last
one brought (`closed_heads.aimed`). A head needs A only where it acts on class means, and a few
aimed columns know more of that than hundreds of random ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedtail.data.federation import ClientData
from fedtail.forms import Form, Like, Total
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, ClientId, Exchange, Payload, Server, Task, Tensors, grouped
from fedtail.training.body import body_bytes, body_of, load_body

FEATURE_GROUP = "features"
"""The group of tensors that is added up."""
FEATURES_AT_ONCE = 500
"""Samples that are given to the network at a time."""
TINY = 1e-12
"""Of an eigenvalue, as a part of the largest: what is below is rounding."""
SINGLE, DOUBLE = 4, 8
"""Bytes of a number: of a block of Ω and what it brings, and of all else."""


def block_bytes(body: int, width: int, classes: int) -> int:
    """Return the bytes to and from one client for a block of Ω, with a column a class."""
    return body + DOUBLE * classes + 2 * SINGLE * width * classes


class Wanted(NamedTuple):
    """Which second moments are asked for.

    Attributes
    ----------
    products
        Whether any are, or only counts, means and squares.
    balanced
        Whether the samples of a class weigh 1 / n_c, so that all classes count the same.
    rank
        How many columns a random Ω has; 0 for the whole matrix.
    blocks
        How many exchanges an aimed Ω is made in, where that sends less than the whole matrix.
    """

    products: bool = True
    balanced: bool = False
    rank: int = 0
    blocks: int = 0

    def aims(self, body: int, width: int, classes: int) -> bool:
        """Whether Ω is aimed, with so many bytes of a network that features are computed by."""
        whole = DOUBLE * width * (width + 1) // 2
        return self.products and 0 < self.blocks * block_bytes(body, width, classes) < whole


class FeatureSums(NamedTuple):
    """What all clients' features add up to, in float64.

    Attributes
    ----------
    counts
        n_c (C,), of those who answered.
    sums
        Σ h of each class, (C, d).
    squares
        Σ h² of each feature, (d,).
    weights
        p_c (C,): what a sample of class c weighs in the following.
    energies
        Σ p_y h² of each feature, (d,).
    image, test
        A Ω and Ω, with A = Σ p_y h hᵀ; no Ω stands for the identity, and no image if none was
        asked for.
    clients
        How many clients' features are in it.
    """

    counts: Tensor
    sums: Tensor
    squares: Tensor
    weights: Tensor
    energies: Tensor
    image: Tensor | None = None
    test: Tensor | None = None
    clients: int = 0

    @property
    def held(self) -> Tensor:
        """Which classes somebody holds, (C,)."""
        return self.counts > 0

    def beside(self, block: Tensor, image: Tensor) -> FeatureSums:
        """Return the same with more columns of Ω and of A Ω."""
        old = [] if self.image is None or self.test is None else [(self.test, self.image)]
        pairs = [*old, (block.double(), image.double())]
        test, seen = (torch.cat(each, dim=1) for each in zip(*pairs, strict=True))
        return self._replace(test=test, image=seen)


Aim = Callable[[FeatureSums], Tensor]
"""From what is known to the next columns of Ω, (d, m); none are left where m = 0."""


# Server half


def ask_feature_sums(
    tensors: Tensors, network: SplitModel, server: Server, wanted: Wanted, aim: Aim | None = None
) -> Exchange[FeatureSums]:
    """Hold the two exchanges with every client, and those of an aimed Ω.

    Parameters
    ----------
    tensors, network
        The model whose features are meant, and the module that they fit.
    server
        Whose clients are asked.
    wanted
        Which second moments.
    aim
        Chooses the blocks of an aimed Ω; without it there are none.
    """
    found = yield [Task(client, "class_totals", Payload()) for client in server.clients]
    counts = found["counts"]["classes"].long()
    aims = aim is not None and wanted.aims(body_bytes(network), network.feature_dim, len(counts))
    at_once = wanted._replace(products=False) if aims else wanted
    question = sums_question(tensors, network, counts, at_once, server)
    # Whose counts are not in n_c would bring parts of other means.
    found = yield [Task(client, "feature_sums", question) for client in found.clients]
    told, clients = found[FEATURE_GROUP], found.clients
    sums = restored_sums(told, question)._replace(clients=len(clients))
    if aim is not None and aims and bool(sums.held.any()):
        sums = yield from ask_blocks(sums, question, clients, wanted.blocks, aim)
    return sums


def ask_blocks(
    sums: FeatureSums, question: Payload, clients: Sequence[ClientId], blocks: int, aim: Aim
) -> Exchange[FeatureSums]:
    """Return the sums with an aimed Ω and its image, block by block."""
    for _ in range(blocks):
        block = aim(sums).float()
        if not block.shape[1]:
            break
        asked = aimed_at(question, block)
        found = yield [Task(client, "feature_products", asked) for client in clients]
        if found.clients != clients:
            break  # the A of fewer clients is another one: what is known has to do
        sums = sums.beside(block, found[FEATURE_GROUP]["products"])
    return sums


def sums_question(
    tensors: Tensors, network: SplitModel, counts: Tensor, wanted: Wanted, server: Server
) -> Payload:
    """Return what clients are sent in the second exchange, with the class counts of the first."""
    d, told = network.feature_dim, {"weigh/counts": counts}
    if wanted.products and 0 < wanted.rank < d:
        draw = server.generator("feature products")
        told["weigh/test"] = torch.randn(d, wanted.rank, generator=draw)
    facts = {"width": d, "products": int(wanted.products), "balanced": int(wanted.balanced)}
    return Payload({**grouped("model", body_of(tensors, network)), **told}, facts)


def aimed_at(question: Payload, block: Tensor) -> Payload:
    """Return the same question about one block of Ω alone."""
    return replace(question, tensors={**question.tensors, "weigh/test": block})


def restored_sums(told: Tensors, question: Payload) -> FeatureSums:
    """Return sums from parts of means, those of one client or added up, that a question brought."""
    counts, test = question.tensors["weigh/counts"], question.tensors.get("weigh/test")
    inside, across = sample_weights(counts, bool(question.scalars["balanced"]))
    sums = told["sums"] / inside.clamp(min=TINY)[:, None]
    image = told.get("products")
    if image is not None:
        image = whole(image) if test is None else image
    return FeatureSums(
        counts=told["counts"],
        sums=sums,
        squares=told["squares"][0] * counts.sum().clamp(min=1),
        weights=across,
        energies=told["squares"][1],
        image=image,
        test=None if test is None else test.double(),
    )


def sample_weights(counts: Tensor, balanced: bool) -> tuple[Tensor, Tensor]:
    """Return what a sample of each class weighs: in its class's mean, and in Σ p h hᵀ."""
    held = counts > 0
    inside = torch.where(held, 1 / counts.clamp(min=1).double(), 0.0)
    if balanced:
        return inside, inside / held.sum().clamp(min=1)
    return inside, held / counts.sum().clamp(min=1).double()


def whole(triangle: Tensor) -> Tensor:
    """Return the symmetric matrix of which this is the upper triangle, row by row."""
    d = (math.isqrt(8 * len(triangle) + 1) - 1) // 2
    upper = torch.triu_indices(d, d)
    matrix = triangle.new_zeros(d, d)
    matrix[upper[0], upper[1]] = triangle
    matrix[upper[1], upper[0]] = triangle
    return matrix


def from_sketch(image: Tensor, test: Tensor) -> Tensor:
    """Return (A Ω) (Ωᵀ A Ω)⁺ (A Ω)ᵀ for a positive-semidefinite A, given A Ω and Ω."""
    factor = sketch_factor(image, test)
    return factor @ factor.T


def sketch_factor(image: Tensor, test: Tensor) -> Tensor:
    """Return F with F Fᵀ = (A Ω) (Ωᵀ A Ω)⁺ (A Ω)ᵀ."""
    core = test.double().T @ image
    values, vectors = torch.linalg.eigh((core + core.T) / 2)
    kept = values > TINY * values.max().clamp(min=0)
    factor: Tensor = image @ (vectors[:, kept] * values[kept].rsqrt())
    return factor


# Client half


def sums_of_features_form(task: Payload, classes: int) -> Form:
    """Declare the answer to a question of `ask_feature_sums`."""
    d, test = int(task.scalars["width"]), task.tensors.get("weigh/test")
    looks = {
        "counts": Like((classes,), torch.int64, low=0, counted=True),
        "sums": Like((classes, d), torch.float64),
        "squares": Like((2, d), torch.float64, low=0),
    }
    if task.scalars["products"]:
        shape = (d * (d + 1) // 2,) if test is None else tuple(test.shape)
        looks["products"] = Like(shape, torch.float64)
    return Form().group(FEATURE_GROUP, looks, Total())


def products_form(task: Payload) -> Form:
    """Declare the answer about one block of Ω."""
    shape = tuple(task.tensors["weigh/test"].shape)
    return Form().group(FEATURE_GROUP, {"products": Like(shape, torch.float32)}, Total())


def report_feature_products(payload: Payload, client: Client) -> Payload:
    """Answer with the client's part of A Ω, for one block of Ω."""
    told = payload.group("weigh")
    _, across = sample_weights(told["counts"], bool(payload.scalars["balanced"]))
    test = told["test"].double()
    image = torch.zeros_like(test)
    for h, y in local_features(load_body(payload, client), client.data):
        image += (h * across[y, None]).T @ (h @ test)
    return Payload(grouped(FEATURE_GROUP, {"products": image.float()}))


def report_feature_sums(payload: Payload, client: Client) -> Payload:
    """Answer on the client, at the received model, which would be shipped."""
    network = load_body(payload, client)
    told, d = payload.group("weigh"), int(payload.scalars["width"])
    inside, across = sample_weights(told["counts"], bool(payload.scalars["balanced"]))
    test = told["test"].double() if "test" in told else None
    sums, squares = torch.zeros(len(inside), d).double(), torch.zeros(2, d).double()
    image = torch.zeros(d, d if test is None else test.shape[1]).double()
    for h, y in local_features(network, client.data):
        weighed = h * across[y, None]
        sums.index_add_(0, y, h * inside[y, None])
        squares += torch.stack([h.square().sum(0), (weighed * h).sum(0)])
        if payload.scalars["products"]:
            image += weighed.T @ (h if test is None else h @ test)
    squares[0] /= told["counts"].sum().clamp(min=1)
    parts = {"counts": client.counts, "sums": sums, "squares": squares}
    if payload.scalars["products"]:
        upper = torch.triu_indices(d, d)
        parts["products"] = image[upper[0], upper[1]] if test is None else image
    return Payload(grouped(FEATURE_GROUP, parts))


def local_features(network: SplitModel, data: ClientData) -> Iterator[tuple[Tensor, Tensor]]:
    """Give a client's features and labels batch by batch, in evaluation mode and float64."""
    network.eval()
    for index in torch.split(torch.arange(len(data)), FEATURES_AT_ONCE):
        with torch.no_grad():
            h = network.features(data.batch(index)[0])
        yield h.cpu().double(), data.labels[index]
