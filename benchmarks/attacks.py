"""What bad clients do to a model, under each robust mean: all classes, and the rare ones.

    python -m benchmarks.attacks

The digits with a long tail (imbalance 20), ten clients (Dirichlet 0.3), all of them in every round,
balanced softmax. One or three of them, the first ones, attack in one of five ways:

- *times 100*: the change of the model, a hundred times as large;
- *sign flip*: ten times the change, backwards;
- *label flip*: honest training on labels c → C − 1 − c;
- *backdoor*: ten copies of all samples of the rarest class, labelled as the most frequent one,
  cross-entropy (balanced softmax would take the label for what is expected), and a change that is
  enlarged so that the mean becomes the attackers' model;
- *little is enough* (Baruch, Baruch, Goldberg, NeurIPS 2019): the mean of the honest changes minus
  1.5 of their standard deviations, number by number.

The rows without an attack show what a robust mean costs where nobody is bad, on the same split and
on one in which each of the three rarest classes is with one client alone (*held alone*). Robust
means count clients alike and a plain one counts samples, so these rows have the plain mean of
clients that count alike beside them. Started again, it goes on where it was (`--log`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.results_file import save
from fedtail import Experiment, FedAvg, FedtailError
from fedtail.data.dataset import Samples
from fedtail.data.federation import Federation
from fedtail.engines import Embedded
from fedtail.engines.block_size import block_size
from fedtail.engines.executor import Done, Job, Serial
from fedtail.engines.runtime import Runtime, numerics
from fedtail.folder import environment
from fedtail.loop import Loop
from fedtail.setting import Setting, prepare
from fedtail.totals import Sums

CLIENTS = 10
DEFENCES: dict[str, dict[str, Any]] = {
    "none": {"name": "none"},
    "clients alike": {"name": "trimmed_mean", "share": 0.0},
    "norm bound, median norm": {"name": "norm_bound"},
    "norm bound, 0.5": {"name": "norm_bound", "bound": 0.5},
    "median": {"name": "median"},
    "trimmed mean": {"name": "trimmed_mean", "share": 0.3},
    "Krum": {"name": "krum", "share": 0.3},
    "multi-Krum": {"name": "multi_krum", "share": 0.3},
    "geometric median": {"name": "geometric_median"},
}
"""Those that can be told of it are told of three bad clients in ten."""
ALONE = "held alone"
ATTACKS = ("times 100", "sign flip", "label flip", "backdoor", "little is enough")
FACTORS = {"times 100": 100.0, "sign flip": -10.0}
LOCAL = {"lr": 0.1, "epochs": 5, "batch_size": 16}
RARE = 3  # classes that count as rare
COPIES = 10  # of what the backdoor is made of
SCORES = ("all", "rare", "rarest", "taken")


def protocol(seed: int, defence: str, rounds: int) -> Experiment:
    """Return the experiment."""
    return Experiment(
        data="digits",
        tail={"name": "exponential", "imbalance": 20},
        partition={"name": "dirichlet", "alpha": 0.3},
        clients=CLIENTS,
        rounds=rounds,
        seed=seed,
        eval_every=rounds,
        model={"name": "mlp", "hidden": [64]},
        method={"name": "bsm", "local": LOCAL},
        robust=DEFENCES[defence],
    )


@dataclass(frozen=True)
class Attack(Serial):
    """Does all jobs honestly, then changes the answers of some clients."""

    kind: str = ""
    bad: frozenset[int] = field(default_factory=frozenset)
    enlarged: float = 1.0
    crooked: Serial | None = None

    def perform(self, jobs: Sequence[Job], total: Sums | None = None) -> list[Done]:
        """Do the jobs; attackers may train with a loss of their own."""
        done = list(super().perform(jobs))
        if self.crooked is not None:
            bad = [i for i, job in enumerate(jobs) if job.task.client in self.bad]
            for i, other in zip(bad, self.crooked.perform([jobs[i] for i in bad]), strict=True):
                done[i] = other
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
    """Return the setting with labels and samples as an attack, or nobody's fault, has them."""
    if kind not in ("label flip", "backdoor", ALONE):
        return setting
    train, parts = setting.dataset.train, [np.asarray(p) for p in setting.split.parts]
    x, y = torch.as_tensor(train.x[torch.arange(len(train))]), train.y.clone()
    if kind == "label flip":
        held = torch.from_numpy(np.concatenate([parts[k] for k in bad]))
        y[held] = setting.dataset.num_classes - 1 - y[held]
    elif kind == ALONE:
        for i, c in enumerate(np.argsort(setting.class_counts, kind="stable")[:RARE]):
            mine = np.concatenate([p[train.y[p].numpy() == c] for p in parts])
            parts = [p[train.y[p].numpy() != c] for p in parts]
            parts[-1 - i] = np.concatenate([parts[-1 - i], mine])
    else:
        counts = torch.tensor(setting.class_counts)
        own = torch.from_numpy(np.concatenate(parts))
        rare = own[train.y[own] == int(counts.argmin())].repeat(COPIES)
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
    """Return percent right of all classes alike, of the rare ones and of the rarest.

    And how many of the rarest are taken for the most frequent class: what the backdoor is for.
    """
    chosen = protocol(seed, defence, rounds)
    clean = prepare(chosen)
    bad = list(range(attackers))
    setting = poisoned(clean, kind, bad)
    runtime: Runtime = setting.runtime()
    runtime.together, _ = block_size(chosen.together, runtime, CLIENTS)
    engine = Embedded(runtime, server_side=chosen.robust_side)
    engine.executor = Attack(runtime, kind=kind, bad=frozenset(bad))
    if kind == "backdoor":
        other = replace(runtime, method=FedAvg.model_validate({"local": LOCAL}))
        engine.executor = replace(
            engine.executor,
            enlarged=replacing(setting, bad, defence),
            crooked=Serial(other),
        )
    with numerics(1):
        try:
            found = Loop(setting, engine, None, ()).run(False)
        except FedtailError as error:  # nobody could train with what the attackers made
            print(f"{kind}, {attackers}, {defence}: {error}")
            return dict.fromkeys(SCORES, 0.0)
        counted = engine.executor.evaluate(found.tensors).confusion.double().numpy()
    right = counted.diagonal() / counted.sum(axis=1)
    order = np.argsort(np.array(clean.class_counts), kind="stable")
    taken = counted[order[0], order[-1]] / counted[order[0]].sum()
    each = (right.mean(), right[order[:RARE]].mean(), right[order[0]], taken)
    return {n: round(100 * float(score), 2) for n, score in zip(SCORES, each, strict=True)}


def plan() -> list[tuple[str, int, str]]:
    """Return every attack, how many attack, and every defence against it."""
    calm = [(kind, 0, defence) for kind in ("none", ALONE) for defence in DEFENCES]
    tried = [d for d in DEFENCES if d != "clients alike"]
    return calm + [(kind, f, d) for kind in ATTACKS for f in (1, 3) for d in tried]


def read(log: Path) -> dict[str, dict[str, Any]]:
    """Return what is done, by run."""
    return dict(json.loads(line) for line in log.read_text().splitlines()) if log.exists() else {}


def main() -> None:
    """Measure all of it, and write a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="seeds where nobody attacks, from 0")
    parser.add_argument("--attack-seeds", type=int, default=3, help="seeds where somebody does")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each run")
    parser.add_argument(
        "--log", type=Path, default=Path("attacks.jsonl"), help="what is done, to go on from"
    )
    parser.add_argument("--done", action="store_true", help="write what the log has, and stop")
    asked = parser.parse_args()
    for kind, attackers, defence, seed in wanted(asked.seeds, asked.attack_seeds):
        key = f"{kind}/{attackers}/{defence}/{asked.rounds}/{seed}"
        if key not in read(asked.log) and not asked.done:
            found = outcome(seed, defence, kind, attackers, asked.rounds)
            print(key, found, flush=True)
            with asked.log.open("a") as log:
                log.write(json.dumps([key, {**found, "commit": environment()["commit"]}]) + "\n")
    save("attacks", {"rounds": asked.rounds, "rows": rows_of(read(asked.log), asked.rounds)})


def wanted(seeds: int, attack_seeds: int) -> list[tuple[str, int, str, int]]:
    """Return all runs: first where nobody attacks, seed by seed."""
    each = [(*row, s) for row in plan() for s in range(attack_seeds if row[1] else seeds)]
    return sorted(each, key=lambda run: (run[1] > 0, run[3]))


def rows_of(done: dict[str, dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
    """Return a row for each attack and defence that was measured, with a score for each seed."""
    rows = []
    for kind, attackers, defence in plan():
        start = f"{kind}/{attackers}/{defence}/{rounds}/"
        seeds = sorted(int(key.removeprefix(start)) for key in done if key.startswith(start))
        if seeds:
            each = [done[f"{start}{seed}"] for seed in seeds]
            row = {"attack": kind, "attackers": attackers, "defence": defence, "seeds": seeds}
            scores = {name: [e[name] for e in each] for name in SCORES}
            rows.append({**row, **scores, "commits": sorted({e["commit"] for e in each})})
    return rows


if __name__ == "__main__":
    main()
