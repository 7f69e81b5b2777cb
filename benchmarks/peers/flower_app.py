"""The same on Flower's simulation with Ray: processes of its own, so it is measured by itself.

Times are taken where the strategy hands a round out. Processor seconds are those of this process
and of all that it started. Data is kept in the worker processes, which is kinder than the template.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Iterable
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.peers.workloads import LR, WORKLOADS

NAME = "FEDTAIL_PEERS_WORKLOAD"
"""The variable that tells worker processes what to train."""


@functools.cache
def held() -> tuple[Any, torch.nn.Module, Tensor, Tensor]:
    """Return the workload, a network and the samples, once a process."""
    workload = WORKLOADS[os.environ[NAME]]
    torch.set_num_threads(1)
    return workload, workload.build(), *workload.data()


def spent() -> float:
    """Return the processor seconds of this process and of what it started and still runs."""
    own = psutil.Process()
    total = time.process_time()
    for child in own.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def simulate(name: str, rounds: int) -> list[tuple[float, float]]:
    """Run some rounds; return processor and wall clock at the start of each, and at the end."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    os.environ[NAME] = name
    logging.getLogger("flwr").setLevel(logging.WARNING)
    workload = WORKLOADS[name]
    clock: list[tuple[float, float]] = []
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        from benchmarks.peers.flower_app import held

        workload, network, x, y = held()
        network.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        network.train()
        optimizer = torch.optim.SGD(network.parameters(), lr=LR)
        start = int(context.node_config["partition-id"]) * workload.samples
        for index in torch.split(torch.randperm(workload.samples), workload.batch):
            optimizer.zero_grad()
            at = index + start
            torch.autograd.backward(functional.cross_entropy(network(x[at]), y[at]))
            optimizer.step()
        content = RecordDict(
            {
                "arrays": ArrayRecord(network.state_dict()),
                "metrics": MetricRecord({"num-examples": workload.samples}),
            }
        )
        return Message(content=content, reply_to=message)

    class Timed(FedAvg):
        """Notes when a round begins."""

        def configure_train(self, *args: Any, **more: Any) -> Iterable[Message]:
            """Hand the round out."""
            clock.append((spent(), time.time()))
            return super().configure_train(*args, **more)

        def summary(self) -> None:
            """Print nothing."""

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Timed(
            fraction_train=workload.per_round / workload.clients,
            fraction_evaluate=0.0,
            min_available_nodes=workload.clients,
        )
        first = ArrayRecord(workload.build().state_dict())
        strategy.start(grid=grid, initial_arrays=first, num_rounds=rounds)
        clock.append((spent(), time.time()))

    run_simulation(
        server_app,
        client_app,
        num_supernodes=workload.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}},
    )
    return clock
