"""Methods as stock strategies: Flower's own `start`, the bits of the embedded engine."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy
from local_grid import LocalGrid
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fedtail import (
    BalanceFL,
    CReFF,
    FedAvg,
    FedLoGe,
    FedtailError,
    Method,
    RedGrape,
    RunStopped,
    run,
)
from fedtail.engines.flower import as_strategy, client_app, handle
from fedtail.engines.flower.user_client import tensors_of
from fedtail.setting import Setting, prepare
from fedtail.state import digest
from fedtail.training import ProxyPrior

METHODS: list[Method[Any]] = [
    FedAvg(local=tiny.quick(), buffers="local"),
    CReFF(local=tiny.quick(), match_steps=2),
    BalanceFL(local=tiny.quick()),
    RedGrape(local=tiny.quick()),
]


@cache
def setting() -> Setting:
    return prepare(tiny.experiment(None, tiny.norm_model))


def local_data(context: Context) -> tuple[Tensor, Tensor]:
    """Return what client k has of the tiny federation, ready for the network."""
    data = setting().federation.client(int(context.node_config["partition-id"]))
    return data.batch(torch.arange(len(data)))


def initial() -> ArrayRecord:
    """Return the weights that an embedded run starts from."""
    return ArrayRecord(dict(setting().base.tensors()))


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_start_gives_the_model_of_an_embedded_run(method: Method[Any]) -> None:
    grid = LocalGrid(client_app(tiny.norm_model, local_data, device="cpu"), 6)
    strategy = as_strategy(method, model=tiny.norm_model, clients=6, fraction_train=4 / 6)
    assert isinstance(strategy, Strategy)
    result = strategy.start(grid, initial(), num_rounds=2)
    expected = run(tiny.experiment(method, tiny.norm_model, rounds=2))
    assert digest(result.arrays.to_torch_state_dict()) == expected.digest
    last = result.train_metrics_clientapp[2]
    assert last["clients"] == len(expected.history[1]["clients"])
    assert last["bytes-up"] == expected.history[1]["bytes_up"]


def test_a_frozen_part_is_neither_sent_nor_trained() -> None:
    grid = LocalGrid(client_app(tiny.norm_model, local_data, device="cpu"), 6)
    strategy = as_strategy(
        METHODS[0], model=tiny.norm_model, clients=6, fraction_train=4 / 6, train="head"
    )
    result = strategy.start(grid, initial(), num_rounds=2)
    # A node of this app computes features anew in every epoch, batch by batch.
    chosen = tiny.experiment(METHODS[0], tiny.norm_model, rounds=2, train="head", features="anew")
    expected = run(chosen)
    assert digest(result.arrays.to_torch_state_dict()) == expected.digest
    assert result.train_metrics_clientapp[2]["bytes-up"] == expected.metrics["bytes_up"]


def quickstart() -> ClientApp:
    """Return the client app of a Flower user, with a changed line in its training."""
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        x, y = local_data(context)
        loader = DataLoader(TensorDataset(x, y), batch_size=4)
        return handle(msg, context, tiny.norm_model, loader, device="cpu")

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        model = tiny.norm_model()
        model.load_state_dict(msg.content.array_records["arrays"].to_torch_state_dict())
        metrics = MetricRecord({"num-examples": 1 + context.node_id % 2, "node": context.node_id})
        return Message(RecordDict({"metrics": metrics}), reply_to=msg)

    return app


def test_an_existing_app_keeps_its_own_evaluation() -> None:
    method = CReFF(local=tiny.quick(), match_steps=2)
    strategy = as_strategy(method, model=tiny.norm_model, clients=6, fraction_evaluate=1.0)
    seen: list[int] = []

    def centrally(number: int, arrays: ArrayRecord) -> MetricRecord:
        tiny.norm_model().load_state_dict(arrays.to_torch_state_dict())
        seen.append(number)
        return MetricRecord({"round": number})

    grid = LocalGrid(quickstart(), 6)
    result = strategy.start(
        grid,
        initial(),
        num_rounds=1,
        train_config=ConfigRecord({"lr": 0.1}),
        evaluate_fn=centrally,
    )
    assert seen == [0, 1]
    # Nodes 100 to 105 with weights 1, 2, 1, 2, 1, 2: (306 + 2 * 309) / 9.
    assert result.evaluate_metrics_clientapp[1]["node"] == pytest.approx(924 / 9)


def test_the_model_must_have_the_names_of_the_arrays() -> None:
    strategy = as_strategy(FedAvg(), model=tiny.plain_model, clients=6)
    with pytest.raises(FedtailError, match="do not match"):
        strategy.start(LocalGrid(quickstart(), 6), initial(), num_rounds=1)


def test_no_clients_are_refused() -> None:
    with pytest.raises(FedtailError, match="clients = 0 is refused"):
        as_strategy(FedAvg(), model=tiny.plain_model, clients=0)


def test_a_prior_that_cannot_be_read_is_refused_before_work_starts() -> None:
    with pytest.raises(FedtailError, match="frozen: take another prior"):
        as_strategy(FedLoGe(prior=ProxyPrior()), model=tiny.plain_model, clients=6)


class Dictionaries(Dataset[dict[str, Any]]):
    """Samples as those of a Hugging Face data set with a transform."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"img": torch.full((2,), float(i)), "label": i % 2}


@pytest.mark.parametrize(
    "dataset",
    [
        (np.array([[0.0, 0], [1, 1], [2, 2]], np.float32), np.array([0, 1, 0])),
        TensorDataset(torch.tensor([[0.0, 0], [1, 1], [2, 2]]), torch.tensor([0, 1, 0])),
        Dictionaries(),
        DataLoader(Dictionaries(), batch_size=2, shuffle=True),
    ],
    ids=["arrays", "pairs", "dictionaries", "loader"],
)
def test_local_data_in_any_usual_form(dataset: Any) -> None:
    x, y = tensors_of(dataset)
    assert x.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert y.tolist() == [0, 1, 0]


@pytest.mark.parametrize("dataset", [[], [{"img": torch.ones(2)}], [("a", 1)]])
def test_other_data_is_refused_without_showing_it(dataset: Any) -> None:
    with pytest.raises(FedtailError, match="has "):
        tensors_of(dataset)


def test_a_message_cannot_name_what_is_not_a_method() -> None:
    app = client_app(tiny.norm_model, local_data, device="cpu")
    strategy = as_strategy(FedAvg(), model=tiny.norm_model, clients=6)
    strategy.method = FedAvg(local=tiny.quick())
    grid = LocalGrid(app, 6)
    strategy.configure_train(1, initial(), ConfigRecord(), grid)
    executor = strategy.engine.executor
    executor.terms = type(executor.terms)(
        run="", method={"name": "os.system"}, more=executor.terms.more
    )
    with pytest.raises(RunStopped, match="round 1: every client failed, the first, client 0: Fedt"):
        strategy.aggregate_train(1, [])


def test_three_rounds_without_an_update_stop_it(caplog: pytest.LogCaptureFixture) -> None:
    strategy = as_strategy(
        FedAvg(local=tiny.quick(lr=1e30, epochs=5)), model=tiny.norm_model, clients=6
    )
    grid = LocalGrid(client_app(tiny.norm_model, local_data, device="cpu"), 6)
    with pytest.raises(RunStopped, match="no valid update in 3 rounds, up to round 3"):
        strategy.start(grid, initial(), num_rounds=5)
    assert "round 1: client 0 is left out: sent NaN or infinity in model/" in caplog.text


def test_a_network_of_any_kind(tmp_path: Any) -> None:
    assert isinstance(as_strategy(FedAvg(), model=nn.Linear(2, 3), clients=1), Strategy)
