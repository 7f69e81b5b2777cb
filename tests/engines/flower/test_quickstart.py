"""Five changed lines of Flower's PyTorch quickstart, as the documentation shows, give CReFF."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from flwr.app import Context, RecordDict
from local_grid import LocalGrid

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "flower.md"

TASK = """
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.fc = nn.Linear(6 * 3 * 3, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.fc(x.flatten(1))


def load_data(partition_id, num_partitions, batch_size):
    digits = load_digits()
    x = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    y = torch.tensor(digits.target)
    mine = slice(partition_id, 300, num_partitions)
    data = TensorDataset(x[mine], y[mine])
    return DataLoader(data, batch_size, shuffle=True), DataLoader(data, batch_size)


def train(net, loader, epochs, lr, device):
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def test(net, loader, device):
    hits = sum(int((net(x).argmax(1) == y).sum()) for x, y in loader)
    return 0.0, hits / len(loader.dataset)
"""

SERVER = """
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from pytorchexample.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    fraction_train = context.run_config["fraction-train"]
    num_rounds = context.run_config["num-server-rounds"]
    lr = context.run_config["lr"]
    global_model = Net()
    arrays = ArrayRecord(global_model.state_dict())
    strategy = FedAvg(fraction_train=fraction_train)
    global RESULT
    RESULT = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": lr}),
        num_rounds=num_rounds,
    )
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
    lr = context.run_config["lr"]
    device = torch.device("cpu")
    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    trainloader, _ = load_data(partition_id, num_partitions, 16)
    train_loss = train_fn(model, trainloader, context.run_config["local-epochs"], lr, device)
    metrics = {"train_loss": train_loss, "num-examples": len(trainloader.dataset)}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=msg)
"""


def diffs() -> list[str]:
    return re.findall(r"```diff\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def changed(source: str, diff: str) -> str:
    """Return the source with each removed line replaced by the added ones that follow it."""
    for hunk in re.split(r"^-", diff, flags=re.MULTILINE)[1:]:
        old, *new = hunk.strip("\n").split("\n")
        assert source.count(f"\n{old}\n") == 1, old
        replaced = "\n".join(line[1:] for line in new)
        source = source.replace(f"\n{old}\n", f"\n{replaced}\n")
    return source


def module(name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType(f"pytorchexample.{name}")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(compile(source, f"{name}.py", "exec"), vars(made))
    return made


def test_five_lines_give_creff(monkeypatch: pytest.MonkeyPatch) -> None:
    server_diff, client_diff = diffs()
    added = [line for line in (server_diff + "\n" + client_diff).splitlines() if line[0] == "+"]
    assert len(added) == 5
    monkeypatch.setitem(sys.modules, "pytorchexample", ModuleType("pytorchexample"))
    module("task", TASK, monkeypatch)
    server = module("server_app", changed(SERVER, server_diff), monkeypatch)
    client = module("client_app", changed(CLIENT, client_diff), monkeypatch)
    grid = LocalGrid(client.app, 3, **{"num-partitions": 3})
    config = {"fraction-train": 1.0, "num-server-rounds": 2, "lr": 0.1, "local-epochs": 1}
    for context in grid.contexts.values():
        context.run_config = dict(config)
    server.main(grid, Context(1, 0, {}, RecordDict(), dict(config)))
    assert set(server.RESULT.arrays) == {"conv.weight", "conv.bias", "fc.weight", "fc.bias"}
    assert server.RESULT.train_metrics_clientapp[2]["clients"] == 3
    # CReFF's clients send class gradients of the classifier beside the model.
    up = server.RESULT.train_metrics_clientapp[2]["bytes-up"]
    model = sum(array.numpy().nbytes for array in server.RESULT.arrays.values())
    assert up > 3 * model
