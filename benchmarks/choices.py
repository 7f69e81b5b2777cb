"""Which default a field gets where papers, their code and what works differ.

Every question has variants of one method under two protocols. On the digits the score is the mean
of the tests of the last ten rounds. On frozen features of CIFAR-10-LT (a cell of protocol F,
`protocols/`) clients hold out a tenth of their samples, and the score is the balanced accuracy on
those, the mean over the validations of the last twenty rounds: that test set decides nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.figures.common import DEMO, Plain, experiment, read_protocol, summary
from benchmarks.results_file import RESULTS, save
from fedtail import Experiment, Result, run
from fedtail.setting import prepare

FEATURES = Path(__file__).parent / "protocols" / "f_cifar10_if100_dir0.1.toml"
FEDAVG: Plain = {"name": "fedavg"}
HEAVY = {"local": {"lr": 0.02, "momentum": 0.9, "epochs": 5, "batch_size": 16}}
HEAVY_HEAD = {"local": {"lr": 0.02, "momentum": 0.9, "epochs": 1, "batch_size": 32}}
SKEWED = {
    "rounds": 30,
    "per_round": 4,
    "tail": {"name": "none"},
    "partition": {"name": "dirichlet", "alpha": 0.05},
    "method": {"local": {"lr": 0.05, "epochs": 5, "batch_size": 32}},
}


def gbme(**fields: Any) -> dict[str, Any]:
    """Return GBME with the values that another default is held against."""
    old = {"name": "gbme", "rest": "others", "prior": {"name": "proxy", "index": "epoch"}}
    return {**old, **fields}


QUESTIONS: dict[str, dict[str, Plain]] = {
    "fedlc": {
        "fedavg": FEDAVG,
        "absent=0, tau=1": {"name": "fedlc", "absent": 0, "tau": 1},
        "absent=0, tau=4": {"name": "fedlc", "absent": 0, "tau": 4},
        **{
            f"absent={count:g}, tau={tau}": {"name": "fedlc", "absent": count, "tau": tau}
            for count, tau in ((1, 1), (1, 2), (1, 4), (0.1, 1), (0.1, 2))
        },
    },
    "redgrape": {
        "fedavg": FEDAVG,
        "outside": {"name": "redgrape", "rebalance": "outside"},
        "inside": {"name": "redgrape", "rebalance": "inside"},
        "outside, lam=1": {"name": "redgrape", "rebalance": "outside", "lam": 1},
        "inside, lam=1": {"name": "redgrape", "rebalance": "inside", "lam": 1},
    },
    "balancefl": {
        "fedavg": FEDAVG,
        "domain=code": {"name": "balancefl", "domain": "code"},
        "domain=paper": {"name": "balancefl", "domain": "paper"},
        "domain=paper, shuffled": {"name": "balancefl", "domain": "paper", "sampler": "shuffled"},
    },
    "gbme": {
        "epoch, others": gbme(),
        "epoch per client": gbme(
            prior={"name": "proxy", "index": "epoch", "normalise_per_client": True}
        ),
        "gradient": gbme(prior={"name": "proxy", "index": "gradient"}),
        "gradient per client": gbme(
            prior={"name": "proxy", "index": "gradient", "normalise_per_client": True}
        ),
        "epoch, rest=all": gbme(rest="all"),
        "epoch, Eq. 7": gbme(per_expert=False, times_experts=False),
        "epoch, Eq. 7 times M": gbme(per_expert=False, times_experts=True),
    },
}
"""The variants of each method, those of findings and papers first."""

PROTOCOLS: dict[str, dict[str, Mapping[str, Any]]] = {
    "fedlc": {
        "digits": SKEWED,
        "features": {},
    },
    "redgrape": {"digits": {"rounds": 40, "method": HEAVY}, "features": {"method": HEAVY_HEAD}},
    "balancefl": {"digits": {}, "features": {}},
    "gbme": {"digits": {}, "features": {}},
}
"""What each question changes of the two protocols."""


def scores(result: Result, features: bool) -> dict[str, float]:
    """Return what is judged, in percent."""
    if features:
        found = [r["validation"] for r in result.history[-20:] if r.get("validation")]
        return {key: 100 * fmean(v[key] for v in found) for key in ("balanced_accuracy", "few")}
    seen = result.history[-10:]
    # Without a tail no class is rare.
    known = [key for key in ("accuracy", "few") if seen[-1][key] is not None]
    return {key: 100 * fmean(r[key] for r in seen) for key in known}


def tail_share(result: Result, asked: Experiment) -> dict[str, float]:
    """Return the share of the rarest 30 % of classes in the prior, over their true share."""
    prior = getattr(result.state, "prior", None)
    if prior is None:
        return {}
    federation = prepare(asked).federation
    counts = torch.stack([federation.counts(k) for k in range(len(federation))]).sum(0).double()
    rare = counts.argsort()[: round(0.3 * len(counts))]
    truth = float(counts[rare].sum() / counts.sum())
    return {"tail_in_prior": float(prior[rare].sum() / prior.sum()) / truth}


def measure(question: str, where: str, seeds: int, rounds: int | None) -> dict[str, Any]:
    """Return the scores of every variant under one protocol."""
    features = where == "features"
    changes = dict(PROTOCOLS[question][where])
    protocol = read_protocol(FEATURES if features else DEMO, **changes)
    if features:
        protocol["eval_every"] = 5
    protocol["rounds"] = rounds or protocol["rounds"]
    found: dict[str, Any] = {}
    for title, method in QUESTIONS[question].items():
        each = []
        for seed in range(seeds):
            asked = experiment(protocol, seed, method)
            result = run(asked)
            each.append(scores(result, features) | tail_share(result, asked))
        found[title] = {
            "method": dict(method),
            **{key: summary([e[key] for e in each]) for key in each[0]},
        }
        print(title, {k: v["mean"] for k, v in found[title].items() if k != "method"}, flush=True)
    return {"protocol": protocol, "seeds": list(range(seeds)), "variants": found}


def table(question: str, folder: Path = RESULTS) -> str:
    """Return what was measured as the table of the method's page."""
    columns: list[tuple[str, str, dict[str, Any]]] = []
    for where, title in (("digits", "digits"), ("features", "CIFAR-10-LT")):
        path = folder / "choices" / f"{question}_{where}.json"
        found = json.loads(path.read_text())["numbers"]["variants"] if path.exists() else {}
        keys = [key for key in next(iter(found.values()), {}) if key != "method"]
        columns += [(f"{title}: {WORDS[key]}", key, found) for key in keys]
    lines = [f"| | {' | '.join(title for title, _, _ in columns)} |"]
    lines += ["|---" * (len(columns) + 1) + "|"]
    for variant in columns[0][2]:
        cells = [shown(key, found[variant][key]) for _, key, found in columns]
        lines += [f"| {variant} | {' | '.join(cells)} |"]
    return "\n".join(lines)


WORDS = {
    "accuracy": "all",
    "balanced_accuracy": "validation",
    "few": "few",
    "tail_in_prior": "tail in Π",
}


def shown(key: str, found: Plain) -> str:
    """Return mean and deviation as they stand in a table."""
    digits = 2 if key == "tail_in_prior" else 1
    return f"{found['mean']:.{digits}f} ± {found['std']:.{digits}f}"


def main(words: Sequence[str] | None = None) -> None:
    """Measure one question under one protocol, and save it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", choices=sorted(QUESTIONS))
    parser.add_argument("--table", action="store_true", help="print what was measured, no runs")
    parser.add_argument("--on", choices=("digits", "features"), default="digits")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... (default: 3)")
    parser.add_argument("--rounds", type=int, help="rounds of a run; by default the protocol's")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    chosen = parser.parse_args(words)
    if chosen.table:
        print(table(chosen.question, chosen.out))
        return
    numbers = measure(chosen.question, chosen.on, chosen.seeds, chosen.rounds)
    save("choices", numbers, chosen.out / "choices", f"{chosen.question}_{chosen.on}")


if __name__ == "__main__":
    main()
