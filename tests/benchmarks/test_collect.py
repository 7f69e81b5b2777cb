"""Results of a comparison as a small file: a real comparison of two rounds, gathered."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from command_line import fedtail

from benchmarks.real.collect import collected, main
from benchmarks.real.mitbih import with_rhythm
from fedtail.described import make_experiment
from fedtail.errors import FedtailError

PROTOCOLS = sorted((Path(__file__).parents[2] / "benchmarks" / "real").glob("*.toml"))


@pytest.mark.parametrize("path", PROTOCOLS, ids=lambda path: path.stem)
def test_the_protocols_are_valid(path: Path) -> None:
    experiment = make_experiment(tomllib.loads(path.read_text()))
    # All clients in FedLC's own setting, which has no long tail.
    assert experiment.per_round == {"fedlc_skew": None, "digits_skew": 4}.get(path.stem, 8)
    assert experiment.rounds % experiment.eval_every == 0


def test_a_comparison_becomes_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, to = tmp_path / "digits", tmp_path / "results"
    words = ["compare", "--seeds", "2", "--clients", "3", "--rounds", "1", "--out", str(out)]
    command = [*words, "--method", "fedavg", "--method", "fedlc,tau=2"]
    # The run notes sys.argv as its command; in this process it has to be put there.
    monkeypatch.setattr(sys, "argv", ["fedtail", *command])
    assert fedtail(*command).code == 0
    with patch.object(sys, "argv", ["collect", str(out), "--to", str(to)]):
        main()
    found = json.loads((to / "digits.json").read_text())
    assert [line["method"] for line in found["methods"]] == ["fedavg", "fedlc,tau=2"]
    assert found["commands"] == [
        "fedtail compare --seeds 2 --clients 3 --rounds 1 --out runs/digits"
        " --method fedavg --method fedlc,tau=2"
    ]
    fedavg = found["methods"][0]
    assert len(fedavg["per_class"]) == 10
    mean = fedavg["scores"]["balanced_accuracy"]["mean"]
    assert sum(fedavg["per_class"]) / 10 == pytest.approx(mean, abs=1e-4)
    assert f"| `fedavg` | {100 * fedavg['scores']['accuracy']['mean']:.1f} ± " in (
        capsys.readouterr().out
    )


def test_an_unfinished_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match="is the comparison finished"):
        collected(tmp_path)


def test_a_beat_is_seen_with_its_rhythm() -> None:
    # Patient 1's intervals are 80, 100, 100, 150: median 100. Patient 2's are 50 and 50.
    rhythm = np.array([[80, 100], [100, 150], [50, 50]])
    windows = with_rhythm(np.array([[100, -50]] * 3), rhythm, np.array([1, 1, 2]))
    assert windows.shape == (3, 2, 3)
    assert windows[0, :, 0].tolist() == [1.0, -0.5]
    # 2 (80 / 100 - 1) = -0.4, at every step; 2 (150 / 100 - 1) = 1; a steady pulse is 0.
    np.testing.assert_allclose(windows[0, :, 1], -0.4, rtol=1e-6)
    np.testing.assert_allclose(windows[1, :, 2], 1.0)
    assert not windows[2, :, 1:].any()
