"""The stand-alone FedAvg does what fedtail's does, and learns."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedtail.training import weighted_mean

FILE = Path(__file__).parents[2] / "examples" / "fedavg.py"
fedavg: Any = SimpleNamespace(**runpy.run_path(str(FILE), run_name="fedavg"))


def test_the_average_is_weighted_by_samples() -> None:
    # (1 * 4 + 3 * 0) / 4 = 1 and (1 * 0 + 3 * 8) / 4 = 6.
    uploads = [{"w": torch.tensor([4.0, 0.0])}, {"w": torch.tensor([0.0, 8.0])}]
    found = fedavg.average(uploads, [1, 3])
    assert found["w"].tolist() == [1.0, 6.0]
    torch.testing.assert_close(found, weighted_mean(uploads, [1, 3]))


def test_every_sample_is_with_one_client() -> None:
    y = torch.arange(100) % 10
    parts = fedavg.share_out(y, np.random.default_rng(0))
    assert len(parts) == fedavg.CLIENTS
    assert sorted(torch.cat(parts).tolist()) == list(range(100))


def test_a_client_goes_on_from_what_it_received_and_leaves_that_alone() -> None:
    model = fedavg.make_model()
    w = {name: torch.zeros_like(t) for name, t in model.state_dict().items()}
    sent = fedavg.train(model, w, (torch.ones(1, 64), torch.tensor([3])))
    # With all weights 0 the logits are 0 and only the last bias has a gradient: softmax - onehot.
    # Two epochs of one batch with rate 0.1: class 3 rises, the nine others fall alike.
    assert all(not t.any() for t in w.values())
    bias = sent["2.bias"]
    first = 0.1 * (1 - 0.1)
    p = np.exp(first) / (np.exp(first) + 9 * np.exp(-0.1 * 0.1))
    assert float(bias[3]) == pytest.approx(first + 0.1 * (1 - p), abs=1e-6)
    assert float(bias[0]) == pytest.approx(-0.01 - 0.1 * (1 - p) / 9, abs=1e-6)
    assert not sent["0.weight"].any()


def test_it_learns(capsys: pytest.CaptureFixture[str]) -> None:
    found = fedavg.main()
    assert float(found.mean()) > 0.7
    assert len(capsys.readouterr().out.splitlines()) == fedavg.ROUNDS
