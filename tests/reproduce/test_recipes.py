"""The papers' tables: every printed number has a cell, and every cell is a valid experiment."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from command_line import fedtail

from fedtail.cli.reproduce import select
from fedtail.errors import FedtailError
from fedtail.reproduce import load_recipe, recipes
from fedtail.reproduce.cost import cost, samples_of
from fedtail.reproduce.recipe import Cell, Table, flattened, merged, papers_folder

TABLES = recipes()


def runnable(table: Table) -> list[Cell]:
    return [cell for cell in table.cells if not table.not_run(cell)]


def test_every_reference_file_has_a_recipe_and_no_recipe_is_without_one() -> None:
    assert len(TABLES) == 38
    for paper, number in (("balancefl", 5), ("creff", 3), ("fedlc", 7), ("gbme", 12)):
        assert sum(name.startswith(f"{paper}/") for name in TABLES) == number
    files = {path.with_suffix("") for path in papers_folder().glob("*/*.toml")}
    protocols = {path for path in files if path.name == "protocol"}
    assert files - protocols == {papers_folder() / name for name in TABLES}


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_is_an_experiment_at_every_scale(name: str) -> None:
    table = load_recipe(name)
    with (papers_folder() / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sum(len(cell.values) for cell in table.cells) == len(rows)
    for cell in table.cells:
        assert all(table.score(metric) for metric in cell.values)
    for cell in runnable(table):
        full = table.experiment(cell, "full", seed=3)
        reduced = table.experiment(cell, "reduced", seed=3)
        assert full.seed == reduced.seed == 3
        assert reduced.rounds <= full.rounds
        assert table.experiment(cell, "smoke", seed=0).rounds <= 2


def test_the_protocol_of_a_cell_is_the_papers() -> None:
    # methods.md 4.6, column RedGrape, and its table of hyper-parameters.
    table = load_recipe("redgrape/table2")
    cell = next(
        cell
        for cell in table.cells
        if (cell.dataset, cell.method) == ("CIFAR-100-LT", "RedGrape") and "IR=50" in cell.parts
    )
    experiment = table.experiment(cell, "full", seed=0)
    plain = experiment.describe()
    assert (experiment.clients, experiment.per_round, experiment.rounds) == (50, 10, 1000)
    assert plain["tail"]["imbalance"] == 50
    assert plain["partition"] == {"name": "redgrape", "alpha": 1.0}
    assert plain["model"]["name"] == "resnet56"
    assert (plain["method"]["lam"], plain["method"]["per_class"]) == (0.1, 2)
    local = plain["method"]["local"]
    assert (local["lr"], local["momentum"], local["epochs"]) == (0.1, 0.9, 5)
    assert (local["batch_size"], local["clip"]) == (64, 1.0)
    pixels = {"crop": 4, "flip": True, "cutout": 16, "rotate": 0.0, "auto": False}
    assert plain["augment"] == {**pixels, "per_batch": False}


def test_samples_are_counted_by_hand() -> None:
    # CIFAR-10, imbalance 100, keeps 12,406 samples; 8 of 20 clients, 10 epochs, 200 rounds:
    # ceil(12,406 * 8 / 20) = 4,963 samples a pass, 2,000 passes.
    table = load_recipe("creff/table1")
    cell = table.cells[0]
    assert (cell.dataset, cell.parts[0], cell.method) == ("CIFAR-10-LT", "IF=100", "FedAvg")
    assert samples_of(table, cell, table.experiment(cell, "full", 0)) == 4963 * 2000


def test_a_full_table_costs_more_than_a_reduced_one() -> None:
    table = load_recipe("creff/table1")
    full, reduced = cost(table, "full"), cost(table, "reduced")
    assert full.runs == reduced.runs == 60 * 3
    assert full.samples > 10 * reduced.samples
    assert full.hours is not None and reduced.hours is not None
    assert full.gpu and full.hours > 50 * reduced.hours


def test_a_layer_that_names_a_component_starts_it_afresh_but_not_a_method() -> None:
    layer = {"data": {"name": "a", "x": 1}, "method": {"name": "m", "local": {"lr": 2}}}
    assert list(flattened(layer)) == [
        ("data", {"name": "a", "x": 1}),
        ("method.name", "m"),
        ("method.local.lr", 2),
    ]


def test_a_table_says_what_its_protocol_does_not() -> None:
    below = {"a": {"x": 1, "y": 2}, "b": {"name": "p", "x": 1}, "c": 1}
    above = {"a": {"y": 3}, "b": {"name": "q"}, "d": 4}
    assert merged(below, above) == {"a": {"x": 1, "y": 3}, "b": {"name": "q"}, "c": 1, "d": 4}


def test_a_table_that_is_not_there() -> None:
    with pytest.raises(FedtailError, match="unknown table 'creff/table9'; did you mean"):
        load_recipe("creff/table9")


def test_the_list_shows_every_table_and_its_cost() -> None:
    shown = fedtail("reproduce", "--list", "--scale", "full")
    assert shown.code == 0
    for name in TABLES:
        assert re.search(rf"^{name} ", shown.out, re.MULTILINE)
    assert "advised" in shown.out


def test_a_cell_that_is_not_there(tmp_path: Path) -> None:
    shown = fedtail("reproduce", "creff/table1", "--only", "SVHN", "--out", str(tmp_path / "x"))
    assert shown.code == 2
    assert "no cell of creff/table1 holds 'SVHN'" in shown.err
    assert not (tmp_path / "x").exists()


def test_a_method_is_chosen_by_its_whole_name() -> None:
    table = load_recipe("creff/table1")
    chosen = select(table, ["CIFAR-10-LT*IF=100"], ["FedAvg", "CReFF"])
    assert [cell.method for cell in chosen] == ["FedAvg", "CReFF"]  # not FedAvgM


def test_a_method_that_is_not_in_the_table(tmp_path: Path) -> None:
    shown = fedtail("reproduce", "creff/table1", "--method", "fedavg", "--out", str(tmp_path / "x"))
    assert shown.code == 2
    assert "creff/table1 has no method 'fedavg' (known: FedAvg, FedAvgM," in shown.err


def test_missing_data_is_named_with_the_command_that_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDTAIL_DATA", str(tmp_path))
    shown = fedtail("reproduce", "creff/table1", "--out", str(tmp_path / "x"))
    assert shown.code == 2
    assert "needs the data 'cifar10', which is not here: run `fedtail data fetch" in shown.err
