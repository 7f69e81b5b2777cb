"""Rows of texts and numbers: CSV, TSV, JSON Lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import fedtail, one_sentence

from fedtail import Experiment, FedtailError
from fedtail.data.sources import TableFile
from fedtail.data.texts import Texts
from fedtail.described import source_of

ROWS = [("good, very good", "glad", "ann"), ("", "sad", "bob"), ('a "film"', "glad", "ann")] * 5


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def csv_of(path: Path) -> Path:
    quoted = ['"' + t.replace('"', '""') + f'",{label},{who}' for t, label, who in ROWS]
    return write(path, "\n".join(["text,label,who", *quoted, ""]))


def jsonl_of(path: Path) -> Path:
    plain = [{"text": t, "label": label, "who": who} for t, label, who in ROWS]
    return write(path, "\n".join(map(json.dumps, plain)))


@pytest.mark.parametrize("make", [csv_of, jsonl_of])
def test_texts_labels_and_clients_are_read(make: Any, tmp_path: Path) -> None:
    path = make(tmp_path / f"rows.{make.__name__.removesuffix('_of')}")
    dataset = TableFile(path=path, client="who", test=path).load()
    assert isinstance(dataset.train.x, Texts)
    assert dataset.train.x.values.tolist() == [text for text, _, _ in ROWS]
    assert dataset.classes == ("glad", "sad")
    assert dataset.train.y.tolist() == [0, 1, 0] * 5
    assert dataset.client_names == ("ann", "bob")
    assert dataset.given.named
    # Without a test file, whole clients are held out, or a fifth of each class.
    assert len(set(TableFile(path=path, client="who").load().client_train.tolist())) == 1  # type: ignore[union-attr]
    assert TableFile(path=path).load().test.y.tolist().count(0) == 2


def test_columns_are_known_by_their_names(tmp_path: Path) -> None:
    train = write(tmp_path / "n.csv", "a,b,label\n1,20,x\n2,10,y\n3,30,x\n")
    # The other order, and a column more.
    test = write(tmp_path / "t.csv", "b,who,label,a\n50,ann,x,5\n")
    dataset = TableFile(path=train, test=test).load()
    assert dataset.test.x[torch.tensor([0])].tolist() == [[5.0, 50.0]]
    assert dataset.given.columns == ("a", "b")
    lacks = write(tmp_path / "lacks.csv", "c,b,label\n5,50,x\n")
    with pytest.raises(FedtailError, match=r"lacks.csv has no column 'a'"):
        TableFile(path=train, test=lacks).load()
    # So does a model that is trained on it.
    out = str(tmp_path / "run")
    data = ("--data", str(train), f"data.test={test}", "--clients", "1", "--rounds", "1")
    assert fedtail("run", *data, "--out", out).code == 0
    rows = write(tmp_path / "new.csv", "a,b\n5,50\n3,10\n")
    turned = write(tmp_path / "turned.csv", "b,id,a\n50,7,5\n10,8,3\n")
    told = []
    for table in (rows, turned):
        answers = tmp_path / f"{table.stem}-answers.csv"
        assert fedtail("predict", out, str(table), "--out", str(answers)).code == 0
        told.append(answers.read_text())
    assert told[0] == told[1]
    assert "has no column 'a'" in one_sentence(fedtail("predict", out, str(lacks)))


def test_columns_of_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "n.tsv", "a\tb\tlabel\n1\t2.5\t10\n-3\t4e0\t9\n" * 1 + "0\t0\t10\n")
    dataset = TableFile(path=path, test=path).load()
    assert isinstance(dataset.train.x, torch.Tensor)
    assert dataset.train.x.tolist() == [[1.0, 2.5], [-3.0, 4.0], [0.0, 0.0]]
    assert dataset.classes == ("9", "10")  # by value, and predictions are called so
    assert dataset.train.y.tolist() == [1, 0, 1]
    one = TableFile(path=path, test=path, input="b").load()
    assert one.train.x[torch.tensor([0])].tolist() == [[2.5]]
    assert Experiment(data={"name": "table", "path": path, "input": ["b", "a"]}).data.input == (  # type: ignore[attr-defined]
        "b",
        "a",
    )


@pytest.mark.parametrize(
    ("name", "text", "fields", "said"),
    [
        ("a.csv", "text,label\nx,1,2\n", {}, "line 2: 3 values, but the first line names 2"),
        ("a.csv", "text,text\nx,1\n", {}, "two columns are called 'text'"),
        ("a.csv", "text,label\n", {}, "holds no rows"),
        ("a.csv", "", {}, "holds no rows"),
        ("a.csv", "text,mood\nx,1\n", {}, r"no column 'label' \(found: text, mood\)"),
        ("a.csv", "text,label\nx,\n", {}, "row 1: 'label' is '', and a name"),
        ("a.csv", 'text,label\n"x,1\n', {}, "cannot be read"),
        ("a.csv", "label\nx\n", {}, "no column of inputs beside 'label'"),
        ("a.csv", "a,b,label\n1,x,0\n", {}, "row 1: 'b' is 'x', which is no number"),
        ("a.csv", "a,b,label\n1,x,0\n", {"input": "c"}, "no column 'c'"),
        ("a.jsonl", '{"text": "x"\n', {}, "line 1 is not JSON"),
        ("a.jsonl", "[1]\n", {}, r"line 1: an object is needed, got \[1\]"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "y"}\n', {}, "row 2: 'label' is not in"),
        ("a.jsonl", '{"text": null, "label": 1}\n', {}, "row 1: a text is needed, got None"),
        ("a.jsonl", '{"text": "x", "label": 0.5}\n', {}, "'label' is 0.5, and a name"),
        ("a.jsonl", '{"text": "x", "label": null}\n', {}, "'label' is None, and a name"),
        ("a.xlsx", "", {}, "is no table"),
    ],
)
def test_wrong_tables_are_refused(
    name: str, text: str, fields: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(FedtailError, match=said):
        TableFile(path=write(tmp_path / name, text), **fields).load()


def test_what_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("text,label\ngrün,1\n".encode("latin-1"))
    with pytest.raises(FedtailError, match=r"a\.csv is not UTF-8 text"):
        TableFile(path=tmp_path / "a.csv").load()


def test_a_file_names_its_source(tmp_path: Path) -> None:
    names = {"a.npz": "npz", "A.CSV": "table", "b/c.jsonl": "table", "npz:a.npz": None, "a": None}
    assert {name: source_of(name) for name in names} == names
    path = csv_of(tmp_path / "rows.csv")
    told = fedtail("data", "info", str(path))
    assert "input: texts, for a pretrained model" in told.out
    assert "samples: 12 train, 3 test" in told.out
    refused = one_sentence(fedtail("run", "--data", str(path), "--out", str(tmp_path / "run")))
    assert "which only a model with a tokeniser reads" in refused
    assert not (tmp_path / "run").exists()


def test_a_column_without_a_name_is_asked_about(tmp_path: Path) -> None:
    # As pandas writes it: with rows sorted by class, the number of the row would tell the label.
    rows = [f"{i},{i % 3},{i % 2},{'ab'[i // 10]}" for i in range(20)]
    path = write(tmp_path / "rows.csv", "\n".join([",x,y,label", *rows]))
    with pytest.raises(FedtailError, match="has a column without a name, which may be the number"):
        TableFile(path=path).load()
    assert TableFile(path=path, input=("x", "y")).load().input_shape == (2,)


@pytest.mark.parametrize("odd", ["--1", "9" * 5000])
def test_labels_that_only_look_like_whole_numbers_are_names(odd: str, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", "\n".join(["x,label", *["1,2", f"2,{odd}", "3,10"] * 9]))
    assert TableFile(path=path).load().classes == tuple(sorted([odd, "2", "10"]))
