from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import blobs
import numpy as np
import pytest
from command_line import fedtail

from fedtail import Arrays, Diagnosis, Experiment, FedtailError, doctor
from fedtail.described import load_experiment, make_experiment
from fedtail.diagnosis.doctor import enough, probe_of
from fedtail.diagnosis.rules import READINGS, RULES, decide
from fedtail.setting import prepare

ROOT = Path(__file__).parents[2]


@cache
def found(imbalance: float = 1.0, alpha: float = 100.0, **fields: Any) -> Diagnosis:
    return doctor(blobs.experiment(imbalance, alpha, **fields), rounds=2)


def verdict(diagnosis: Diagnosis, key: str) -> str:
    return diagnosis.signals[key].verdict


def value(diagnosis: Diagnosis, key: str) -> float:
    found = diagnosis.signals[key].estimate.value
    assert found is not None
    return found


@pytest.mark.parametrize("alpha", [0.1, 1, 100])
@pytest.mark.parametrize("imbalance", [1, 10, 100])
def test_a_known_tail_and_a_known_skew(imbalance: float, alpha: float) -> None:
    diagnosis = found(imbalance, alpha)
    # What is left in training is counted exactly: all clients were asked.
    federation = prepare(probe_of(blobs.experiment(imbalance, alpha), 2)).federation
    counts = federation.class_counts().numpy()
    held = counts[counts > 0]
    assert value(diagnosis, "tail") == pytest.approx(held.max() / held.min())
    tables = np.stack([federation.counts(k).numpy() for k in range(len(federation))])
    assert value(diagnosis, "missing") == pytest.approx(1 - (tables[:, counts > 0] > 0).mean())
    assert value(diagnosis, "coverage") == pytest.approx((tables > 0).mean(0)[counts > 0].min())
    # 1 / (α C + 1) = 0.5, 0.091, 0.001, up to the draw of 24 clients: a share of variance that is
    # estimated from 24 has a relative deviation of about √(2/23) = 0.3.
    expected = 1 / (alpha * blobs.CLASSES + 1)
    assert value(diagnosis, "skew") == pytest.approx(expected, abs=0.02 + 0.6 * expected)
    if alpha != 1:
        assert verdict(diagnosis, "skew") == ("yes" if alpha == 0.1 else "no")
    if alpha != 0.1:  # at 0.1, 24 draws of almost one class each make a tail of their own
        assert verdict(diagnosis, "tail") == ("yes" if imbalance > 1 else "no")
    assert verdict(diagnosis, "shift") != "yes"


def test_what_follows() -> None:
    assert found(1, 100).method == "fedavg"
    assert found(100, 0.1).method == "slac"
    assert found(10, 100).method == "slac"


def test_the_same_over_seeds() -> None:
    chosen = {found(10, 100, seed=seed).method for seed in range(4)}
    assert chosen == {"slac"}


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_wrong_labels_are_errors_of_the_surest(noise: float) -> None:
    diagnosis = found(1, 100, noise=noise)
    # Classes lie far apart, so that only a wrong label makes an error: as many as there are, in
    # about 1440 · 0.2 / 2 = 144 samples, whose deviation is √(0.3 · 0.7 / 144) = 0.04.
    assert value(diagnosis, "labels") == pytest.approx(noise, abs=0.12 if noise else 0.01)
    assert verdict(diagnosis, "labels") == ("yes" if noise else "no")
    assert any("labels" in said for said in diagnosis.because) == bool(noise)


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_inputs_that_differ_by_client(shift: float) -> None:
    diagnosis = found(1, 100, shift=shift)
    assert verdict(diagnosis, "shift") == ("yes" if shift else "no")
    assert diagnosis.rule == (2 if shift else 3)
    # A network without BatchNorm has no statistics that a client could keep.
    assert diagnosis.method == "fedavg"


def test_a_head_alone_is_trained_and_computed() -> None:
    linear = {"name": "mlp", "hidden": []}
    diagnosis = doctor(blobs.experiment(10, 1, model=linear), rounds=2)
    assert diagnosis.methods[:2] == ("slac", "closed-form")
    assert diagnosis.signals["drift_body"].verdict == "unknown"
    # A round: the model down and up, with the share of each class and two numbers. At the end: C
    # counts down; up 2 C counts, (C + 2) d sums and d (d + 1) / 2 products; two heads to choose a
    # mixture of. That is 3,056 bytes, and a round has models of 1,040: three rounds are saved.
    c, d = blobs.CLASSES, blobs.WIDTH
    model = 4 * (c * d + c)
    once = 8 * c + 16 * c + 8 * ((c + 2) * d + d * (d + 1) // 2) + 2 * model
    assert (once, 2 * model) == (3056, 1040)
    assert diagnosis.bytes == blobs.CLIENTS * ((20 - 3) * (2 * model + 4 * c + 16) + once)


def test_the_cost_of_rounds() -> None:
    diagnosis = doctor(blobs.experiment(1, 100, rounds=30, per_round=6), rounds=1)
    assert diagnosis.method == "fedavg"
    c, d, h = blobs.CLASSES, blobs.WIDTH, 16
    model = 4 * (d * h + h + h * c + c)
    # Up come the numbers of samples and of steps, too.
    assert diagnosis.bytes == 30 * 6 * (2 * model + 16)
    assert diagnosis.seconds > 0


def test_few_clients_are_not_enough_signal() -> None:
    y, owner = np.tile(np.arange(3), 20), np.repeat([0, 1, 2], 20)
    x = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
    data = Arrays(x, y, x[:6], y[:6], client_train=owner, normalisation="none")
    diagnosis = doctor(Experiment(data=data, partition="natural", workers=0), rounds=2)
    assert diagnosis.probe["groups"] == 1
    assert verdict(diagnosis, "tail") == "no"
    assert verdict(diagnosis, "shift") == "unsure"
    assert "not enough signal" in str(diagnosis)
    # With a shift, rule 2 would apply, but leads to the same method here.
    assert set(diagnosis.doubts) <= {"shift"}


def test_workers_and_secure_sums_say_the_same() -> None:
    here = found(10, 1)
    pooled = doctor(blobs.experiment(10, 1, workers=2), rounds=2)
    assert without_time(pooled) == without_time(here)
    hidden = doctor(blobs.experiment(10, 1, secure=True), rounds=2)
    assert hidden.method == here.method
    for key, signal in here.signals.items():
        assert hidden.signals[key].verdict == signal.verdict
        assert hidden.signals[key].estimate.value == pytest.approx(signal.estimate.value, abs=1e-2)


def without_time(diagnosis: Diagnosis) -> dict[str, Any]:
    plain = diagnosis.to_json()
    plain["probe"] = {k: v for k, v in plain["probe"].items() if k != "seconds"}
    return {k: v for k, v in plain.items() if k != "seconds"}


def test_the_toml_can_be_run() -> None:
    assert "[method]" in found(10, 100).toml
    assert 'name = "slac"' in found(10, 100).toml
    assert found(10, 100).words == ["--method", "slac", "validation.share=0.1"]


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: doctor(blobs.experiment(privacy={"epsilon": 8})), "leave out privacy.epsilon"),
    (lambda: doctor(blobs.experiment(), rounds=0), "rounds"),
]


@pytest.mark.parametrize(("call", "said"), REFUSED)
def test_wrong_input_is_one_sentence(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(FedtailError, match=said):
        call()


def test_how_many_clients_see_a_rare_class() -> None:
    # One holder of ten: nine of ten rounds of nine clients. Five holders of ten: of three clients
    # none is a holder with 10 / 120, of two with 10 / 45.
    assert enough(0.1, 2, 10) == 9
    assert enough(0.5, 2, 10) == 3
    assert enough(1.0, 2, 10) == 2


def test_rules_come_in_order() -> None:
    none = dict.fromkeys([r.key for r in READINGS], False) | {"frozen": False}
    assert RULES[decide(none)].methods == ("fedavg",)
    assert decide(none) == 2
    assert decide({**none, "shift": True}) == 1
    assert decide({**none, "skew": True}) == 0
    assert decide({**none, "shift": True, "missing": True}) == 0  # words by speaker
    assert decide({**none, "tail": True, "frozen": True, "head": True}) == 3
    assert decide({**none, "tail": True, "head": True, "missing": True}) == 4
    assert decide({**none, "tail": True, "missing": True}) == 5
    assert decide({**none, "tail": True, "shift": True}) == 6


def test_the_page_has_every_threshold() -> None:
    page = (ROOT / "docs" / "how-to" / "doctor.md").read_text(encoding="utf-8")
    for reading in READINGS:
        rows = [row for row in page.splitlines() if row.startswith("|")]
        (line,) = [row for row in rows if f"`{reading.key}`:" in row]
        if reading.threshold is not None:
            shown = 100 * reading.threshold if reading.unit == "%" else reading.threshold
            assert f" {shown:g}" in line
    for rule in RULES:
        assert all(f"`{words}`" in page for words in rule.methods)


# The command


def test_the_command_and_its_folder(tmp_path: Path) -> None:
    out = tmp_path / "probe"
    flags = ["--imbalance", "20", "--alpha", "0.3", "--clients", "8", "--lr", "0.1"]
    result = fedtail("doctor", *flags, "--rounds", "9", "--probe", "1", "--out", str(out))
    assert result.code == 0
    assert "What is wrong" in result.out
    assert "What it costs" in result.out
    line = next(li for li in result.out.splitlines() if li.startswith("Run it: "))
    assert line.startswith("Run it: fedtail run --imbalance 20.0 --alpha 0.3 --clients 8")
    planned = make_experiment(load_experiment(out / "recommended.toml"))
    assert planned.rounds == 9
    assert f"--method {planned.method.name}" in line
    page = (out / "doctor.html").read_text(encoding="utf-8")
    assert "Content-Security-Policy" in page
    assert "a long tail" in page
    assert json.loads((out / "doctor.json").read_text())["method"] == planned.method.name


def test_the_command_as_json(tmp_path: Path) -> None:
    out = str(tmp_path / "probe")
    result = fedtail("doctor", "--probe", "1", "--clients", "4", "--json", "--out", out)
    assert result.code == 0
    told = json.loads(result.out)
    assert {s["id"] for s in told["signals"]} == {f"D{n}" for n in range(1, 12)}
    assert told["command"].startswith("fedtail run --clients 4 --method ")


def test_the_command_has_no_fields_of_the_method_that_was_planned(tmp_path: Path) -> None:
    planned = ["method=fedlc", "method.tau=0.5", "method.local.momentum=0.5"]
    out = ["--out", str(tmp_path / "probe")]
    result = fedtail("doctor", "--probe", "1", "--clients", "4", "--json", *planned, *out)
    assert result.code == 0, result.err
    _, verb, *words = shlex.split(json.loads(result.out)["command"])
    assert words[0] == "method.local.momentum=0.5"
    assert not any("fedlc" in word or "tau" in word for word in words)
    done = fedtail(verb, *words, "--rounds", "1", "--out", str(tmp_path / "run"))
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--probe", "0"], "probe"),
        (["nothing.toml"], "cannot read 'nothing.toml'"),
        (["--clients", "-1"], "clients"),
        (["--nodes", "3"], "--nodes is of --engine flower"),
        (["method.lr=0.1"], "did you mean"),
    ],
)
def test_a_wrong_command_is_one_sentence(words: list[str], said: str, tmp_path: Path) -> None:
    out = tmp_path / "probe"
    result = fedtail("doctor", *words, "--out", str(out))
    assert result.code == 2
    assert said in result.err
    assert "Traceback" not in result.err
    assert not out.exists()
