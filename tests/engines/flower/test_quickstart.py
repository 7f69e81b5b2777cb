"""Five added lines turn an app like Flower's PyTorch quickstart into CReFF, as the page shows."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tomli_w
from flwr.app import Context, RecordDict
from local_grid import LocalGrid

from fedtail.engines.flower.superlink import FlowerProcesses
from fedtail.state import digest
from fedtail.tensors import unpack_tensors

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "flower.md"
CONFIG = {
    "num-server-rounds": 2,
    "fraction-evaluate": 1.0,
    "learning-rate": 0.1,
    "local-epochs": 1,
    "batch-size": 16,
}

TASK = """
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.fc = nn.Linear(6 * 3 * 3, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.fc(x.flatten(1))


class Digits(Dataset):
    def __init__(self, begin, step):
        digits = load_digits()
        self.x = torch.tensor(digits.images / 16, dtype=torch.float32)[begin:300:step, None]
        self.y = digits.target[begin:300:step].tolist()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"img": self.x[i], "label": self.y[i]}


def load_data(partition_id, num_partitions, batch_size):
    data = Digits(partition_id, num_partitions)
    return DataLoader(data, batch_size, shuffle=True), DataLoader(data, batch_size)


def train(net, loader, epochs, lr, device):
    raise NotImplementedError("replaced")


def test(net, loader, device):
    hits = sum(int((net(b["img"]).argmax(1) == b["label"]).sum()) for b in loader)
    return 0.0, hits / len(loader.dataset)
"""

SERVER = """
import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from pytorchexample.task import Net
from safetensors.torch import save_file

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    fraction_evaluate: float = context.run_config["fraction-evaluate"]
    num_rounds: int = context.run_config["num-server-rounds"]
    lr: float = context.run_config["learning-rate"]
    torch.manual_seed(0)
    global_model = Net()
    arrays = ArrayRecord(global_model.state_dict())
    strategy = FedAvg(fraction_evaluate=fraction_evaluate)
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": lr}),
        num_rounds=num_rounds,
    )
    out = Path(context.run_config["out"])
    save_file(result.arrays.to_torch_state_dict(), out / "model.safetensors")
    metrics = [dict(result.train_metrics_clientapp[2]), dict(result.evaluate_metrics_clientapp[2])]
    (out / "metrics.json").write_text(json.dumps(metrics))
"""

CLIENT = """
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from pytorchexample.task import Net, load_data
from pytorchexample.task import test as test_fn
from pytorchexample.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    device = torch.device("cpu")
    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    batch_size = context.run_config["batch-size"]
    trainloader, _ = load_data(partition_id, num_partitions, batch_size)
    train_loss = train_fn(
        model,
        trainloader,
        context.run_config["local-epochs"],
        msg.content["config"]["lr"],
        device,
    )
    raise NotImplementedError("the reply of the app, which is not reached")


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    _, valloader = load_data(partition_id, num_partitions, context.run_config["batch-size"])
    _, accuracy = test_fn(model, valloader, torch.device("cpu"))
    metrics = MetricRecord({"eval_acc": accuracy, "num-examples": len(valloader.dataset)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
"""


def diffs() -> list[str]:
    return re.findall(r"```diff\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def changed(source: str, diff: str) -> str:
    """Return the source with each hunk of a diff applied at the first place that it fits."""
    for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE):
        lines = hunk.strip("\n").split("\n")
        old = "".join(f"{line[1:]}\n" for line in lines if line[0] != "+")
        new = "".join(f"{line[1:]}\n" for line in lines if line[0] != "-")
        assert f"\n{old}" in source, old
        source = source.replace(f"\n{old}", f"\n{new}", 1)
    return source


def sources() -> dict[str, str]:
    """Return the app's modules, changed as the page says."""
    server_diff, client_diff = diffs()
    return {
        "task": TASK,
        "server_app": changed(SERVER, server_diff),
        "client_app": changed(CLIENT, client_diff),
    }


def here(out: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the app in this process and return the digest of its model."""
    monkeypatch.setitem(sys.modules, "pytorchexample", ModuleType("pytorchexample"))
    made = {}
    for name, source in sources().items():
        made[name] = ModuleType(f"pytorchexample.{name}")
        monkeypatch.setitem(sys.modules, made[name].__name__, made[name])
        exec(compile(source, f"{name}.py", "exec"), vars(made[name]))
    grid = LocalGrid(made["client_app"].app, 3, **{"num-partitions": 3})
    config: dict[str, Any] = {**CONFIG, "out": str(out)}
    for context in grid.contexts.values():
        context.run_config = dict(config)
    made["server_app"].main(grid, Context(1, 0, {}, RecordDict(), dict(config)))
    return saved(out)


def saved(out: Path) -> str:
    return digest(unpack_tensors((out / "model.safetensors").read_bytes(), "the model"))


def test_five_added_lines_give_creff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(line.startswith("+") for diff in diffs() for line in diff.splitlines()) == 5
    here(tmp_path, monkeypatch)
    model = unpack_tensors((tmp_path / "model.safetensors").read_bytes(), "the model")
    assert set(model) == {"conv.weight", "conv.bias", "fc.weight", "fc.bias"}
    trained, evaluated = json.loads((tmp_path / "metrics.json").read_text())
    assert (trained["clients"], trained["dropped"]) == (3, 0)
    # CReFF's clients send class gradients of the classifier beside the model.
    assert trained["bytes-up"] > 3 * sum(tensor.nbytes for tensor in model.values())
    assert 0 < evaluated["eval_acc"] < 1


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("flower")
def test_it_gives_the_same_model_on_real_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, out, logs = tmp_path / "app" / "pytorchexample", tmp_path / "out", tmp_path / "logs"
    for folder in (package, out, logs, tmp_path / "here"):
        folder.mkdir(parents=True)
    (package / "__init__.py").touch()
    for name, source in sources().items():
        (package / f"{name}.py").write_text(source)
    parts = {f"{side}app": f"pytorchexample.{side}_app:app" for side in ("server", "client")}
    app = {"publisher": "me", "components": parts, "config": {**CONFIG, "out": str(out)}}
    project = {"name": "quickstart", "version": "1.0.0", "dependencies": []}
    text = tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}})
    (tmp_path / "app" / "pyproject.toml").write_text(text)
    with tempfile.TemporaryDirectory(prefix="fedtail-") as home:
        federation = FlowerProcesses(Path(home), logs)
        try:
            federation.open()
            for partition in range(3):
                federation.add_node(partition, 3)
            run = federation.submit(tmp_path / "app")
            until = time.monotonic() + 700
            while (status := federation.status(run)).partition(":")[0] != "finished":
                assert time.monotonic() < until, (logs / "superlink.log").read_text()
                time.sleep(3)
        finally:
            federation.close()
    assert status.split()[0] == "finished:completed", (logs / "superlink.log").read_text()
    assert saved(out) == here(tmp_path / "here", monkeypatch)
