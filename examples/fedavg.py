"""FedAvg in plain PyTorch, to read beside `fedtail/methods/fedavg.py`.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017.

Each round the server sends its model w to some clients; client k trains it on its own n_k samples
and sends w_k back; the server takes w ← Σ n_k w_k / Σ n_k. Here all of it is one loop in one
process, on the digits that ship inside scikit-learn, which is why it is short: no seeds that
survive a restart, no clients that fail, no traffic, no rare classes. The names of fedtail for the
same thing stand in the comments.

    python examples/fedavg.py
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

CLIENTS, PER_ROUND, ROUNDS = 10, 5, 15
EPOCHS, BATCH, RATE = 2, 16, 0.1
ALPHA = 0.3  # the smaller, the fewer classes a client has

Samples = tuple[Tensor, Tensor]
Weights = dict[str, Tensor]


def load() -> tuple[Samples, Samples]:
    """Return 1,437 training and 360 test samples; in fedtail a `Source`."""
    data = load_digits()
    x = torch.tensor(data.data / 16, dtype=torch.float32)
    y = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(y))
    test, train = order[:360], order[360:]
    return (x[train], y[train]), (x[test], y[test])


def share_out(y: Tensor, rng: np.random.Generator) -> list[Tensor]:
    """Split each class over the clients in Dirichlet(α) shares; in fedtail a `Partition`."""
    parts: list[list[Tensor]] = [[] for _ in range(CLIENTS)]
    for label in range(10):
        members = torch.nonzero(y == label)[:, 0]
        shares = rng.dirichlet([ALPHA] * CLIENTS)
        ends = torch.tensor((shares.cumsum() * len(members)).astype(int)[:-1])
        for part, piece in zip(parts, torch.tensor_split(members, ends), strict=True):
            part.append(piece)
    return [torch.cat(part) for part in parts]


def make_model() -> nn.Module:
    """Return the network; in fedtail any `nn.Module`."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(model: nn.Module, w: Weights, samples: Samples) -> Weights:
    """Client half: go on from w on the client's own samples. In fedtail `FedAvg.train`."""
    model.load_state_dict(w)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    x, y = samples
    for _ in range(EPOCHS):
        for index in torch.split(torch.randperm(len(y)), BATCH):
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(model(x[index]), y[index]))
            optimizer.step()
    return copy.deepcopy(model.state_dict())


def average(uploads: list[Weights], sizes: list[int]) -> Weights:
    """Server half: Σ n_k w_k / Σ n_k. In fedtail `FedAvg.aggregate`."""
    total = sum(sizes)
    return {
        name: sum(
            (w[name] * (n / total) for w, n in zip(uploads, sizes, strict=True)), torch.zeros(())
        )
        for name in uploads[0]
    }


def recalls(model: nn.Module, w: Weights, samples: Samples) -> Tensor:
    """Return, for each class, which share of its test samples is found."""
    model.load_state_dict(w)
    x, y = samples
    with torch.no_grad():
        hits = model(x).argmax(1) == y
    return torch.stack([hits[y == label].float().mean() for label in range(10)])


def main(seed: int = 0) -> Tensor:
    """Run the rounds, print a line for each, and return the last recalls."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    (x, y), test = load()
    parts = [part for part in share_out(y, rng) if len(part)]
    model = make_model()
    w = copy.deepcopy(model.state_dict())
    for number in range(1, ROUNDS + 1):
        # In fedtail this is `FedAvg.round`: yield the tasks of a cohort, aggregate the updates.
        cohort = rng.choice(len(parts), size=min(PER_ROUND, len(parts)), replace=False)
        uploads = [train(model, w, (x[parts[k]], y[parts[k]])) for k in cohort]
        w = average(uploads, [len(parts[k]) for k in cohort])
        found = recalls(model, w, test)
        print(f"round {number:2}  accuracy {found.mean():.3f}  worst class {found.min():.3f}")
    return recalls(model, w, test)


if __name__ == "__main__":
    main()
