"""Each library as its own documentation drives it: build once, then round after round.

A peer is made from a workload; `round` does one round of federated averaging and returns the
processor and wall seconds that it took, without any test. Libraries are imported by the peer that
needs them, so that a process which measures one of them pays for that one alone.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar, Literal, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peers.workloads import CLASSES, LR, Workload

Seconds = tuple[float, float]


class Peer(Protocol):
    """Something that trains."""

    network: nn.Module

    def round(self) -> Seconds:
        """Do one round, and return processor and wall seconds."""


def timed(work: Callable[[], object]) -> Seconds:
    """Return the processor and wall seconds of some work."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


class Bare:
    """A plain PyTorch loop over the cohort's samples: no copy of a model, no average.

    Images have channels last in memory, as in this library; that is faster on a CPU.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload, self.network = workload, workload.build()
        self.x, self.y = workload.data()
        if self.x.ndim == 4:
            self.x = self.x.contiguous(memory_format=torch.channels_last)
            cast(Any, self.network).to(memory_format=torch.channels_last)  # torch's stub lacks it

    def round(self) -> Seconds:
        """Train on the samples of one cohort."""
        return timed(self._train)

    def _train(self) -> None:
        w = self.workload
        self.network.train()
        for k in torch.randperm(w.clients)[: w.per_round].tolist():
            optimizer = torch.optim.SGD(self.network.parameters(), lr=LR)
            for index in torch.split(torch.randperm(w.samples), w.batch):
                optimizer.zero_grad()
                at = index + k * w.samples
                loss = functional.cross_entropy(self.network(self.x[at]), self.y[at])
                torch.autograd.backward(loss)
                optimizer.step()


class Fedtail:
    """fedtail, client after client."""

    together: ClassVar[int | Literal["auto"]] = 0

    def __init__(self, workload: Workload) -> None:
        from fedtail import Arrays, Experiment, FedAvg, LocalTraining, Natural
        from fedtail.engines import Embedded
        from fedtail.engines.block_size import block_size
        from fedtail.setting import prepare

        x, y = workload.data()
        owner = torch.arange(workload.clients).repeat_interleave(workload.samples)
        data = Arrays(
            *(x, y, x[:10], y[:10]),
            classes=tuple(map(str, range(CLASSES))),
            client_train=owner,
            normalisation="none",
        )
        local = LocalTraining(lr=LR, batch_size=workload.batch)
        self.setting = prepare(
            Experiment(
                data=data,
                model=workload.build(),
                partition=Natural(),
                per_round=workload.per_round,
                rounds=1000,
                method=FedAvg(local=local),
            )
        )
        self.network = self.setting.model.module
        runtime = self.setting.runtime()
        runtime.together, _ = block_size(self.together, runtime, self.setting.cohort)
        self.engine = Embedded(runtime)
        self.state: Any = self.setting.method.init(self.setting.model, self.setting.server(0))
        self.done = 0

    def round(self) -> Seconds:
        """Do the next round."""
        return timed(self._round)

    def _round(self) -> None:
        from fedtail.exchange import Ledger, drive

        self.done += 1
        server = self.setting.server(self.done)
        exchange = self.setting.method.round(self.state, server)
        self.state = drive(exchange, self.state, self.engine, server, Ledger())


class Together(Fedtail):
    """fedtail as it runs by default: clients as one computation where its rule says so."""

    together = "auto"


class FedLab:
    """FedLab's serial trainer and synchronous server, in the loop of its `StandalonePipeline`."""

    def __init__(self, workload: Workload) -> None:
        with torchvision_shim():
            from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
            from fedlab.contrib.algorithm.basic_server import SyncServerHandler
        from torch.utils.data import DataLoader, TensorDataset

        x, y = workload.data()

        class Parts:
            """What FedLab asks a data set for."""

            def get_dataloader(self, k: int, batch_size: int) -> DataLoader[Any]:
                """Return a client's batches, shuffled."""
                here = workload.of_client(k)
                return DataLoader(TensorDataset(x[here], y[here]), batch_size, shuffle=True)

        quiet = logging.getLogger("fedlab.quiet")
        quiet.setLevel(logging.ERROR)
        self.handler: Any = SyncServerHandler(
            workload.build(), 10**9, workload.per_round / workload.clients, logger=quiet
        )
        self.trainer: Any = SGDSerialClientTrainer(workload.build(), workload.clients, logger=quiet)
        self.trainer.setup_dataset(Parts())
        self.trainer.setup_optim(1, workload.batch, LR)
        self.handler.num_clients = workload.clients
        self.network: nn.Module = self.handler.model

    def round(self) -> Seconds:
        """Do the next round."""
        return timed(self._round)

    def _round(self) -> None:
        cohort = self.handler.sample_clients()
        self.trainer.local_process(self.handler.downlink_package, cohort)
        for pack in self.trainer.uplink_package:
            self.handler.load(pack)


class Pfl:
    """pfl-research: `FederatedAveraging` on a `SimulatedBackend`, stopped after every iteration."""

    def __init__(self, workload: Workload) -> None:
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.callback.base import TrainingProcessCallback
        from pfl.data.dataset import Dataset
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.sampling import get_user_sampler
        from pfl.hyperparam.base import NNTrainHyperParams
        from pfl.metrics import Metrics
        from pfl.model.pytorch import PyTorchModel

        x, y = workload.data()

        class Trained(nn.Module):
            """What pfl asks a module for."""

            def __init__(self) -> None:
                super().__init__()
                self.inner = workload.build()

            def loss(self, x: Tensor, y: Tensor) -> Tensor:
                """Return the loss of a batch in training."""
                self.train()
                return functional.cross_entropy(self.inner(x), y)

            def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
                """Return nothing: nobody tests."""
                return {}

        class Once(TrainingProcessCallback):  # type: ignore[misc]  # has no types
            """Ends `run` after one iteration; it goes on where it was when called again."""

            def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
                """Say that it is enough."""
                return True, Metrics()

        self.network: nn.Module = Trained()
        users = [
            Dataset(raw_data=[x[workload.of_client(k)], y[workload.of_client(k)]])
            for k in range(workload.clients)
        ]
        sampler = get_user_sampler("minimize_reuse", list(range(workload.clients)))
        held = FederatedDataset(users.__getitem__, sampler)
        self.algorithm: Any = FederatedAveraging()
        self.arguments: dict[str, Any] = {
            "algorithm_params": NNAlgorithmParams(
                central_num_iterations=10**9,
                evaluation_frequency=10**9,
                train_cohort_size=workload.per_round,
                val_cohort_size=None,
            ),
            "backend": SimulatedBackend(training_data=held, val_data=held),
            "model": PyTorchModel(
                self.network,
                local_optimizer_create=torch.optim.SGD,
                central_optimizer=torch.optim.SGD(self.network.parameters(), lr=1.0),
            ),
            "model_train_params": NNTrainHyperParams(
                local_num_epochs=1, local_learning_rate=LR, local_batch_size=workload.batch
            ),
            "callbacks": [Once()],
            "send_metrics_to_platform": False,
        }
        logging.getLogger().setLevel(logging.WARNING)  # pfl sets it to INFO
        self.algorithm._current_central_iteration = 1  # before the first one it tests

    def round(self) -> Seconds:
        """Do the next round."""
        return timed(lambda: self.algorithm.run(**self.arguments))


class Fluke:
    """fluke's `FedAVG`; timed from the start to the end of a round, as its observers see them."""

    def __init__(self, workload: Workload) -> None:
        from fluke import DDict, FlukeENV
        from fluke.algorithms.fedavg import FedAVG
        from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
        from fluke.utils import FederationObserver

        class Watch(FederationObserver):  # type: ignore[misc]  # has no types
            """Notes when a round begins and ends."""

            taken: Seconds = (0.0, 0.0)

            def start_round(self, round: int, global_model: Any) -> None:
                """Begin to count."""
                self.began = time.process_time(), time.perf_counter()

            def end_round(self, round: int) -> None:
                """End it."""
                cpu, wall = self.began
                self.taken = time.process_time() - cpu, time.perf_counter() - wall

        environment = FlukeENV()
        environment.set_device("cpu")
        environment.set_inmemory(True)
        environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
        x, y = workload.data()
        loaders = [
            FastDataLoader(
                x[workload.of_client(k)],
                y[workload.of_client(k)],
                num_labels=CLASSES,
                batch_size=workload.batch,
                shuffle=True,
            )
            for k in range(workload.clients)
        ]
        nobody = [None] * workload.clients
        container = DummyDataContainer(loaders, nobody, None, CLASSES)
        client = {
            "batch_size": workload.batch,
            "local_epochs": 1,
            "loss": "CrossEntropyLoss",
            "optimizer": {"name": "SGD", "lr": LR},
            "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1.0},
        }
        asked = DDict(client=client, server={"weighted": True}, model=workload.build())
        self.algorithm: Any = FedAVG(workload.clients, DataSplitter(container), asked)
        self.algorithm.finalize = lambda: None  # it would test all clients after every round
        self.watch = Watch()
        self.algorithm.set_callbacks([self.watch])
        self.share = workload.per_round / workload.clients
        self.network: nn.Module = self.algorithm.server.model

    def round(self) -> Seconds:
        """Do the next round."""
        self.algorithm.run(1, self.share)
        return self.watch.taken


@contextmanager
def torchvision_shim() -> Iterator[None]:
    """Let FedLab import torchvision, of which its data sets need names and training nothing.

    A real one would bring another build of torch. It is gone afterwards, so that nobody else takes
    it for the real one.
    """

    class Shim(ModuleType):
        """A module in which every name is an empty class."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

    top = Shim("torchvision")
    parts = {name: Shim(f"torchvision.{name}") for name in ("transforms", "datasets")}
    vars(top).update(parts)
    shims = {module.__name__: module for module in (top, *parts.values())}
    missing = shims.keys() - sys.modules.keys()
    sys.modules.update({name: shims[name] for name in missing})
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


PEERS: dict[str, Callable[[Workload], Peer]] = {
    "bare": Bare,
    "together": Together,
    "fedtail": Fedtail,
    "fedlab": FedLab,
    "pfl": Pfl,
    "fluke": Fluke,
}
