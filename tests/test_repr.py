"""What an interpreter shows fits on a screen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tiny
import torch
from torch import nn

from fedtail import Arrays, Experiment, run


def test_a_result_is_a_few_short_lines(tmp_path: Path) -> None:
    result = run(tiny.experiment(rounds=2), out=tmp_path / "run")
    first, scores, model, folder = repr(result).splitlines()
    assert first == "Result of 2 rounds"
    assert scores.startswith(f"  scores  accuracy {result.metrics['accuracy']:.4f}, many ")
    assert model.endswith(f" numbers, digest {result.digest[:16]}")
    assert folder == f"  folder  {tmp_path / 'run'}"
    assert max(map(len, (first, scores, model))) <= 80


def test_large_arrays_and_networks_do_not_show_themselves() -> None:
    x, y = np.zeros((5000, 4), np.float32), np.arange(5000) % 2
    names = tuple(f"patient {k}" for k in range(5000))
    data = Arrays(x, torch.tensor(y), x, y, client_train=np.arange(5000), clients=names)
    network = nn.Sequential(*(nn.Linear(4, 4) for _ in range(200)), nn.Linear(4, 2))
    assert len(repr(data)) < 300
    experiment = repr(Experiment(data=data, model=network))
    assert len(experiment) < 2500
    assert "model=<class 'torch.nn.modules.container.Sequential'>" in experiment
