"""A study from Python: one call, resumed by the same call, whole when one run fails."""

from __future__ import annotations

import csv
import json
import logging
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from command_line import fedtail, write_npz
from torch import nn

from fedtail import BSM, Arrays, Experiment, FedAvg, FedtailError, Method, Study, compare
from fedtail.data.sources.npz import Npz
from fedtail.report import make_lines, read_runs
from fedtail.report.facts import cautions
from fedtail.study.lines import Line
from fedtail.study.runs import Run

ONE: dict[str, list[Any]] = {"method": ["bsm,prior=global", "fedavg"], "local.lr": [0.5, 0.05]}


def arrays(shift: float = 0.0) -> Arrays:
    rng = np.random.default_rng(0)
    y = np.arange(40) % 4
    x = (rng.normal(size=(40, 5)) + y[:, None] + shift).astype(np.float32)
    return Arrays(x, y, x[:8], y[:8])


def experiment(**fields: Any) -> Experiment:
    chosen = {"data": arrays(), "method": FedAvg(), "clients": 3, "rounds": 2, **fields}
    return Experiment(**chosen)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return compare(experiment(), ONE, seeds=3, out=tmp_path_factory.mktemp("study"))


def test_labels_are_the_words_in_the_order_typed_everywhere(study: Study) -> None:
    typed = [
        "bsm,prior=global,local.lr=0.5",
        "bsm,prior=global,local.lr=0.05",
        "fedavg,local.lr=0.5",
        "fedavg,local.lr=0.05",
    ]
    assert study.folder is not None
    assert [line.label for line in study.lines] == typed
    assert [row["method"] for row in csv.DictReader(study.to_csv().splitlines())] == typed
    rows = [row.partition(" &")[0] for row in study.to_latex().splitlines()[4:8]]
    assert rows == typed
    firsts = [row.split("  ")[0] for row in study.table().splitlines()]
    names = [name for name in firsts if name in typed]
    assert names[:4] == typed
    # Folders sort otherwise, and the report reads them.
    assert [line.label for line in make_lines(read_runs([study.folder]))] == typed
    page = (study.folder / "report.html").read_text(encoding="utf-8")
    places = [page.index(f'"label":"{label}"') for label in typed]
    assert places == sorted(places)


def test_the_table_fits(study: Study) -> None:
    assert all(len(row) <= 80 for row in study.table().splitlines())
    assert repr(study) == study.table()


def test_a_difference_is_that_of_the_runs(study: Study) -> None:
    found = study.difference("fedavg,local.lr=0.5")
    first, other = (study.lines[at].by_seed("accuracy") for at in (0, 2))
    assert found is not None
    assert found.mean == pytest.approx(sum(other[s] - first[s] for s in range(3)) / 3)
    assert json.loads((study.folder or Path()).joinpath("comparison.json").read_text())[2][
        "differences"
    ]["accuracy"]["mean"] == pytest.approx(found.mean)
    with pytest.raises(FedtailError, match="there is no line 'fedlc'"):
        study.difference("fedlc")


def test_the_same_call_reads_what_is_there(study: Study) -> None:
    with patch("fedtail.study.settle.run", side_effect=AssertionError("run again")):
        again = compare(experiment(), ONE, seeds=3, out=study.folder)
    assert again.to_csv() == study.to_csv()


def test_other_data_of_the_same_shape_is_refused(study: Study) -> None:
    with pytest.raises(FedtailError, match="its folder holds a run on other data"):
        compare(experiment(data=arrays(1.0)), ONE, out=study.folder)


def test_data_that_runs_share_are_loaded_once_to_be_compared(tmp_path: Path) -> None:
    write_npz(tmp_path / "mine.npz")
    one = experiment(data=Npz(path=str(tmp_path / "mine.npz")), partition="iid", rounds=1)
    first = compare(one, ONE, seeds=2, out=tmp_path / "out")
    load = Npz.load
    with patch.object(Npz, "load", autospec=True, side_effect=load) as loaded:
        assert compare(one, ONE, seeds=2, out=tmp_path / "out").to_csv() == first.to_csv()
    assert loaded.call_count == 1
    with patch.object(Npz, "load", side_effect=OSError("a disk that is gone")):
        assert compare(one, ONE, seeds=2, out=tmp_path / "out").to_csv() == first.to_csv()


def test_the_files_are_written_where_asked(study: Study, tmp_path: Path) -> None:
    study.to_csv(tmp_path / "new" / "a.csv")
    study.to_latex(tmp_path / "a.tex", columns=("few",))
    assert (tmp_path / "new" / "a.csv").read_text() == study.to_csv()
    assert (tmp_path / "a.tex").read_text().splitlines()[2] == r"Method & Few \\"


def test_nothing_is_chosen_by_the_test_set_unless_one_says_so(study: Study) -> None:
    with pytest.raises(FedtailError, match="there is no validation score to choose by"):
        study.best()
    best = max(study.lines, key=lambda line: line.score("accuracy")[0] or 0)
    assert study.best("accuracy") is best
    least = min(study.lines, key=lambda line: line.score("loss")[0] or 0)
    assert study.best("loss") is least
    with pytest.raises(FedtailError, match="no run has a score 'luck'"):
        study.best("luck")


def test_the_best_by_validation() -> None:
    def line(label: str, *scores: float) -> Line:
        runs = [
            Run(Path(), {"seed": s}, [_tested(1, value), _tested(2, 0.0, kept=1)], True)
            for s, value in enumerate(scores)
        ]
        return Line(label, tuple(runs))

    # Means 0.5 and 0.55 of the round that was kept, which is not the last.
    study = Study((line("a", 0.6, 0.4), line("b", 0.5, 0.6)))
    assert study.best().label == "b"


def test_the_best_is_by_the_score_that_rounds_are_compared_by() -> None:
    def line(label: str, balanced: float, few: float, loss: float, score: str) -> Line:
        validation = {"balanced_accuracy": balanced, "few": few, "loss": loss}
        record = {"round": 1, "accuracy": 0.0, "validation": validation}
        return Line(label, (Run(Path(), {"seed": 0, "score": score}, [record], True),))

    for score, label in (("balanced_accuracy", "a"), ("few", "b"), ("loss", "c")):
        lines = [
            line("a", 0.9, 0.1, 2.0, score),
            line("b", 0.5, 0.8, 3.0, score),
            line("c", 0.4, 0.4, 1.0, score),
        ]
        assert Study(tuple(lines)).best().label == label
        assert repr(lines[0]) == "Line('a', seeds=[0])"


def test_clients_that_the_data_have_are_the_clients_of_a_study(tmp_path: Path) -> None:
    y = np.arange(40) % 4
    x = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    data = Arrays(x, y, x[:8], y[:8], client_train=np.arange(40) // 8)
    one = Experiment(data=data, method=FedAvg(), rounds=1)
    study = compare(one, {"method": ["fedavg"]}, out=tmp_path)
    split = study.lines[0].runs[0].split
    assert split is not None
    assert split["recipe"]["partition"] == {"name": "natural"}
    assert [sum(counts) for counts in split["counts"]] == [8] * 5


def _tested(number: int, score: float, **more: Any) -> dict[str, Any]:
    return {"round": number, "accuracy": 0.0, "validation": {"balanced_accuracy": score, **more}}


def test_what_a_choice_names_is_not_said_twice() -> None:
    method: Method[Any] = FedAvg(local={"lr": 0.1, "epochs": 0.5})
    choices: dict[str, list[Any]] = {"method": [method], "local.lr": [0.1, 0.2]}
    assert [line.label for line in compare(experiment(), choices).lines] == [
        "fedavg,local.epochs=0.5,local.lr=0.1",
        "fedavg,local.epochs=0.5,local.lr=0.2",
    ]


def test_a_list_is_one_of_methods() -> None:
    found = compare(experiment(rounds=1), ["fedavg", BSM(local={"lr": 0.5})])
    assert [line.label for line in found.lines] == ["fedavg", "bsm,local.lr=0.5"]


def test_several_experiments_by_label_or_by_name() -> None:
    small, large = experiment(rounds=1), experiment(rounds=1, method=FedAvg(local={"lr": 0.5}))
    assert [line.label for line in compare({"a": small, "b": large}).lines] == ["a", "b"]
    found = compare([small, large.but(seed=5)], seeds=2)
    assert [line.label for line in found.lines] == ["fedavg", "fedavg,local.lr=0.5"]
    assert [[run.seed for run in line.runs] for line in found.lines] == [[0, 1], [5, 6]]
    assert found.folder is None
    with pytest.raises(FedtailError, match="two would have the same"):
        compare([small, small])
    with pytest.raises(FedtailError, match="choices are for one experiment"):
        compare([small, large], ONE)
    with pytest.raises(FedtailError, match="there is no experiment"):
        compare([])
    with pytest.raises(FedtailError, match="seeds = 0 is refused"):
        compare(small, seeds=0)


def test_labels_that_make_the_same_folder_have_folders_of_their_own(tmp_path: Path) -> None:
    one = experiment(rounds=1)
    labels = {"A+": one, "A*": one.but(method=FedAvg(local={"lr": 0.5}))}
    study = compare(labels, seeds=2, out=tmp_path)
    assert study.failures == {}
    assert [len(line.runs) for line in study.lines] == [2, 2]
    assert [line.label for line in make_lines(read_runs([tmp_path]))] == ["A+", "A*"]
    with patch("fedtail.study.settle.run", side_effect=AssertionError("run again")):
        assert compare(labels, seeds=2, out=tmp_path).to_csv() == study.to_csv()


@pytest.mark.parametrize("label", ["", "a\nb", "a\rb", 1])
def test_a_label_is_one_line_of_text(label: Any, tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match=r"the label .* is refused: give one line of text"):
        compare({label: experiment()}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seeds", ["3", [1, 1], 2.0, [], np.zeros(2, dtype=int)])
def test_seeds_are_a_number_or_different_ones(seeds: Any, tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match=r"seeds = .* is refused: give at least 1, or a list of"):
        compare(experiment(), seeds=seeds, out=tmp_path / "out")


def test_seeds_may_be_an_array() -> None:
    found = compare(experiment(rounds=1), seeds=np.arange(2))  # type: ignore[arg-type]
    assert [run.seed for run in found.lines[0].runs] == [0, 1]


class Half(nn.Linear):
    """A network of the user's own."""


def test_side_by_side_is_the_same(study: Study, tmp_path: Path) -> None:
    model = Half(5, 4)
    before = model.weight.detach().clone()
    base = experiment(model=model)
    methods = {"method": ["fedavg", "fedavg,local.lr=0.5", "fedavg,local.lr=1e20"]}
    alone = compare(base, methods, seeds=2, out=tmp_path / "one")
    beside = compare(base, methods, seeds=2, out=tmp_path / "two", jobs=2)
    assert torch.equal(model.weight, before)
    assert alone.failures.keys() == beside.failures.keys()
    assert len(alone.failures) == 2
    for name in ("fedavg-seed0", "fedavg-local.lr=0.5-seed1"):
        models = [tmp_path / at / name / "model.safetensors" for at in ("one", "two")]
        assert models[0].read_bytes() == models[1].read_bytes()


def test_what_cannot_be_sent_is_said(caplog: pytest.LogCaptureFixture) -> None:
    class Local(nn.Linear):
        """Cannot be imported by another process."""

    with caplog.at_level(logging.WARNING), pytest.raises(FedtailError) as refused:
        compare(experiment(model=Local(5, 4)), jobs=2)
    assert "cannot be sent to another process" in str(refused.value)


def test_a_report_of_runs_that_differ_in_data_says_so(study: Study, tmp_path: Path) -> None:
    assert cautions(study.lines) == []
    for alpha in (0.1, 0.5):
        compare(
            experiment(rounds=1, partition={"name": "dirichlet", "alpha": alpha}),
            out=tmp_path / str(alpha),
        )
    done = fedtail("report", str(tmp_path), "--out", str(tmp_path / "r.html"))
    assert done.out.splitlines()[0] == (
        "warning: These runs are not on the same data: partition differs. A difference between two "
        "lines may be one between their data."
    )
    # The same was typed for both: what differs tells them apart.
    labels = [line.label for line in make_lines(read_runs([tmp_path]))]
    assert labels == ["fedavg, partition.alpha=0.1", "fedavg, partition.alpha=0.5"]


def test_without_a_console_what_all_runs_warn_of_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    compare(experiment(), {"method": ["fedavg", "bsm"]}, seeds=2, jobs=1)
    assert caplog.text.count("the training data has no tail") == 1
