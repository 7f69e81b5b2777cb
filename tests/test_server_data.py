"""Methods that need samples on the server: refused without, held apart from the clients, told."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch

from fedtail import (
    IID,
    Arrays,
    Experiment,
    Exponential,
    FedAvg,
    FedtailError,
    Method,
    ModelState,
)
from fedtail.described import make_experiment
from fedtail.setting import prepare
from fedtail.study.lines import Line
from fedtail.study.runs import Run
from fedtail.study.tables import as_csv, as_text, described_lines


class Learned(FedAvg[ModelState]):
    """A method that needs labelled samples."""

    name: ClassVar[str] = "learned"
    server_data: ClassVar[Literal["none", "labelled", "unlabelled"]] = "labelled"


def test_without_server_data_it_is_refused_in_one_sentence() -> None:
    with pytest.raises(FedtailError) as refused:
        make_experiment({"method": Learned()})
    assert (
        "method 'learned' needs labelled samples on the server, which no client holds: say how "
        "many of each class, for example server_per_class=32"
    ) in str(refused.value)


@pytest.mark.parametrize("name", list(Method.registry))
def test_what_a_method_lists_and_what_is_checked_agree(name: str) -> None:
    cls = Method.registry[name]
    told = [need for need in cls.needs if "server data" in need]
    assert told == ([] if cls.server_data == "none" else [f"{cls.server_data} server data"])


def test_the_methods_that_need_some() -> None:
    kinds = {name: Method.registry[name].server_data for name in Method.registry}
    assert {name: kind for name, kind in kinds.items() if kind != "none"} == {
        "ratio-loss": "labelled",
        "feddf": "unlabelled",
        "fedbe": "unlabelled",
        "fedic": "labelled",
    }


def test_a_method_that_needs_none_is_not_asked() -> None:
    assert Experiment(method=FedAvg()).server_data == ""
    assert Experiment(method=FedAvg(), server_per_class=4).server_data == ""


def test_what_was_needed_is_told() -> None:
    assert (
        Experiment(method=Learned(), server_per_class=4).server_data
        == "labelled server data, 4 a class"
    )


def test_a_class_of_one_sample_stays_with_the_clients() -> None:
    # One sample of each class: half of it, rounded down, is none.
    x, y = torch.eye(3).numpy(), torch.arange(3).numpy()
    alone = Experiment(
        method=Learned(),
        data=Arrays(x, y, x, y),
        clients=1,
        partition="iid",
        server_per_class=4,
        device="cpu",
    )
    with pytest.raises(FedtailError, match="no class has two"):
        prepare(alone)


def test_it_comes_from_what_the_tail_dropped() -> None:
    # The tail keeps class 0 whole, so that its samples come from what clients would have had. Of
    # the last class it drops nine tenths: there the clients lose nothing.
    fields: dict[str, Any] = {
        "tail": Exponential(imbalance=10),
        "partition": IID(),
        "clients": 5,
        "device": "cpu",
    }
    without = prepare(Experiment(**fields))
    with_data = prepare(Experiment(method=Learned(), server_per_class=20, **fields))
    held = with_data.server(1).data
    assert held is not None
    assert torch.bincount(held.y).tolist() == [20] * 10
    lost = [a - b for a, b in zip(without.class_counts, with_data.class_counts, strict=True)]
    assert lost[0] == 20
    assert lost[-1] == 0
    everyone = {i for part in with_data.split.parts for i in part.tolist()}
    assert not everyone & set(with_data.split.server.tolist())


def test_the_table_and_the_files_say_so() -> None:
    record = dict.fromkeys(("accuracy", "many", "medium", "few", "worst_class", "seconds"), 0.5)
    run = Run(Path(), {}, [record | {"round": 1, "bytes_up": 1, "bytes_down": 1}], True)
    lines = [Line("a", (run,)), Line("b", (run,), server_data="labelled, 4 a class")]
    assert as_text(lines, 100).plain.count("(labelled, 4 a class)") == 1
    rows = described_lines(lines)
    assert [row["server_data"] for row in rows] == ["", "labelled, 4 a class"]
    first, second = csv.DictReader(as_csv(lines).splitlines())
    assert (first["server_data"], second["server_data"]) == ("", "labelled, 4 a class")
