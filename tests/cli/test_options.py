"""Flags, words and files become one description: the file, then the flags, then the words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedtail.cli.describe import described, experiment_from
from fedtail.cli.options import FLAGS
from fedtail.data.longtail import Exponential, Step
from fedtail.described import apply, parse_overrides, parse_value
from fedtail.errors import FedtailError
from fedtail.study.spec import LONGEST, folder_name, split_spec


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("true", True),
        ('"3"', "3"),
        ("cosine", "cosine"),
        ("a b", "a b"),
        ("", ""),
        ("[1, 2]", [1, 2]),
        ('["tensorboard"]', ["tensorboard"]),
        ("[a, b]", "[a, b]"),
        ("True", "True"),
        ('{name = "step", gamma = 0.5}', {"name": "step", "gamma": 0.5}),
        ("data/mine.npz", "data/mine.npz"),
        ("1\nrounds = 9", "1\nrounds = 9"),
    ],
)
def test_a_value_is_toml_or_text(text: str, value: Any) -> None:
    assert parse_value(text) == value


def test_overrides_are_split_at_the_first_equals_sign() -> None:
    assert parse_overrides(["a.b=1", "name = x=y"]) == [("a.b", 1), ("name", "x=y")]
    with pytest.raises(FedtailError, match=r"'=1' is not of the form section\.field=value"):
        parse_overrides(["=1"])


def test_the_last_word_wins(tmp_path: Path) -> None:
    file = tmp_path / "it.toml"
    file.write_text("rounds = 1\nseed = 1\nclients = 3\n")
    words = [str(file), "rounds=3"]
    assert described(words, {"rounds": 2, "seed": 2}, None) == {
        "rounds": 3,
        "seed": 2,
        "clients": 3,
    }


def test_every_flag_sets_its_field() -> None:
    values = {str: "x", int: 3, float: 0.5, bool: True}
    for name, flag in FLAGS.items():
        at: Any = described(None, {name: values[flag.kind]}, None)
        for part in flag.path.split("."):
            at = at[part]
        assert at == values[flag.kind]


def test_another_method_keeps_how_clients_train() -> None:
    plain: dict[str, Any] = {"method": {"name": "a", "tau": 2, "local": {"lr": 0.2}}}
    apply(plain, "method", "b")
    assert plain == {"method": {"name": "b", "local": {"lr": 0.2}}}


def test_a_method_that_does_not_train_leaves_local_training_out() -> None:
    plain: dict[str, Any] = {"method": {"local": {"lr": 0.2}}}
    apply(plain, "method", "closed-form")
    assert plain == {"method": {"name": "closed-form"}}
    with pytest.raises(FedtailError, match="unknown key 'local'"):
        experiment_from(["method.local.lr=0.1"], {"method": "closed-form"}, None)


def test_the_same_method_keeps_its_fields() -> None:
    plain: dict[str, Any] = {"method": {"name": "a", "tau": 2}}
    apply(plain, "method", "a")
    assert plain == {"method": {"name": "a", "tau": 2}}


def test_another_partition_forgets_the_old_one() -> None:
    plain: dict[str, Any] = {"partition": {"name": "dirichlet", "alpha": 0.3}}
    apply(plain, "partition", "iid")
    assert plain == {"partition": {"name": "iid"}}


def test_fields_before_their_name_are_kept() -> None:
    made = experiment_from(None, {"imbalance": 10.0, "tail": "step"}, None)
    assert made.tail == Step(imbalance=10)


def test_a_ratio_alone_is_an_exponential_tail() -> None:
    assert experiment_from(None, {"imbalance": 10.0}, None).tail == Exponential(imbalance=10)


@pytest.mark.parametrize(
    ("words", "flags"), [([], {"data": "mine.npz"}), (["data.path=mine.npz"], {})]
)
def test_a_path_of_an_npz_is_a_source(words: list[str], flags: dict[str, str]) -> None:
    assert experiment_from(words, flags, None).data.describe()["path"] == "mine.npz"


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("fedavg", ["fedavg"]),
        ("fedavg, loss=a ,local.lr=0.1", ["fedavg", "loss=a", "local.lr=0.1"]),
        ("a,x=[1,2],y={b=1,c=2}", ["a", "x=[1,2]", "y={b=1,c=2}"]),
        ("""a,x="p,q",y='r,s'""", ["a", 'x="p,q"', "y='r,s'"]),
    ],
)
def test_a_spec_is_split_at_its_own_commas(spec: str, parts: list[str]) -> None:
    assert split_spec(spec) == parts


def test_a_folder_name_fits_a_file_system_in_any_script() -> None:
    long = [f"联邦{'学习' * 100}{end}" for end in "ab"]
    names = [folder_name(label, 10**9) for label in long]
    assert len(set(names)) == 2
    assert all(len(name.encode()) <= 255 - len(".model.safetensors.tmp") for name in names)


def test_folder_names_are_safe_and_differ() -> None:
    assert folder_name("fedavg,loss=a/b", 3) == "fedavg-loss=a-b-seed3"
    long = [f"fedavg,{'x' * 300}={end}" for end in "ab"]
    names = {folder_name(spec, 0) for spec in long}
    assert len(names) == 2
    assert all(len(name) < LONGEST + 20 for name in names)
