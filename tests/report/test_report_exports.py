"""Tables for papers and programs, and the command that writes them."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import fedtail, files, one_sentence
from feature_views import make_view
from run_folders import record, write_run

from fedtail.report import as_csv, as_latex, make_lines, read_runs, write_figures
from fedtail.report.feature_map import draw_map
from fedtail.report.figures import KINDS, _over_rounds
from fedtail.study.lines import Line
from fedtail.study.runs import Run


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "study"
    for seed, few in ((0, 0.2), (1, 0.3)):
        last = record(1, 0.5, many=0.75, few=few, per_class=[0.1, 0.75, None])
        table = {"classes": ["cat", "dog", "$owl_{$"], "confusion": [[1, 0, 0]] * 3}
        write_run(folder / f"a{seed}", [last], seed=seed, confusion=table)
    write_run(folder / "b", [record(1, 0.5, many=0.8, few=0.125)], method={"name": "my_method"})
    return folder


def test_the_csv(study: Path) -> None:
    first, second = csv.DictReader(as_csv(make_lines(read_runs([study]))).splitlines())
    assert (first["method"], first["seeds"]) == ("fedavg", "0 1")
    assert float(first["few_mean"]) == pytest.approx(0.25)
    assert float(first["few_std"]) == pytest.approx(0.005**0.5)  # of 0.2 and 0.3
    assert (first["medium_mean"], second["few_std"]) == ("", "")
    assert (float(second["bytes"]), float(second["seconds"])) == (150, 2)


def test_the_latex_table(study: Path) -> None:
    text = as_latex(make_lines(read_runs([study])))
    assert text.splitlines()[:-1] == [
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r"Method & All & Many & Medium & Few \\",
        r"\midrule",
        # The deviation of 0.2 and 0.3 is 7.07 points. One seed is no reason for bold.
        r"fedavg & $50.0 \pm 0.0$ & $75.0 \pm 0.0$ & -- & $25.0 \pm 7.1$ \\",
        r"my\_method & $50.0$ & $80.0$ & -- & $12.5$ \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_the_command_writes_what_is_asked(study: Path, tmp_path: Path) -> None:
    out, table, tex = tmp_path / "new" / "r.html", tmp_path / "r.csv", tmp_path / "r.tex"
    done = fedtail(
        "report", str(study), "--out", str(out), "--csv", str(table), "--latex", str(tex)
    )
    assert (done.code, done.err) == (0, "")
    caution, *written = done.out.splitlines()
    assert caution.startswith("warning: These methods do not have the same seeds (fedavg: 0, 1;")
    assert written == [f"written: {path}" for path in (out, table, tex)]
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert table.read_text().startswith("method,seeds,accuracy_mean,")
    assert tex.read_text().startswith(r"\begin{tabular}")


def test_wrong_input_is_one_sentence(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert "holds no run" in one_sentence(fedtail("report", folder))
    assert "missing argument" in one_sentence(fedtail("report")).lower()
    refused = one_sentence(fedtail("report", folder, "--serve", "--csv", "x.csv"))
    assert refused == "--serve writes no file: leave out --csv, --latex and --figures"
    missing = str(tmp_path / "missing")
    assert one_sentence(fedtail("report", missing, "--serve")) == f"'{missing}' is not a folder"


def test_the_files_of_a_run_are_not_written_over(study: Path) -> None:
    before = files(study)
    for flag in ("--out", "--csv", "--latex"):
        path = str(study / "b" / "metrics.jsonl")
        refused = one_sentence(fedtail("report", str(study), flag, path))
        assert "is refused: it is among the files of a run" in refused
    assert files(study) == before
    assert fedtail("report", str(study), "--out", str(study / "b" / "report.html")).code == 0


def test_a_wrong_file_is_refused_before_one_is_written(study: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    before, page = files(tmp_path), ["--out", str(tmp_path / "r.html")]
    for flag, path, said in (
        ("--csv", tmp_path / "r.html", "is refused: it is to hold another table or the page too"),
        ("--latex", study, "is refused: it is a folder; name a file"),
        ("--figures", tmp_path / "file", "is refused: it is a file; name a folder"),
    ):
        assert said in one_sentence(fedtail("report", str(study), *page, flag, str(path)))
    assert files(tmp_path) == before


def test_the_help_fits(tmp_path: Path) -> None:
    shown = fedtail("report", "--help").out
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "\n fedtail report runs/a --serve" in shown


@pytest.mark.slow
def test_the_figures(study: Path, tmp_path: Path) -> None:
    written = write_figures(tmp_path / "figures", make_lines(read_runs([study])))
    names = ("rounds", "few", "groups", "bytes", "seconds", "classes")
    assert [path.name for path in written] == [f"{n}.{k}" for n in names for k in KINDS]
    begins = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}
    for path in written:
        assert path.read_bytes().startswith(begins[path.suffix])
    classes = tmp_path / "figures" / "classes.svg"
    # Names as text, from head to tail: 10, 5 and 2 samples.
    places = [classes.read_text().index(f">{name}</text>") for name in ("dog", "$owl_{$", "cat")]
    assert places == sorted(places)
    again = write_figures(tmp_path / "again", make_lines(read_runs([study])))
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


@pytest.mark.slow
def test_the_figures_of_features(study: Path, tmp_path: Path) -> None:
    classes = ("$cat_{$", "dog", "owl")  # no formula
    views = {name: make_view(classes=classes) for name in ("fedavg", "my_method")}
    lines = make_lines(read_runs([study]))
    drawn = {}
    for client in (None, 1):
        paths = write_figures(tmp_path / str(client), lines, views, client)
        assert [path.name for path in paths[-6:]] == [
            f"{name}.{kind}" for name in ("norms", "features") for kind in KINDS
        ]
        drawn[client] = {path.name: path.read_bytes() for path in paths}
    assert drawn[None]["norms.png"] == drawn[1]["norms.png"]
    assert drawn[None]["features.png"] != drawn[1]["features.png"]  # other marks


def test_names_in_a_figure_are_letters_and_all_are_there() -> None:
    from matplotlib.figure import Figure

    odd = ("_mine", "$x_{$")
    runs = (Run(Path(), {"seed": 0}, [record(1, 0.5), record(2, 0.6)], True),)
    curves: Any = Figure().subplots()
    _over_rounds(curves, [Line(label, runs) for label in odd])
    shown = [text.get_text().strip() for text in curves.get_legend().get_texts()]
    assert shown == ["_mine", r"\$x_{\$"]
    maps = Figure()
    views = {name: make_view(classes=("_silence_", "$cat_{$", "owl")) for name in odd}
    draw_map(maps, views)
    maps.draw_without_rendering()  # a formula that is none would be an error
    legend = [text.get_text().strip() for text in maps.legends[0].get_texts()]
    assert "_silence_" in legend


@pytest.mark.slow
def test_runs_without_a_round_have_no_figures(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [])
    assert write_figures(tmp_path / "figures", make_lines(read_runs([tmp_path]))) == []


@pytest.mark.slow
def test_ctrl_c_ends_the_server_cleanly(study: Path) -> None:
    command = [sys.executable, "-m", "fedtail", "report", str(study), "--serve", "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "stopped\n", "")
