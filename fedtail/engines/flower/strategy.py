"""Any method as a stock strategy, for people who have a Flower app.

`Strategy.start` is Flower's own. It asks for the messages of a round and gets none, because a round
may need several exchanges; they are held when it asks for the result. What comes back is the model
that the method ships, under the names of the user's own network.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedtail.data.dataset import Dataset, Samples
from fedtail.data.federation import Federation
from fedtail.engines.flower.engine import Flower
from fedtail.engines.flower.executor import FlowerExecutor, RunTerms
from fedtail.engines.flower.roster import Roster
from fedtail.engines.flower.user_client import ModelMaker, networks
from fedtail.engines.runtime import Runtime, numerics
from fedtail.errors import FedtailError, RunStopped
from fedtail.exchange import Ledger, drive, first_reason, stop_if_empty
from fedtail.methods import Method
from fedtail.models.split_model import as_shipped, load_tested
from fedtail.protocol import Server
from fedtail.rng import contained, derive

logger = logging.getLogger("fedtail")


def as_strategy(
    method: Method[Any],
    *,
    model: ModelMaker,
    clients: int,
    seed: int = 0,
    fraction_train: float = 1.0,
    fraction_evaluate: float = 0.0,
    threads: int = 1,
    join: float = 600.0,
    train: str = "all",
) -> MethodStrategy:
    """Return a method as a Flower strategy.

    Parameters
    ----------
    method
        What is trained, and how; its ``local`` has the learning rate, the epochs and the batch size
        that clients use.
    model
        The network, or what makes it; clients have the same.
    clients
        How many nodes there are; each has its own ``partition-id``, 0 to ``clients - 1``.
    seed
        Everything random derives from it.
    fraction_train, fraction_evaluate
        Which part of the clients trains in a round, and which part is sent Flower's own
        ``evaluate`` message with the shipped model.
    threads
        Threads of each process; more change the last bits.
    join
        Seconds that the nodes may take to come online.
    train
        What is trained of the network, as in an experiment; the rest is frozen and never sent, and
        has to be the same at every client.
    """
    return MethodStrategy(
        method, model, clients, seed, fraction_train, fraction_evaluate, threads, join, train
    )


class MethodStrategy(FedAvg):
    """See `as_strategy`."""

    def __init__(
        self,
        method: Method[Any],
        model: ModelMaker,
        clients: int,
        seed: int,
        fraction_train: float,
        fraction_evaluate: float,
        threads: int,
        join: float,
        train: str,
    ) -> None:
        super().__init__(fraction_train=fraction_train, fraction_evaluate=fraction_evaluate)
        if clients < 1:
            raise FedtailError(f"clients = {clients} is refused: give at least 1")
        self.method = method
        self.clients = clients
        self.seed = seed
        self.threads = threads
        self.join = join
        self.part = train
        self.base, self.trained = networks(model, method, seed, torch.device("cpu"), train)
        self.state: Any = None
        self.rounds, self.timeout = 1, 3600.0
        self._engine: Flower | None = None
        self._empty: list[bool] = []

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds, as Flower does; schedules of the method learn how many there are."""
        self.rounds, self.timeout = num_rounds, timeout
        self._engine = None
        self._empty = []
        return super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Begin, in the first round; the exchanges themselves come with `aggregate_train`."""
        if self._engine is None:
            self._begin(arrays, grid)
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Hold the exchanges of the round and return the model that the method ships."""
        server, ledger = self._server(server_round), Ledger()
        self.state = self._drive(self.method.round(self.state, server), server, ledger)
        self._empty.append(ledger.kept)
        stop_if_empty(self._empty, server_round == self.rounds, ledger)
        self.engine.begin(server_round, "after")
        with self.engine.states.forgotten():
            final = self._drive(self.method.finalize(self.state, server), server, Ledger())
        tested = self.method.eval_model(final)
        shipped = as_shipped(load_tested(tested, self.trained, self.base), tested)[1]
        numbers = {
            "clients": len(ledger.clients),
            "dropped": len(ledger.dropped),
            "bytes-down": sum(down for down, _ in ledger.traffic.values()),
            "bytes-up": sum(up for _, up in ledger.traffic.values()),
        }
        told = {name: float(v) for name, v in server.logged.items() if not isinstance(v, str)}
        record = ArrayRecord({name: Array(tensor.numpy()) for name, tensor in shipped.items()})
        return record, MetricRecord({**numbers, **told})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the shipped model to a seeded cohort, as Flower's own evaluation."""
        size = round(self.fraction_evaluate * self.clients)
        if not size:
            return []
        config["server-round"] = server_round
        online = self.engine.executor.roster.refresh()
        cohort = self._server(server_round).cohort(size, purpose="evaluate")
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [Message(content, online[k], "evaluate") for k in cohort if k in online]

    def summary(self) -> None:
        """Say nothing more than Flower's own log does."""

    @property
    def engine(self) -> Flower:
        """The engine, once the first round has begun."""
        if self._engine is None:
            raise FedtailError("the strategy has not been started")
        return self._engine

    def _begin(self, arrays: ArrayRecord, grid: Grid) -> None:
        given = arrays.to_torch_state_dict()
        self.base.load(given)
        own = self.trained.tensors()
        if self.base.names() <= own.keys():
            self.trained.load({**own, **given})
        else:  # experts and the like are made from the user's weights, not beside them
            with contained(derive(self.seed, "model")):
                self.trained = self.method.build_model(self.base)
        roster = Roster(grid, self.clients, self.join, kind="train")
        roster.assemble(self.join)
        terms = RunTerms(
            run="",
            deadline=self.timeout,
            threads=self.threads,
            method=self.method.describe(),
            more={"seed": self.seed, "classes": self.base.num_classes, "train": self.part},
        )
        self._engine = Flower(FlowerExecutor(grid, roster, terms, self._place()))
        server, ledger = self._server(0), Ledger()
        self.state = self.method.init(self.trained, server)
        self.state = self._drive(self.method.setup(self.state, server), server, ledger)
        if ledger.kept:
            said = first_reason(ledger.dropped)
            raise RunStopped(f"no client answered the preliminary exchange ({said})")

    def _drive(self, exchange: Any, server: Server, ledger: Ledger) -> Any:
        with numerics(self.threads):
            state = drive(exchange, self.state, self.engine, server, ledger)
        for d in ledger.dropped:
            logger.warning("round %s: client %s is left out: %s", server.round, d.client, d.reason)
        return state

    def _place(self) -> Runtime:
        """Return a place without data: nothing is tested here."""
        none = Samples(torch.empty(0, 1), torch.empty(0, dtype=torch.int64))
        names = tuple(str(c) for c in range(self.base.num_classes))
        federation = Federation(Dataset(none, none, names), [])
        device = torch.device("cpu")
        return Runtime(federation, self.method, self.base, self.trained, self.seed, device)

    def _server(self, number: int) -> Server:
        return Server(
            round=number,
            rounds=self.rounds,
            clients=range(self.clients),
            per_round=max(1, round(self.fraction_train * self.clients)),
            num_classes=self.base.num_classes,
            model=self.trained,
            seed=self.seed,
        )
