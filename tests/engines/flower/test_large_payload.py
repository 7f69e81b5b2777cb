"""100 classes x 100 x 256 floats and a model of 25 million parameters travel and return."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from real import running

from benchmarks.flower_overhead import largest_memory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.xdist_group("flower")]

PLUGIN = '''
"""Clients whose updates are as large as they get."""

from dataclasses import replace

import torch

from fedtail import FedAvg, Like, Method


@Method.register("bulky")
class Bulky(FedAvg):
    """FedAvg with class-wise extras in both directions."""

    family = "test"
    paper = "none"

    def broadcast(self, s, server):
        payload = super().broadcast(s, server)
        return replace(payload, tensors={**payload.tensors, "extra/x": torch.ones(100, 100, 256)})

    def reply(self, run):
        payload = super().reply(run)
        extra = run.payload.tensors["extra/x"] * (1 + run.client.id)
        return replace(payload, tensors={**payload.tensors, "extra/x": extra})

    def train_form(self, task, model, classes):
        extra = {"x": Like((100, 100, 256))}
        whole = super().train_form(task, model, classes).group("extra", extra)
        return whole.singly("the test looks at each")

    def aggregate(self, s, found, server):
        for update in found.each:
            extra = update.payload.tensors["extra/x"]
            assert torch.equal(extra, torch.full((100, 100, 256), 1.0 + update.client))
        return super().aggregate(s, found, server)
'''


def test_large_updates_travel_and_return(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bulky.py").write_text(PLUGIN)
    words = ["run", "--method", "bulky", "--plugin", str(tmp_path / "bulky.py"), "--clients", "2"]
    # 64 * 5000 + 5000 * 4900 + 4900 * 10 weights and the biases: 24.9 million.
    words += ["--model", "mlp", "model.hidden=[5000,4900]", "--rounds", "1", "--batch-size", "500"]
    here, there = tmp_path / "here", tmp_path / "there"
    with running(here, *words, "--out", str(here)) as embedded:
        assert embedded.end(300) == 0, embedded.output
    on = ["--engine", "flower", "--nodes", "2", "--deadline", "600"]
    with (
        running(there, *words, *on, "--out", str(there)) as run,
        largest_memory(run.process.pid) as memory,
    ):
        assert run.end(900) == 0, run.output
    assert run.digest() == embedded.digest()
    line = json.loads((there / "flower" / "exchanges.jsonl").read_text())
    assert line["bytes_up"] > 2 * (24_800_000 + 2_560_000) * 4
    with capsys.disabled():
        print(
            f"\n{line['bytes_up'] / 2e6:.0f} MB a client and direction: {line['seconds']:.0f} s, "
            f"{max(memory) / 1e9:.1f} GB in all processes"
        )
