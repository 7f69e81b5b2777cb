"""Tables run end to end on tiny data: two cells of each here, one of each method when slow."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from unittest.mock import patch

import pytest
from command_line import fedtail, files

from fedtail.errors import FedtailError
from fedtail.experiment import Experiment
from fedtail.reproduce import load_recipe, recipes
from fedtail.reproduce.compared import Compared, compare_cell
from fedtail.reproduce.measures import Finished, measure
from fedtail.reproduce.recipe import Cell, Score, Table
from fedtail.reproduce.results import write_tables

TABLES = recipes()


def smoke(name: str, cells: list[Cell], out: Path) -> list[dict[str, object]]:
    only = [word for cell in cells for word in ("--only", str(cell))]
    shown = fedtail("reproduce", name, "--scale", "smoke", "--out", str(out), *only)
    assert shown.code == 0, shown.out + shown.err
    numbers: list[dict[str, object]] = json.loads((out / "results.json").read_text())["numbers"]
    return numbers


def runnable(table: Table) -> list[Cell]:
    return [cell for cell in table.cells if not table.not_run(cell)]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_runs(name: str, tmp_path: Path) -> None:
    table = load_recipe(name)
    cells = runnable(table) or list(table.cells)
    for number in smoke(name, [cells[0], cells[-1]], tmp_path / "out"):
        if runnable(table) and not str(number["metric"]).endswith("_std"):
            assert math.isfinite(float(str(number["mean"])))
        elif not runnable(table):
            assert number["mean"] is None and number["failures"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_every_method_of_a_table_runs(name: str, tmp_path: Path) -> None:
    table = load_recipe(name)
    first = {cell.method: cell for cell in reversed(runnable(table))}
    if first:
        numbers = smoke(name, list(first.values()), tmp_path / "out")
        assert {number["method"] for number in numbers} >= set(first)


def test_finished_cells_are_not_run_again(tmp_path: Path) -> None:
    table = load_recipe("creff/table1")
    cells = [table.cells[0], table.cells[3]]
    first = smoke("creff/table1", cells[:1], tmp_path)
    with patch("fedtail.study.settle.run", side_effect=AssertionError("run again")):
        assert smoke("creff/table1", cells[:1], tmp_path) == first
    both = smoke("creff/table1", cells, tmp_path)
    assert both[0] == first[0]


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    table = load_recipe("creff/table1")
    only = [word for cell in table.cells[:2] for word in ("--only", str(cell))]
    blocked = tmp_path / "out"
    blocked.mkdir()
    # A file stands where the folder of the first cell's run belongs.
    name = "CIFAR-10-LT---IF=100-Dir-alpha=0.5---FedAvg-seed0"
    (blocked / name).write_text("in the way")
    shown = fedtail("reproduce", table.name, "--scale", "smoke", "--out", str(blocked), *only)
    assert shown.code == 1
    numbers = json.loads((blocked / "results.json").read_text())["numbers"]
    assert [bool(number["failures"]) for number in numbers[:2]] == [True, False]
    assert numbers[1]["mean"] is not None


def test_results_stay_where_every_run_is_refused(tmp_path: Path) -> None:
    table = load_recipe("creff/table1")
    smoke(table.name, [table.cells[0]], tmp_path)
    for described in tmp_path.rglob("experiment.toml"):
        described.write_text(described.read_text().replace("\nseed = ", "\nseed = 7"))
    before = files(tmp_path)
    words = ["reproduce", table.name, "--scale", "smoke", "--only", str(table.cells[0])]
    shown = fedtail(*words, "--out", str(tmp_path))
    said = "error: its folder holds a run with another 'seed'; choose another --out\n"
    assert (shown.code, shown.err) == (2, said)
    assert files(tmp_path) == before


def history(*accuracies: float | None) -> list[dict[str, object]]:
    return [
        {"round": n, "accuracy": a, "bytes_up": 2**29, "bytes_down": 2**29}
        for n, a in enumerate(accuracies, 1)
    ]


def finished(*accuracies: float | None) -> Finished:
    return Finished(Experiment(rounds=len(accuracies)), history(*accuracies))


def test_a_score_is_the_mean_of_the_last_rounds_that_were_tested() -> None:
    run = finished(0.1, 0.5, None, 0.7)
    assert measure(run, Score()) == pytest.approx(70.0)
    # Of the last three rounds, two were tested: (0.5 + 0.7) / 2.
    assert measure(run, Score(last=3)) == pytest.approx(60.0)


def test_the_rarest_are_scored_over_the_last_tested_rounds_too() -> None:
    # Digits cut to 100 : 1 have class 9 last and 8 next: (0.2 + 0.4) / 2 now, (0 + 0.2) / 2 before.
    experiment = Experiment(rounds=3, tail={"name": "exponential", "imbalance": 100})
    accuracies = ([1.0] * 8 + [0.0, 0.2], None, [1.0] * 8 + [0.2, 0.4])
    run = Finished(
        experiment, [{"round": n, "per_class": each} for n, each in enumerate(accuracies, 1)]
    )
    assert measure(run, Score(measure="rarest", key="2")) == pytest.approx(30.0)
    assert measure(run, Score(measure="rarest", key="2", last=3)) == pytest.approx(20.0)


def test_traffic_is_counted_until_98_percent_of_the_best() -> None:
    # The best is 0.5; 0.49 is exactly 98 % of it, reached in round 2, at 2 · 1 GiB.
    run = finished(0.3, 0.49, 0.5, 0.4)
    how = Score(measure="traffic_to_own_best", factor=1.0)
    assert measure(run, how) == pytest.approx(2.0)


def test_a_gain_is_relative_to_the_other_method() -> None:
    # (0.6 - 0.4) / 0.4 is 50 %; (0.4 - 0.6) / 0.4 as a saving is -50 %.
    run, other = finished(0.6), finished(0.4)
    assert measure(run, Score(against="gain"), other) == pytest.approx(50.0)
    assert measure(run, Score(against="saving"), other) == pytest.approx(-50.0)
    assert measure(run, Score(), other) == pytest.approx(20.0)


def test_a_gain_over_nothing_is_no_number() -> None:
    with pytest.raises(FedtailError, match="whose 'accuracy' is 0"):
        measure(finished(0.6), Score(against="gain"), finished(0.0))


def test_the_csv_has_numbers_that_any_program_reads(tmp_path: Path) -> None:
    table = load_recipe("creff/table1")
    cell = Cell("a,b", "s", "m")
    lines = [
        Compared(cell, "parameters", 2428144.0, (2400000.5, 2400001.5)),
        Compared(cell, "GiB", 0.004),
    ]
    write_tables(tmp_path, table, "smoke", lines)
    with (tmp_path / "results.csv").open(newline="", encoding="utf-8") as file:
        large, missing = csv.DictReader(file)
    # Mean 2400001, deviation sqrt(0.25 + 0.25), difference -28143.
    assert (float(large["paper"]), float(large["ours"])) == (2428144, 2400001)
    assert (float(large["±"]), float(large["difference"])) == pytest.approx((0.5**0.5, -28143))
    assert (large["data"], large["seeds"], large["covered"]) == ("a,b", "2", "no")
    assert float(missing["paper"]) == 0.004
    assert [missing[key] for key in ("ours", "±", "difference", "covered")] == [""] * 4
    # What people read is rounded.
    assert "| 2,428,144 | 2,400,001 | 0.71 | 2 | -28,143 | no |" in (
        tmp_path / "results.md"
    ).read_text(encoding="utf-8")


def test_the_interval_is_students() -> None:
    cell = Cell("d", "s", "m")
    line = Compared(cell, "accuracy", 12.0, (9.0, 10.0, 11.0))
    # Mean 10, deviation 1; t of 97.5 % with 2 degrees of freedom is 4.3027, over sqrt(3): 2.484.
    assert (line.mean, line.deviation, line.difference) == (10.0, 1.0, -2.0)
    assert line.covered is True
    assert Compared(cell, "accuracy", 12.49, line.ours).covered is False
    assert Compared(cell, "accuracy", 12.48, line.ours).covered is True
    assert Compared(cell, "accuracy", 10.0, (10.0,)).covered is None
    assert Compared(cell, "accuracy_std", 0.5, line.ours).mean == 1.0


def test_a_printed_deviation_is_set_beside_ours() -> None:
    table = load_recipe("redgrape/table1")
    cell = Cell("MNIST-LT", table.cells[0].setting, "RedGrape", {"accuracy": 90, "accuracy_std": 1})
    runs = [finished(0.8), finished(0.9)]
    score, deviation = compare_cell(table, cell, runs)
    assert score.mean == pytest.approx(85.0)
    # Two values: their deviation is |80 - 90| / sqrt(2).
    assert deviation.mean == pytest.approx(10 / math.sqrt(2))
