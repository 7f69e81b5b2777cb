"""What bad clients do to a model, under each robust mean: all classes, and the rare ones.

    python -m benchmarks.attacks --seeds 3

The digits with a long tail (imbalance 20), ten clients (Dirichlet 0.3), all of them in every round,
balanced softmax. One or three of them attack, in one of five ways:

- *times 100*: the change of the model, a hundred times as large;
- *sign flip*: ten times the change, backwards;
- *label flip*: honest training on labels c → C − 1 − c;
- *backdoor*: copies of all samples of the rarest class, labelled as the most frequent one, and a
  change that is enlarged so that the mean becomes the attacker's model;
- *little is enough* (Baruch, Baruch, Goldberg, NeurIPS 2019): the mean of the honest changes minus
  1.5 of their standard deviations, number by number.

The rows without an attack show what a robust mean costs where nobody is bad.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.results_file import save
from fedtail import Experiment
from fedtail.data.dataset import Samples
from fedtail.data.federation import Federation
from fedtail.engines import Embedded
from fedtail.engines.executor import Done, Job, Serial
from fedtail.engines.runtime import Runtime, numerics
from fedtail.loop import Loop
from fedtail.setting import Setting, prepare
from fedtail.totals import Sums

CLIENTS = 10
DEFENCES = (
    "none",
    "norm_bound",
    "median",
    "trimmed_mean",
    "krum",
    "multi_krum",
    "geometric_median",
)
ATTACKS = ("times 100", "sign flip", "label flip", "backdoor", "little is enough")
FACTORS = {"times 100": 100.0, "sign flip": -10.0}
RARE = 3  # classes that count as rare


def protocol(seed: int, defence: str, rounds: int) -> Experiment:
    """Return the experiment; the trimmed mean and Krum are told of three bad clients in ten."""
    told = {"share": 0.3} if defence in ("trimmed_mean", "krum", "multi_krum") else {}
    return Experiment(
        data="digits",
        tail={"name": "exponential", "imbalance": 20},
        partition={"name": "dirichlet", "alpha": 0.3},
        clients=CLIENTS,
        rounds=rounds,
        seed=seed,
        eval_every=rounds,
        method={"name": "bsm", "local": {"lr": 0.1, "epochs": 5, "batch_size": 16}},
        robust={"name": defence, **told},
    )


@dataclass(frozen=True)
class Attack(Serial):
    """Does all jobs honestly, then changes the answers of some clients."""

    kind: str = ""
    bad: frozenset[int] = field(default_factory=frozenset)
    enlarged: float = 1.0

    def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
        """Do the jobs."""
        done = list(super().perform(jobs))
        honest = [d for job, d in zip(jobs, done, strict=True) if job.task.client not in self.bad]
        return [
            self.changed(job, d, honest) if job.task.client in self.bad else d
            for job, d in zip(jobs, done, strict=True)
        ]

    def changed(self, job: Job, done: Done, honest: Sequence[Done]) -> Done:
        """Return what an attacker sends."""
        if done.payload is None:
            return done
        sent = job.task.payload.tensors
        tensors = {
            name: self.tensor(name, sent[name], t, honest) if t.is_floating_point() else t
            for name, t in done.payload.tensors.items()
        }
        return replace(done, payload=replace(done.payload, tensors=tensors))

    def tensor(self, name: str, sent: Tensor, own: Tensor, honest: Sequence[Done]) -> Tensor:
        """Return one tensor of it."""
        if self.kind == "little is enough":
            each = torch.stack([d.payload.tensors[name] for d in honest if d.payload is not None])
            return each.mean(dim=0) - 1.5 * each.std(dim=0, correction=0)
        return sent + FACTORS.get(self.kind, self.enlarged) * (own - sent)


def poisoned(setting: Setting, kind: str, bad: Sequence[int]) -> Setting:
    """Return the setting with the attackers' labels and samples as the attack has them."""
    if kind not in ("label flip", "backdoor"):
        return setting
    train, parts = setting.dataset.train, [np.asarray(p) for p in setting.split.parts]
    x, y = torch.as_tensor(train.x[torch.arange(len(train))]), train.y.clone()
    if kind == "label flip":
        held = torch.from_numpy(np.concatenate([parts[k] for k in bad]))
        y[held] = setting.dataset.num_classes - 1 - y[held]
    else:
        counts = torch.tensor(setting.class_counts)
        own = torch.from_numpy(np.concatenate(parts))
        rare = own[train.y[own] == int(counts.argmin())]
        copies = np.arange(len(y), len(y) + len(rare))
        x = torch.cat([x, x[rare]])
        y = torch.cat([y, torch.full((len(rare),), int(counts.argmax()))])
        parts = [np.concatenate([p, copies]) if k in bad else p for k, p in enumerate(parts)]
    dataset = replace(setting.dataset, train=Samples(x, y))
    old = setting.federation
    federation = Federation(dataset, parts, old.augment, old.device, old.channels_last)
    return replace(setting, dataset=dataset, federation=federation)


def replacing(setting: Setting, bad: Sequence[int], defence: str) -> float:
    """Return the factor with which the mean of all changes is that of the attackers.

    Robust means count clients alike, the plain one counts samples.
    """
    sizes = [setting.federation.size(k) for k in range(CLIENTS)]
    return sum(sizes) / sum(sizes[k] for k in bad) if defence == "none" else CLIENTS / len(bad)


def outcome(seed: int, defence: str, kind: str, attackers: int, rounds: int) -> dict[str, float]:
    """Return percent right of all classes alike, of the rare ones, and of the rarest."""
    chosen = protocol(seed, defence, rounds)
    clean = prepare(chosen)
    bad = list(range(attackers))
    setting = poisoned(clean, kind, bad)
    runtime: Runtime = setting.runtime()
    engine = Embedded(runtime, server_side=chosen.robust_side)
    enlarged = replacing(setting, bad, defence) if kind == "backdoor" else 1.0
    engine.executor = Attack(runtime, kind=kind, bad=frozenset(bad), enlarged=enlarged)
    with numerics(1):
        found = Loop(setting, engine, None, ()).run(False)
    right = np.array([p or 0.0 for p in found.metrics["per_class"]])
    order = np.argsort(np.array(clean.class_counts), kind="stable")
    scores = {"all": right.mean(), "rare": right[order[:RARE]].mean(), "rarest": right[order[0]]}
    return {name: round(100 * float(score), 2) for name, score in scores.items()}


def main() -> None:
    """Measure all of it, and write a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds, from 0")
    parser.add_argument("--rounds", type=int, default=25, help="rounds of each run")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for kind, attackers in [("none", 0), *((k, f) for k in ATTACKS for f in (1, 3))]:
        for defence in DEFENCES:
            each = [
                outcome(seed, defence, kind, attackers, asked.rounds) for seed in range(asked.seeds)
            ]
            row = {"attack": kind, "attackers": attackers, "defence": defence}
            rows.append({**row, **{name: [e[name] for e in each] for name in each[0]}})
            print(rows[-1], flush=True)
    save("attacks", {"rounds": asked.rounds, "seeds": asked.seeds, "rows": rows})


if __name__ == "__main__":
    main()
