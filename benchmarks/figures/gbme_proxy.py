"""GBME's Figures 5 and 6: the proxy prior against the true class counts, without and with noise.

Before round 1 every client trains the initial model for one epoch; Ω is read off its classifier,
and Π, the global proxy, off all of them (Eq. 4 and 5). Here the positive part of Ω is compared with
the client's class counts, and Π with those of all clients, by the cosine. Under GBME-p the
classifier's change is scaled to norm 1 and gets Gaussian noise before it leaves the client. Clients
train once for all ε: noise is added to what they would have sent, as `PrivateProxyPrior` adds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import cosine_similarity

from benchmarks.figures.common import (
    FOLDER,
    Plain,
    arguments,
    experiment,
    new_figure,
    publish,
    read_protocol,
    summary,
)
from fedtail import Client, PrivateProxyPrior
from fedtail.engines import Embedded
from fedtail.engines.runtime import numerics
from fedtail.setting import prepare
from fedtail.training.proxy import lpi

PROTOCOL = FOLDER / "gbme_proxy.toml"


@dataclass(frozen=True)
class Survey:
    """What the preliminary exchange leaves, without noise.

    Attributes
    ----------
    clients
        The clients, with the random streams of their first task.
    changes
        How each one's classifier moved, (K, C, d).
    counts
        The true class counts, (K, C).
    """

    clients: list[Client]
    changes: Tensor
    counts: Tensor


def survey(protocol: Plain, seed: int) -> Survey:
    """Let every client train for one epoch."""
    prior = {"name": "private_proxy", "index": "epoch", "reads": "rows", "epsilon": math.inf}
    setting = prepare(experiment(protocol, seed, {"name": "gbme-p", "prior": prior}))
    server = setting.server(0)
    state = setting.method.init(setting.model, server)
    with (
        numerics(setting.experiment.threads),
        closing(Embedded(setting.runtime())) as engine,
    ):
        tasks = next(setting.method.setup(state, server))
        replies = engine.perform(tasks, server.round, server.rounds)
    federation = setting.federation
    clients = [
        Client(
            id=k,
            data=federation.client(k),
            counts=federation.counts(k),
            model=setting.model,
            state={},
            round=server.round,
            rounds=server.rounds,
            seed=seed,
        )
        for k in server.clients
    ]
    changes = torch.stack([update.payload.tensors["layer/weight"] for update in replies.found.each])
    return Survey(clients, changes, torch.stack([client.counts for client in clients]))


def proxies(found: Survey, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return Ω (K, C) and Π (C,) as the server sees them under noise."""
    prior = PrivateProxyPrior(epsilon=epsilon)
    pairs = zip(found.changes, found.clients, strict=True)
    omega = torch.stack([lpi(prior.release(change, client)) for change, client in pairs])
    return omega, prior.gpi(omega, found.counts.sum(dim=1))


def cosines(found: Survey, epsilon: float) -> tuple[float, float]:
    """Return the cosine of Π and the counts of all, and the mean one of Ω and each client's."""
    omega, gpi = proxies(found, epsilon)
    whole = cosine_similarity(gpi, found.counts.sum(dim=0).float(), dim=0)
    each = cosine_similarity(omega.clamp(min=0), found.counts.float(), dim=1)
    return float(whole), float(each.mean())


def shares(counts: Tensor) -> list[float]:
    """Return class counts as shares of their sum."""
    return [round(share, 4) for share in (counts / counts.sum()).tolist()]


def measure(protocol: Plain, seeds: int, epsilons: Sequence[float]) -> dict[str, Any]:
    """Return the cosines for every ε, ∞ first, and Π of the first seed."""
    found = [survey(protocol, seed) for seed in range(seeds)]
    levels = [math.inf, *sorted(epsilons, reverse=True)]
    rows = []
    for epsilon in levels:
        pairs = [cosines(each, epsilon) for each in found]
        rows.append(
            {
                "epsilon": str(epsilon),
                "sigma": round(PrivateProxyPrior(epsilon=epsilon).sigma, 4),
                "global": summary([whole for whole, _ in pairs]),
                "mean_of_clients": summary([each for _, each in pairs]),
            }
        )
    return {
        "protocol": protocol,
        "seeds": list(range(seeds)),
        "delta": PrivateProxyPrior().delta,
        "cosines": rows,
        "shares_seed_0": {
            "true": shares(found[0].counts.sum(dim=0)),
            **{f"epsilon={level}": shares(proxies(found[0], level)[1]) for level in levels},
        },
    }


def draw(numbers: Plain) -> Figure:
    """Draw Π against the truth, and the cosines over ε."""
    figure = new_figure(8.2, 3.2)
    left, right = figure.subplots(1, 2)
    rows, found = numbers["cosines"], dict(numbers["shares_seed_0"])
    true, clean = found.pop("true"), found.pop("epsilon=inf")
    classes = range(len(true))
    left.bar(classes, true, color="0.8", label="true share")
    left.plot(classes, clean, "o-", color="tab:blue", label="Π, no noise")
    for name, noisy in list(found.items())[-1:]:
        left.plot(classes, noisy, "s--", ms=4, color="tab:orange", label=f"Π, {name}")
    left.set(xlabel="class", ylabel="share", title="global proxy (seed 0)")
    left.set_xticks(classes)
    places = range(len(rows))
    for key, colour, title in (
        ("global", "tab:blue", "Π and all counts"),
        ("mean_of_clients", "tab:red", "Ω and a client's counts, mean"),
    ):
        mean = [row[key]["mean"] for row in rows]
        spread = [row[key]["std"] for row in rows]
        right.errorbar(places, mean, spread, color=colour, marker="o", capsize=3, label=title)
    names = ["∞" if row["epsilon"] == "inf" else f"{float(row['epsilon']):g}" for row in rows]
    right.set_xticks(places, names)
    right.set(xlabel="ε", ylabel="cosine", ylim=(0, 1.02), title="under noise")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    return figure


def main(words: Sequence[str] | None = None) -> None:
    """Measure, save, draw."""
    parser = arguments(__doc__, PROTOCOL)
    parser.add_argument("--clients", type=int, help="clients; by default the protocol's")
    parser.add_argument(
        "--epsilons", type=float, nargs="+", default=[100, 20, 10, 5], help="budgets of GBME-p"
    )
    chosen = parser.parse_args(words)
    protocol = read_protocol(Path(chosen.protocol), clients=chosen.clients)
    numbers = measure(protocol, chosen.seeds, chosen.epsilons)
    publish("gbme_proxy", numbers, draw(numbers), chosen.out)


if __name__ == "__main__":
    main()
