"""What a newcomer reads first, at 80 columns and without a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import PLUGIN, fedtail

from fedtail.methods import FedAvgM, Method
from fedtail.version import __version__


def test_without_a_command_the_help_is_shown() -> None:
    shown = fedtail()
    assert shown.code == 0
    assert shown.err == ""
    for command in ("run", "compare", "split", "methods", "data"):
        assert f"│ {command} " in shown.out
    assert "Begin with: fedtail run" in shown.out
    assert fedtail("--help").out.strip() == shown.out.strip()


@pytest.mark.parametrize("command", ["run", "compare", "split"])
def test_flags_stand_in_groups_with_examples_below(command: str) -> None:
    shown = fedtail(command, "--help")
    assert shown.code == 0
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    groups = ["Experiment", "Data", "Training", "Running", "Output"]
    there = [g for g in groups if command != "split" or g not in ("Training", "Running")]
    places = [shown.out.index(f"─ {group} ─") for group in there]
    assert places == sorted(places)
    assert f"\n fedtail {command} " in shown.out.partition("Examples:")[2]


def test_defaults_are_shown() -> None:
    shown = " ".join(fedtail("run", "--help").out.replace("│", "").split())
    for text in ("rounds (default 20)", "(default 0.05)", "fraction (default 1)", "(default auto)"):
        assert text in shown


def test_the_version() -> None:
    assert fedtail("--version").out == f"fedtail {__version__}\n"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("fedtail re", ["report", "reproduce"]),
        ("fedtail run --method fedad", ["fedadagrad", "fedadam"]),
        ("fedtail run --partition dir", ["dirichlet", "dirichlet-balanced"]),
        ("fedtail compare --method fedavgm --method creff --da", ["--data"]),
        ("fedtail data info cifar", ["cifar10", "cifar100"]),
    ],
)
def test_a_shell_completes_commands_flags_and_names(typed: str, offered: list[str]) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    code = "import sys; sys.argv = ['fedtail']; from fedtail.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **words, "_FEDTAIL_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == offered


def test_methods_are_listed_for_people_and_programs() -> None:
    rows = [line.split() for line in fedtail("methods").out.splitlines()]
    assert ["fedavg", "averaging", "Train", "locally,"] in [row[:4] for row in rows]
    listed = json.loads(fedtail("methods", "--json").out)
    assert [each["name"] for each in listed] == list(Method.registry)
    assert all({"name", "family", "paper"} <= each.keys() for each in listed)


def test_one_method_shows_its_fields_choices_and_paper() -> None:
    shown = fedtail("methods", "fedavg").out
    assert "AISTATS 2017" in shown
    assert ["method.local.lr", "0.05", "learning", "rate"] in [
        line.split() for line in shown.splitlines()
    ]
    assert "class_balanced, shuffled" in " ".join(shown.split())
    (facts,) = json.loads(fedtail("methods", "fedavg", "--json").out)
    loss = next(each for each in facts["parameters"] if each["name"] == "loss")
    assert loss["default"] == "cross_entropy"
    assert {"balanced_softmax", "cross_entropy"} <= set(loss["choices"])


def test_one_method_shows_the_fields_of_its_parts_and_of_theirs() -> None:
    (facts,) = json.loads(fedtail("methods", "ride", "--json").out)
    defaults = {each["name"]: each["default"] for each in facts["parameters"]}
    assert defaults["loss"] == "ride"
    assert defaults["loss.diversity"] == 0.2
    assert defaults["loss.base"] == "ldam"
    assert defaults["loss.base.drw_start"] == 2 / 3
    rows = [line.split()[:2] for line in fedtail("methods", "ride").out.splitlines()]
    assert ["method.loss.base.drw_start", "0.666667"] in rows


def test_the_fields_of_a_part_have_the_values_that_the_method_gives_it() -> None:
    # FedAvgM's part is the one of FedAvg, made with momentum.
    (facts,) = json.loads(fedtail("methods", "fedavgm", "--json").out)
    defaults = {each["name"]: each["default"] for each in facts["parameters"]}
    assert defaults["server_optimizer"] == "sgd"
    assert (
        defaults["server_optimizer.momentum"]
        == FedAvgM().describe()["server_optimizer"]["momentum"]
    )
    assert defaults["server_optimizer.momentum"] > 0


def test_methods_of_a_plug_in_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Method.registry, "_classes", dict(Method.registry._classes))
    plugin = tmp_path / "plug.py"
    plugin.write_text(PLUGIN)
    assert "My own." in fedtail("methods", "mine", "--plugin", str(plugin)).out


def test_data_is_listed() -> None:
    assert "digits" in fedtail("data", "list").out


def test_python_m_fedtail_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedtail", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == fedtail("--version").out
