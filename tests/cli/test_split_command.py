"""`fedtail split`: a table, a picture in the terminal, a picture in a file, and JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from command_line import fedtail, files, one_sentence, write_npz
from rich.console import Console

from fedtail import Dirichlet, NoTail, make_split


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "mine.npz")


def test_it_is_shown_drawn_and_written() -> None:
    words = ["--data", "mine.npz", "--partition", "natural", "--png", "a.png", "--save", "a.json"]
    done = fedtail("split", *words)
    assert done.code == 0, done.err
    assert "3 clients, 40 samples" in done.out
    assert "█" in done.out
    assert "mean total variation to the global mix" in done.out
    assert done.out.endswith("written: a.png\nwritten: a.json\n")
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    # Sample i is of class i mod 4 and of client i mod 3: 14, 13 and 13 samples.
    assert [sum(row) for row in json.loads(Path("a.json").read_text())["counts"]] == [14, 13, 13]
    assert not Path("runs").exists()


def test_it_is_the_split_that_a_run_trains_on() -> None:
    words = ["--data", "mine.npz", "--imbalance", "2", "--alpha", "0.5", "--clients", "3"]
    assert fedtail("split", *words, "--seed", "2", "--save", "a.json").code == 0
    assert fedtail("run", *words, "--seed", "2", "--rounds", "1", "--out", "out").code == 0
    assert Path("a.json").read_text() == Path("out/split.json").read_text()


def test_a_picture_in_another_format() -> None:
    assert fedtail("split", "--data", "mine.npz", "--clients", "3", "--png", "a.svg").code == 0
    assert "<svg" in Path("a.svg").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--png", "a.foo"], "unknown picture format 'foo'"),
        (["--png", "no/a.png"], "cannot write 'no/a.png': No such file or directory"),
        (["--save", "no/a.json"], "cannot write 'no/a.json': No such file or directory"),
        (["--alpha", "0"], "'partition.alpha' = 0.0 is refused"),
        (["--rounds", "3"], "no such option '--rounds'"),
    ],
)
def test_wrong_input_is_one_sentence_and_leaves_nothing(words: list[str], said: str) -> None:
    before = sorted(Path().iterdir())
    done = fedtail("split", "--data", "mine.npz", "--clients", "3", *words)
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1
    assert sorted(Path().iterdir()) == before


def test_numbers_are_whole_at_80_columns() -> None:
    labels = np.repeat(np.arange(10), 6000)
    made = make_split(labels, 10, NoTail(), Dirichlet(alpha=0.3), 4, 0)
    text = io.StringIO()
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "van"]
    Console(file=text, width=80).print(made.table(names))
    assert "…" not in text.getvalue()
    total = next(line for line in text.getvalue().splitlines() if line.split()[:1] == ["all"])
    assert total.split() == ["all", *["6000"] * 10, "60000", "10"]


def test_brackets_and_dollars_in_names_are_letters(tmp_path: Path) -> None:
    names = np.array(["crack [edge]", "crack [/]", "[bold]", "$a_{$"])
    clients = np.array(["site [a]", "[/]", "[red]x"])[np.arange(40) % 3]
    write_npz(tmp_path / "odd.npz", classes=names, client_train=clients)
    words = ["--data", "odd.npz", "--partition", "natural", "--png", "odd.svg"]
    done = fedtail("split", *words, columns=120)
    assert done.code == 0, done.err
    assert "<!-- $a_{$ -->" in Path("odd.svg").read_text()
    for name in (*names, *clients[:3]):
        assert name in done.out
    assert sum("[red]x" in line for line in done.out.splitlines()) == 2  # table and picture


@pytest.mark.parametrize("flag", ["--png", "--save"])
@pytest.mark.parametrize("name", ["mine.npz", "a.toml"])
def test_what_is_read_is_not_written_over(flag: str, name: str) -> None:
    Path("a.toml").write_text("clients = 3\n")
    before = Path(name).read_bytes()
    done = fedtail("split", "a.toml", "--data", "mine.npz", flag, name)
    assert one_sentence(done) == f"'{name}' is refused: it is an input; name another file"
    assert Path(name).read_bytes() == before


def test_the_files_of_a_run_are_not_written_over() -> None:
    words = ["--data", "mine.npz", "--clients", "3"]
    assert fedtail("run", *words, "--rounds", "1", "--out", "out").code == 0
    before = files(Path("out"))
    for name in ("out/split.json", "out/checkpoint/mine.json"):
        assert "is refused: it is among the files of a run" in one_sentence(
            fedtail("split", *words, "--save", name)
        )
    assert files(Path("out")) == before
    assert fedtail("split", *words, "--png", "out/split.png").code == 0
    Path("experiment.toml").write_text("")  # no run: what one begins with
    assert fedtail("split", *words, "--save", "split.json").code == 0
