"""`fedtail flower new`: what it writes runs, in this process and (slow) by `flwr run`."""

from __future__ import annotations

import sys
import tempfile
import time
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from command_line import fedtail, one_sentence
from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict
from local_grid import LocalGrid

from fedtail.callbacks import read_records
from fedtail.engines.flower.status import StatusFiles
from fedtail.engines.flower.superlink import FlowerProcesses


@pytest.mark.parametrize("private", [False, True])
def test_the_app_runs(private: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--method", "fedavg", *(["--epsilon", "8", "--secure"] if private else [])]
    assert fedtail("flower", "new", "my-first-app", *words).code == 0
    folder = tmp_path / "my-first-app"
    config: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())
    parts = config["tool"]["flwr"]["app"]["components"]
    assert parts["serverapp"] == "my_first_app.server_app:app"
    monkeypatch.syspath_prepend(str(folder))
    client_app = import_module("my_first_app.client_app")
    server_app = import_module("my_first_app.server_app")
    more = {"num-partitions": 3, "state-dir": str(tmp_path / "states")}
    grid = LocalGrid(client_app.app, 3, **more)
    flat = flatten_dict(config["tool"]["flwr"]["app"]["config"])  # as Flower gives it
    numbers: dict[str, Any] = {**flat, "rounds": 2, "threads": 1}
    server_app.main(grid, Context(1, 0, {}, RecordDict(), numbers))
    records = read_records(tmp_path / "my-first-app-run" / "metrics.jsonl")
    budgets = [record.get("privacy", {}).get("budget") for record in records]
    assert budgets == ([8.0, 8.0] if private else [None, None])
    for name in [name for name in sys.modules if name.startswith("my_first_app")]:
        del sys.modules[name]


def test_a_folder_that_holds_something_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "mine.txt").touch()
    assert "not an empty folder" in one_sentence(fedtail("flower", "new", "app"))
    assert "cannot be the name" in one_sentence(fedtail("flower", "new", "1 app"))
    wrong = one_sentence(fedtail("flower", "new", "other", "--method", "cref"))
    assert "did you mean 'creff'" in wrong
    assert "epsilon" in one_sentence(fedtail("flower", "new", "other", "--epsilon", "-1"))
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("flower")
def test_flwr_run_accepts_it_on_a_real_federation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fedtail("flower", "new", "app", "--epsilon", "8").code == 0
    out = tmp_path / "run"
    with tempfile.TemporaryDirectory(prefix="fedtail-") as home:
        federation = FlowerProcesses(Path(home), tmp_path)
        try:
            federation.open()
            for partition in range(3):
                federation.add_node(partition, 3)
            federation.submit(tmp_path / "app", "-c", f'rounds=1 out="{out}"')
            until = time.monotonic() + 500
            while not (said := StatusFiles(out).read()).get("ended"):
                assert time.monotonic() < until, (tmp_path / "superlink.log").read_text()
                time.sleep(0.5)
        finally:
            federation.close()
    assert said["ended"] == "well", said
    (record,) = read_records(out / "metrics.jsonl")
    assert record["clients"] == [0, 1, 2]
    assert record["privacy"]["epsilon"] <= 8.0
    assert (out / "model.safetensors").exists()
