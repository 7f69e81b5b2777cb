"""What a federated long tail does to FedAvg, class by class, and what methods do about it.

The same long-tailed digits are trained in one place, by clients that are alike and by clients that
differ. Of FedAvg with different clients, the lengths of the classifier's rows are taken, and its
features are given another classifier, fitted to the balanced samples of all clients: nobody could
do that in a federation, but it tells damaged features from a damaged classifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression

from benchmarks.figures.common import (
    DEMO,
    Plain,
    arguments,
    experiment,
    new_figure,
    publish,
    read_protocol,
    save_picture,
    summary,
)
from fedtail import run
from fedtail.setting import Setting, prepare

FEDAVG = "FedAvg, clients differ"
WORLDS: dict[str, tuple[Plain, Plain]] = {
    "all data in one place": ({"name": "centralised"}, {}),
    "FedAvg, clients alike": ({"name": "fedavg"}, {"partition": {"name": "iid"}}),
    FEDAVG: ({"name": "fedavg"}, {}),
}
REMEDIES: dict[str, tuple[Plain, Plain]] = {
    "Balanced Softmax, global prior": ({"name": "bsm", "prior": "global"}, {}),
    "BalanceFL": ({"name": "balancefl"}, {}),
    "CReFF": ({"name": "creff"}, {}),
}
REFITTED = "FedAvg's features, classifier refitted"
COLOURS = ("tab:green", "tab:blue", "0.4", "tab:purple", "tab:orange", "tab:red")


def measure(protocol: Plain, seeds: int) -> dict[str, Any]:
    """Return the split of seed 0, and scores by class of every run."""
    found: dict[str, list[dict[str, Any]]] = {}
    for title, (method, changes) in (WORLDS | REMEDIES).items():
        for seed in range(seeds):
            setting = prepare(experiment({**protocol, **changes}, seed, method))
            result = run(setting.experiment)
            setting.base.load(result.tensors)
            one = {"per_class": result.metrics["per_class"], "few": result.metrics["few"]}
            found.setdefault(title, []).append(one | {"rows": row_lengths(setting)})
            if title == FEDAVG:
                found.setdefault(REFITTED, []).append(refitted(setting))
    split = prepare(experiment(protocol, 0, {"name": "fedavg"})).split
    return {
        "protocol": protocol,
        "seeds": list(range(seeds)),
        "clients_x_classes_seed_0": split.counts.tolist(),
        "runs": {title: _over_seeds(each) for title, each in found.items()},
    }


def row_lengths(setting: Setting) -> list[float]:
    """Return the length of each class's row of the classifier, over their mean."""
    lengths = setting.base.classifier.get_parameter("weight").detach().norm(dim=1)
    return [float(length) for length in lengths / lengths.mean()]


def refitted(setting: Setting) -> dict[str, Any]:
    """Fit a classifier to the model's features of all samples, each class weighing the same."""
    federation, base = setting.federation, setting.base.eval()
    groups = setting.experiment.groups.assign(setting.class_counts)
    parts = [federation.client(k) for k in range(len(federation))]
    pairs = [part.batch(torch.arange(len(part))) for part in parts]
    x_test, y_test = federation.test_batch(0, len(setting.dataset.test))
    with torch.no_grad():
        features = torch.cat([base.features(x) for x, _ in pairs]).numpy()
        unseen = base.features(x_test).numpy()
    labels = torch.cat([y for _, y in pairs]).numpy()
    head = LogisticRegression(class_weight="balanced", max_iter=2000).fit(features, labels)
    right = head.predict(unseen) == y_test.numpy()
    per_class = [float(right[y_test.numpy() == c].mean()) for c in range(federation.num_classes)]
    few = float(np.mean([per_class[c] for c in groups["few"]]))
    return {"per_class": per_class, "few": few}


def _over_seeds(each: Sequence[Plain]) -> dict[str, Any]:
    by_class = [[100 * share for share in one["per_class"]] for one in each]
    found: dict[str, Any] = {
        "balanced_accuracy": summary([float(np.mean(values)) for values in by_class]),
        "few": summary([100 * one["few"] for one in each]),
        "per_class": _means(by_class, 2),
    }
    if "rows" in each[0]:
        found["row_lengths"] = _means([one["rows"] for one in each], 3)
    return found


def _means(rows: Sequence[Sequence[float]], digits: int) -> list[float]:
    return [round(float(value), digits) for value in np.mean(rows, axis=0)]


def draw_split(numbers: Plain) -> Figure:
    """Draw how many samples each class has, and who has them."""
    counts = np.array(numbers["clients_x_classes_seed_0"])
    figure = new_figure(7.6, 3.4)
    bars, cells = figure.subplots(1, 2, width_ratios=(1, 1.25))
    bars.bar(range(counts.shape[1]), counts.sum(axis=0), color="tab:blue")
    bars.set(title="the tail: samples of each class", xlabel="class", ylabel="samples")
    bars.set_xticks(range(counts.shape[1]))
    cells.imshow(np.log2(1 + counts), cmap="Blues", aspect="auto")
    for (client, c), count in np.ndenumerate(counts):
        if count:
            dark = np.log2(1 + count) > 0.6 * np.log2(1 + counts.max())
            colour = "white" if dark else "black"
            cells.text(c, client, count, ha="center", va="center", fontsize=6, color=colour)
    cells.set(title="the skew: who has them", xlabel="class", ylabel="client")
    cells.set_xticks(range(counts.shape[1]))
    cells.set_yticks(range(0, counts.shape[0], 2))
    return figure


def draw_classes(numbers: Plain) -> Figure:
    """Draw accuracy by class in the three worlds and with remedies, and the classifier."""
    figure = new_figure(7.6, 6.4)
    (worlds, lengths), (features, remedies) = figure.subplots(2, 2)
    runs = numbers["runs"]
    _curves(worlds, runs, list(WORLDS), "per_class")
    worlds.set(title="where it is lost", ylabel="accuracy in percent")
    _curves(lengths, runs, [FEDAVG, next(iter(REMEDIES))], "row_lengths")
    lengths.set(title="rows of the classifier", ylabel="length over the mean", ylim=(0, None))
    _curves(features, runs, [FEDAVG, REFITTED], "per_class")
    features.set(title="features or classifier?", ylabel="accuracy in percent")
    _curves(remedies, runs, [FEDAVG, *REMEDIES], "per_class")
    remedies.set(title="what methods do", ylabel="accuracy in percent")
    return figure


def _curves(axes: Axes, runs: Plain, titles: Sequence[str], key: str) -> None:
    every = [*WORLDS, *REMEDIES]
    for title in titles:
        colour = COLOURS[every.index(title)] if title in every else "tab:cyan"
        values = runs[title][key]
        axes.plot(range(len(values)), values, "o-", color=colour, ms=3, label=title)
    axes.set_xticks(range(len(runs[titles[0]][key])))
    axes.set_xlabel("class, from frequent to rare")
    if key == "per_class":
        axes.set_ylim(0, 103)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=7, loc="lower left")


def main(words: Sequence[str] | None = None) -> None:
    """Measure, save, draw."""
    parser = arguments(__doc__, DEMO)
    parser.add_argument("--rounds", type=int, help="rounds of a run; by default the protocol's")
    chosen = parser.parse_args(words)
    last = chosen.rounds or read_protocol(Path(chosen.protocol))["rounds"]
    protocol = read_protocol(Path(chosen.protocol), rounds=chosen.rounds, eval_every=last)
    numbers = measure(protocol, chosen.seeds)
    publish("federated_tail", numbers, draw_split(numbers), chosen.out)
    save_picture("federated_tail_classes", draw_classes(numbers), chosen.out)


if __name__ == "__main__":
    main()
