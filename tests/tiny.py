"""A federation small enough for hand calculation and awkward enough to be honest.

Six clients and four classes. Class 3 is in the test set and in nobody's training data, client 1 has
one class, client 2 has one sample.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtail import Arrays, Experiment, FedAvg, LocalTraining, Method, Natural
from fedtail.callbacks import Callback
from fedtail.data.dataset import Dataset, Samples
from fedtail.data.federation import ClientData, Federation
from fedtail.engines import Embedded
from fedtail.engines.crew import Crew, Done, Job, attempt
from fedtail.engines.wire import pack, pack_tensors, unpack, unpack_tensors
from fedtail.engines.workplace import Workplace
from fedtail.loop import Loop
from fedtail.metrics import Evaluation
from fedtail.models import ModelLike, SplitModel
from fedtail.protocol import Client, Server, Tensors
from fedtail.result import Result
from fedtail.setting import prepare

COUNTS = ((6, 4, 2, 0), (5, 0, 0, 0), (0, 1, 0, 0), (3, 3, 0, 0), (0, 4, 4, 0), (7, 1, 2, 0))
CLASSES = 4
IMAGE = (3, 8, 8)


def arrays(shape: Sequence[int] = IMAGE) -> dict[str, np.ndarray]:
    """Return uint8 images (or float vectors) with one bright channel or place a class."""
    rng = np.random.default_rng(0)
    y = np.concatenate([np.repeat(np.arange(CLASSES), row) for row in COUNTS])
    y_test = np.repeat(np.arange(CLASSES), 3)
    owner = np.repeat(np.arange(len(COUNTS)), [sum(row) for row in COUNTS])
    kind = np.uint8 if len(shape) == 3 else np.float32

    def inputs(labels: np.ndarray) -> np.ndarray:
        x = rng.integers(0, 100, (len(labels), *shape))
        x[np.arange(len(labels)), labels % shape[0]] += 100
        return x.astype(kind)

    return {
        "x_train": inputs(y),
        "y_train": y,
        "x_test": inputs(y_test),
        "y_test": y_test,
        "client_train": owner,
    }


def source(shape: Sequence[int] = IMAGE) -> Arrays:
    """Return the data as a source."""
    return Arrays(**arrays(shape))


def plain_model() -> nn.Module:
    """No BatchNorm, a classifier with bias."""
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.ReLU(), nn.Linear(6, CLASSES))


def unbiased_model() -> nn.Module:
    """No BatchNorm, a classifier without bias."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 6), nn.ReLU(), nn.Linear(6, CLASSES, bias=False)
    )


def norm_model() -> nn.Module:
    """BatchNorm, a classifier with bias."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, CLASSES),
    )


def dropout_model() -> nn.Module:
    """BatchNorm and dropout, a classifier without bias."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(36, CLASSES, bias=False),
    )


def spare_model() -> SplitModel:
    """Softmax regression with a parameter that has no part in it, and so never a gradient."""
    module = nn.Sequential(nn.Linear(1, 2, bias=False))
    module.register_parameter("spare", nn.Parameter(torch.ones(1)))
    return SplitModel(module)


def quick(**fields: Any) -> LocalTraining:
    """Return a short local training."""
    return LocalTraining(**{"batch_size": 4, "lr": 0.05, **fields})


def experiment(
    method: Method[Any] | None = None, model: ModelLike = plain_model, **fields: Any
) -> Experiment:
    """Return an experiment of three rounds with four of the six clients in each."""
    chosen: dict[str, Any] = {
        "method": FedAvg(local=quick()) if method is None else method,
        "data": source(),
        "model": model,
        "partition": Natural(),
        "rounds": 3,
        "per_round": 4,
        "device": "cpu",
        **fields,
    }
    return Experiment(**chosen)


def run_with(
    chosen: Experiment,
    crew: Callable[[Workplace], Crew],
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Run an experiment with other hands than the usual ones."""
    setting = prepare(chosen)
    engine = Embedded(setting.workplace())
    engine.crew = crew(setting.workplace())
    return Loop(setting, engine, None, callbacks).run(False)


class Isolated:
    """What a pool of two workers does, without the processes.

    Each job is done on one of two separate copies of the workplace, last job first, and everything
    crosses the wire as bytes. A method that leaves something behind in the model, on itself or in a
    payload gives other bits here than in one process.
    """

    def __init__(self, place: Workplace) -> None:
        self.places = [_copied(place), _copied(place)]

    def perform(self, jobs: Sequence[Job]) -> list[Done]:
        done = [self._one(i, job) for i, job in reversed(list(enumerate(jobs)))]
        return done[::-1]

    def _one(self, number: int, job: Job) -> Done:
        task = type(job.task)(job.task.client, job.task.action, unpack(pack(job.task.payload)))
        state = unpack_tensors(pack_tensors(job.state), "a state")
        done = attempt(self.places[number % 2], Job(task, state, job.clock))
        if done.payload is None:
            return done
        kept = unpack_tensors(pack_tensors(done.state), "a state")
        return Done(unpack(pack(done.payload)), kept)

    def evaluate(self, tensors: Tensors) -> Evaluation:
        place = self.places[1]
        tested = place.load_tested(unpack_tensors(pack_tensors(tensors), "a model"))
        parts = [place.evaluate(tested, *part) for part in place.test_ranges()]
        return sum(parts, start=Evaluation.empty(CLASSES))

    def close(self) -> None:
        """Nothing was started."""


def _copied(place: Workplace) -> Workplace:
    method, base, model = copy.deepcopy((place.method, place.base, place.model))
    return Workplace(place.federation, method, base, model, place.seed, place.device)


def vectors(x: Sequence[Sequence[float]], y: Sequence[int], classes: int) -> Samples:
    """Return float samples."""
    return Samples(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


def federation(
    x: Sequence[Sequence[float]], y: Sequence[int], parts: Sequence[Sequence[int]], classes: int = 2
) -> Federation:
    """Return a federation of vectors, tested on what it trains on."""
    samples = vectors(x, y, classes)
    dataset = Dataset(samples, samples, tuple(str(c) for c in range(classes)))
    return Federation(dataset, [np.array(part, dtype=np.int64) for part in parts])


def client(
    of: Federation,
    k: int,
    model: SplitModel,
    state: dict[str, Tensor] | None = None,
    **fields: Any,
) -> Client:
    """Return what a task of client k sees."""
    moment: Mapping[str, Any] = {"round": 1, "rounds": 1, **fields}
    data: ClientData = of.client(k)
    return Client(
        id=k,
        data=data,
        counts=of.counts(k),
        model=model,
        state={} if state is None else state,
        **moment,
    )


def server(model: SplitModel, clients: int, **fields: Any) -> Server:
    """Return the server of round 1, with all clients in the cohort."""
    chosen: dict[str, Any] = {
        "round": 1,
        "rounds": 1,
        "clients": range(clients),
        "per_round": clients,
        "num_classes": 2,
        **fields,
    }
    return Server(model=model, **chosen)


def line_of(module: ModuleType, text: str) -> int:
    """Return the number of the line of a module that holds a text."""
    lines = Path(str(module.__file__)).read_text(encoding="utf-8").splitlines()
    (number,) = [n for n, line in enumerate(lines, start=1) if text in line]
    return number


def global_streams() -> tuple[str, ...]:
    """Return where the user's own random streams stand: Python's, NumPy's and torch's."""
    legacy = np.random.mtrand._rand.get_state(legacy=False)
    return str(random.getstate()), str(legacy), str(torch.get_rng_state().tolist())
