"""The scripts behind the figures, on a federation of a few seconds."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.figures import (
    balancefl_ablation,
    creff_dissimilarity,
    federated_tail,
    fedlc_local,
    gbme_proxy,
    redgrape_heads,
)
from benchmarks.figures.common import experiment, read_protocol
from benchmarks.results_file import readable
from fedtail import run
from fedtail.setting import prepare

PROTOCOL = """
clients = 4
rounds = 2
[data]
name = "digits"
[tail]
name = "exponential"
imbalance = 10
n_max = 40
[method.local]
lr = 0.3
batch_size = 8
"""


@pytest.fixture
def protocol(tmp_path: Path) -> Path:
    path = tmp_path / "protocol.toml"
    path.write_text(PROTOCOL)
    return path


def made(figure: ModuleType, protocol: Path, *words: str, file: str | None = None) -> Any:
    """Run a script as the command line does, and return the numbers that it saved."""
    name, out = figure.__name__.rpartition(".")[2], protocol.parent / "out"
    file = file or name
    figure.main(["--protocol", str(protocol), "--out", str(out), *words])
    picture = (out / "figures" / f"{file}.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 100_000
    saved = json.loads((out / "figures" / f"{file}.json").read_text())
    assert saved["environment"]["command"].startswith(f"python -m benchmarks.figures.{name}")
    return saved["numbers"]


def test_creff_has_a_curve_for_each_class(protocol: Path) -> None:
    few = "[method]\nfeatures = 8\nmatch_steps = 10\nhead_epochs = 2\n[method.local]"
    protocol.write_text(PROTOCOL.replace("[method.local]", few))
    found = made(creff_dissimilarity, protocol, "--seeds", "1", "--rounds", "2")

    history = run(experiment(read_protocol(protocol), 0, {"name": "creff"})).history
    curves = found["by_seed_class_round"][0]
    assert [len(curve) for curve in curves] == [3] * 10
    # The mean of the classes is what the method itself logs.
    logged = [record["method"]["dissimilarity_after"] for record in history]
    logged.insert(0, history[0]["method"]["dissimilarity_before"])
    assert found["mean_over_classes"] == pytest.approx(logged, abs=1e-4)
    assert found["worst_class"][1] == max(curve[1] for curve in curves)


def test_one_client_alone_and_all_averaged_start_from_the_same_model(protocol: Path) -> None:
    found = made(fedlc_local, protocol, "--seeds", "1", "--rounds", "2")["methods"]

    chosen = experiment(read_protocol(protocol, rounds=2), 0, {"name": "fedavg"})
    tested = run(chosen).metrics["per_class"]
    groups = fedlc_local.by_group(prepare(chosen).split.counts, [tested] * 4)
    for stages in found.values():
        before = {group: each["mean"] / 100 for group, each in stages["before"].items()}
        assert before == pytest.approx(groups, abs=1e-5)
    assert found["FedAvg"]["after a local update"] != found["FedLC"]["after a local update"]
    assert found["FedAvg"]["after averaging"] != found["FedAvg"]["before"]


def test_classes_are_frequent_rare_or_missing_by_a_clients_own_counts() -> None:
    # Means of the present: (6 + 2) / 2 = 4 and 3. Client 0: 6 is frequent, 2 rare, 0 missing;
    # client 1: 3 is frequent, the others are missing.
    counts = np.array([[6, 2, 0], [3, 0, 0]])
    found = fedlc_local.by_group(counts, [[0.9, 0.5, 0.1], [0.7, 0.3, 0.2]])
    assert found == pytest.approx({"frequent": 0.8, "rare": 0.5, "missing": 0.2})


def test_redgrape_is_run_with_and_without_the_second_head(protocol: Path) -> None:
    found = made(redgrape_heads, protocol, "--seeds", "1", "--rounds", "4")["methods"]

    plain = read_protocol(protocol, rounds=4)
    last = run(experiment(plain, 0, {"name": "redgrape"})).metrics
    curves = {name: each["curves"] for name, each in found.items()}
    assert curves["with the second head"]["accuracy"][0][-1] == round(100 * last["accuracy"], 2)
    assert found["with the second head"]["last_round"]["few"]["mean"] == pytest.approx(
        100 * last["few"], abs=1e-3
    )
    assert curves["with the second head"] != curves["without it"] != curves["FedAvg"]


def test_the_noisy_proxy_is_that_of_a_run(protocol: Path) -> None:
    found = made(gbme_proxy, protocol, "--seeds", "1", "--epsilons", "5", "100")

    plain = read_protocol(protocol)
    prior = {"name": "private_proxy", "index": "epoch", "reads": "rows", "epsilon": 5.0}
    state = run(experiment(plain, 0, {"name": "gbme-p", "prior": prior})).state
    omega, _ = gbme_proxy.proxies(gbme_proxy.survey(plain, 0), 5.0)
    assert torch.equal(omega, state.omega)
    assert [row["epsilon"] for row in found["cosines"]] == ["inf", "100.0", "5.0"]
    # Shares of 40, 30, 23, ... samples: the first class has most.
    assert max(found["shares_seed_0"]["true"]) == found["shares_seed_0"]["true"][0]


def test_the_ablation_ends_at_fedavg(protocol: Path) -> None:
    words = ("--seeds", "1", "--rounds", "2", "--last", "2", "--domains", "paper", "code")
    found = made(balancefl_ablation, protocol, *words, file=protocol.stem)

    history = run(experiment(read_protocol(protocol), 0, {"name": "fedavg"})).history
    mean = 100 * (history[0]["accuracy"] + history[1]["accuracy"]) / 2
    for domain in ("code", "paper"):
        rows = found["rows"][domain]
        assert rows["none (FedAvg)"]["accuracy"]["mean"] == pytest.approx(mean, abs=1e-3)
        # The steps lead from the first row to the last.
        total = sum(step["mean"] for step in found["steps"][domain].values())
        ends = [rows[row]["accuracy"]["mean"] for row in ("all four", "none (FedAvg)")]
        assert total == pytest.approx(ends[0] - ends[1], abs=1e-3)


def test_the_tail_is_measured_by_class(protocol: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    title, remedy = next(iter(federated_tail.REMEDIES.items()))
    monkeypatch.setattr(federated_tail, "REMEDIES", {title: remedy})  # the others take longer
    found = made(federated_tail, protocol, "--seeds", "1", "--rounds", "2")

    counts = found["clients_x_classes_seed_0"]
    assert [sum(column) for column in zip(*counts, strict=True)][::9] == [40, 4]
    plain = read_protocol(protocol)
    fedavg = run(experiment(plain, 0, {"name": "fedavg"})).metrics
    told = found["runs"][federated_tail.FEDAVG]
    assert told["per_class"] == [round(100 * share, 2) for share in fedavg["per_class"]]
    assert sum(told["row_lengths"]) == pytest.approx(10, abs=0.01)
    # A classifier that is fitted to balanced samples finds classes that two rounds have not.
    assert found["runs"][federated_tail.REFITTED]["few"]["mean"] > told["few"]["mean"]
    assert (protocol.parent / "out" / "figures" / "federated_tail_classes.png").stat().st_size


@pytest.mark.parametrize(
    ("path", "method"),
    [
        (balancefl_ablation.PROTOCOL, "balancefl"),
        (balancefl_ablation.PROTOCOL.with_stem("balancefl_ablation_fashion"), "balancefl"),
        (gbme_proxy.PROTOCOL, "gbme-p"),
    ],
    ids=lambda value: getattr(value, "stem", value),
)
def test_a_protocol_is_an_experiment(path: Path, method: str) -> None:
    plain = read_protocol(path)
    assert experiment(plain, 3, {"name": method}).clients == plain["clients"]


def test_lists_of_numbers_stay_on_one_line() -> None:
    plain = {"a": [1, 2.5, None], "b": [[1, 2], [3]], "c": ["x [y]", "z"], "d": []}
    text = readable(plain)
    assert json.loads(text) == plain
    assert '"a": [ 1, 2.5, null ]' in text
