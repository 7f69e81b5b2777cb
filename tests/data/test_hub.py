"""The flwr-datasets adapters, on data in memory."""

import builtins
from typing import Any

import numpy as np
import pytest

from fedtail.data.hub import partitioner, preprocessor
from fedtail.data.longtail import Exponential
from fedtail.data.partitions import IID, Dirichlet, Natural
from fedtail.data.split import make_split
from fedtail.errors import FedtailError

Y = np.tile(np.arange(4), 60)


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("flwr_datasets"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(FedtailError, match=r"pip install '\.\[hf\]'"):
        partitioner(IID(), 3)


@pytest.fixture
def splits() -> Any:
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("flwr_datasets")
    features = datasets.Features(
        {
            "index": datasets.Value("int64"),
            "label": datasets.ClassLabel(num_classes=5),
            "writer": datasets.Value("string"),
        }
    )
    columns = {
        "index": np.arange(len(Y)).tolist(),
        "label": Y.tolist(),
        "writer": [f"w{i // 8}" for i in range(len(Y))],
    }
    train = datasets.Dataset.from_dict(columns, features=features)
    return datasets.DatasetDict({"train": train, "test": train.select(range(20))})


def test_preprocessor_cuts_the_training_split_alone(splits: Any) -> None:
    cut = preprocessor(Exponential(imbalance=10), seed=3)(splits)
    # 60 * 10^(-c/4) over the five named classes, the fifth of which has no sample.
    assert np.bincount(cut["train"]["label"][:]).tolist() == [60, 33, 18, 10]
    assert len(cut["test"]) == 20
    assert len(splits["train"]) == len(Y)


def test_preprocessor_and_partitioner_give_what_make_split_gives(splits: Any) -> None:
    tail, scheme = Exponential(imbalance=10), Dirichlet(alpha=0.3, min_size=2)
    shares = partitioner(scheme, 6, seed=3)
    shares.dataset = preprocessor(tail, seed=3)(splits)["train"]
    split = make_split(Y, 5, tail, scheme, 6, seed=3)
    assert shares.num_partitions == 6
    for k, part in enumerate(split.parts):
        assert np.array_equal(shares.load_partition(k)["index"][:], part)


def test_natural_clients_come_from_a_column(splits: Any) -> None:
    shares = partitioner(Natural(), None, owner="writer")
    shares.dataset = splits["train"]
    assert shares.num_partitions == 30
    assert set(shares.load_partition(0)["writer"][:]) == {"w0"}


def test_works_inside_a_federated_dataset(splits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    federated = pytest.importorskip("flwr_datasets.federated_dataset")
    monkeypatch.setattr(federated.datasets, "load_dataset", lambda **_: splits)
    data = federated.FederatedDataset(
        dataset="mnist",
        preprocessor=preprocessor(Exponential(imbalance=2)),
        partitioners={"train": partitioner(Dirichlet(min_size=1), 4)},
        shuffle=False,
    )
    parts = [data.load_partition(k, "train") for k in range(4)]
    indices = np.concatenate([part["index"][:] for part in parts])
    assert len(np.unique(indices)) == len(indices) == 60 + 50 + 42 + 35


def test_wrong_columns_and_numbers_are_named(splits: Any) -> None:
    with pytest.raises(FedtailError, match=r"no column 'y' \(it has: index, label, writer\)"):
        preprocessor(Exponential(), label="y")(splits)
    with pytest.raises(FedtailError, match="no split 'train'"):
        preprocessor(Exponential())({"test": splits["test"]})
    shares = partitioner(IID(), 3)
    shares.dataset = splits["train"]
    with pytest.raises(FedtailError, match=r"no partition 3 \(allowed: 0 to 2\)"):
        shares.load_partition(3)
