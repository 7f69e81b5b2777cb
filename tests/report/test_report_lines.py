"""Runs are read from their folders, whatever state these are in, and become lines over seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_folders import record, write_run

from fedtail import FedtailError
from fedtail.metrics.curves import traffic
from fedtail.report import Line, make_lines, read_run, read_runs


def lines(folder: Path) -> list[Line]:
    return make_lines(read_runs([folder]))


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    # Round 1: 0.5 and 0.7, mean 0.6, deviation sqrt((0.01 + 0.01) / 1) = 0.141421.
    # Round 2: 0.6 and 0.9, mean 0.75, deviation sqrt(2 * 0.0225) = 0.212132.
    write_run(tmp_path / "b", [record(1, 0.7), record(2, 0.9)], seed=1)
    write_run(tmp_path / "a", [record(1, 0.5), record(2, 0.6)], seed=0)
    (line,) = lines(tmp_path)
    assert line.label == "fedavg"
    assert [run.seed for run in line.runs] == [0, 1]
    assert line.rounds == [1, 2]
    assert line.curve("accuracy") == [
        pytest.approx((0.6, 0.02**0.5)),
        pytest.approx((0.75, 0.045**0.5)),
    ]
    assert line.score("accuracy") == pytest.approx((0.75, 0.045**0.5))
    assert line.spent(traffic) == [150, 300]
    assert (line.bytes, line.seconds) == (300, 4)


def test_rounds_without_a_test_cost_but_do_not_show(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "a", [record(1, None), record(2, 0.5), record(3, None)], finished=False
    )
    (line,) = lines(tmp_path)
    assert line.rounds == [2]
    assert line.spent(traffic) == [300]  # both rounds up to the test
    assert line.bytes == 450
    assert line.score("accuracy") == (0.5, None)  # of the last round that was tested
    (folder / "model.safetensors").touch()  # now round 3 is what is shipped, and nobody tested it
    assert lines(tmp_path)[0].score("accuracy") == (None, None)


def test_a_seed_that_is_behind_ends_earlier(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [record(1, 0.2), record(2, 0.4)], seed=0)
    write_run(tmp_path / "b", [record(1, 0.4)], seed=1, finished=False)
    (line,) = lines(tmp_path)
    assert line.curve("accuracy") == [pytest.approx((0.3, 0.02**0.5)), (0.4, None)]


def test_a_run_without_a_round_has_no_numbers(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [], finished=False)
    (line,) = lines(tmp_path)
    assert (line.rounds, line.per_class(), line.bytes, line.seconds) == ([], [], None, None)
    assert line.score("accuracy") == (None, None)


def test_classes_over_seeds(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [record(1, 0.5, per_class=[1.0, 0.2, None])], seed=0)
    write_run(tmp_path / "b", [record(1, 0.5, per_class=[0.5, None, None])], seed=1)
    (line,) = lines(tmp_path)
    assert line.per_class() == [pytest.approx((0.75, 0.125**0.5)), (0.2, None), (None, None)]


def test_labels_say_what_tells_lines_apart(tmp_path: Path) -> None:
    for name, lr in (("a", 0.1), ("b", 0.5)):
        write_run(tmp_path / name, [], method={"local": {"lr": lr}})
    write_run(tmp_path / "c", [], method={"name": "creff", "local": {"lr": 0.5}})
    assert [line.label for line in lines(tmp_path)] == [
        "fedavg, local.lr=0.1",
        "fedavg, local.lr=0.5",
        "creff",
    ]


def test_a_differing_protocol_is_in_every_label(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [], partition={"alpha": 0.1})
    write_run(tmp_path / "b", [], partition={"alpha": 0.5}, method={"name": "creff"})
    labels = [line.label for line in lines(tmp_path)]
    assert labels == ["fedavg, partition.alpha=0.1", "creff, partition.alpha=0.5"]


def test_long_labels_are_cut_and_stay_different(tmp_path: Path) -> None:
    for name, last in (("a", 1), ("b", 2), ("c", 3)):
        many = {"k1": 0 if name == "c" else 9, "k2": 0 if name == "c" else 9, "k3": 1, "k4": last}
        write_run(tmp_path / name, [], method={**many, "k3": 0 if name == "c" else 9})
    assert [line.label for line in lines(tmp_path)] == [
        "fedavg, k1=9, k2=9, k3=9, …",
        "fedavg, k1=9, k2=9, k3=9, … (2)",
        "fedavg, k1=0, k2=0, k3=0, …",
    ]


def test_what_changes_no_number_makes_no_line(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [], seed=0, workers=2, name="a")
    write_run(tmp_path / "b", [], seed=1, workers=0, name="b")
    assert len(lines(tmp_path)) == 1


def test_a_folder_named_twice_is_read_once(tmp_path: Path) -> None:
    one = write_run(tmp_path / "deep" / "down" / "a", [])
    assert [run.path for run in read_runs([one, tmp_path, str(one)])] == [one]


def test_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [record(1, 0.5)])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "accu')
    assert len(read_run(folder).records) == 1


def test_a_folder_that_was_only_begun(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [], split=None, finished=False)
    (folder / "metrics.jsonl").unlink()
    (folder / "env.json").unlink()
    run = read_run(folder)
    assert (run.records, run.split, run.environment, run.tested) == ([], None, None, None)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("experiment.toml", "rounds = = 3", "experiment.toml' is not valid TOML: "),
        ("experiment.toml", 'seed = "x"', "experiment.toml' has no whole number as its seed"),
        ("split.json", "{", "split.json' is not a JSON object"),
        ("env.json", "[1]", "env.json' is not a JSON object"),
        ("confusion.json", '"x"', "confusion.json' is not a JSON object"),
        (
            "metrics.jsonl",
            '{"round": 1, "few": "high"}\n',
            "metrics.jsonl, round 1: 'few' is 'high', not a number",
        ),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, file: str, content: str, message: str) -> None:
    folder = write_run(tmp_path / "a", [record(1, 0.5)])
    (folder / file).write_text(content)
    with pytest.raises(FedtailError) as error:
        read_runs([tmp_path])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_broken_line_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_run(tmp_path / "a", [record(1, 0.5), record(2, 0.6)])
    path = folder / "metrics.jsonl"
    path.write_text("x" + path.read_text())
    (run,) = read_runs([tmp_path])
    assert [r["round"] for r in run.records] == [2]
    assert caplog.messages == [f"'{path}': what is not the record of a round is left out (line 1)"]


def test_folders_without_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match="holds no run: give a run folder, or one with"):
        read_runs([tmp_path])
    missing: Any = tmp_path / "missing"
    with pytest.raises(FedtailError, match="missing' is not a folder"):
        read_runs([missing])


def test_a_seed_that_is_there_twice_is_of_a_line_more(tmp_path: Path) -> None:
    for folder, scores in (("a", (0.2, 0.4)), ("b", (0.8,))):
        for seed, score in enumerate(scores):
            write_run(tmp_path / folder / str(seed), [record(1, score)], seed=seed)
    first, second = make_lines(read_runs([tmp_path]))
    assert (first.label, [run.seed for run in first.runs]) == ("fedavg", [0, 1])
    assert (second.label, [run.seed for run in second.runs]) == ("fedavg (2)", [0])
    # (0.2 + 0.4) / 2 in the table, and at the end of the curve; 0.8 is in neither.
    assert first.score("accuracy")[0] == first.curve("accuracy")[-1][0] == pytest.approx(0.3)
    assert second.score("accuracy") == (0.8, None)
