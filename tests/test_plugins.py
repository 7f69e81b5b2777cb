"""A user's own components, from a file or a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedtail.errors import FedtailError
from fedtail.losses import LocalLoss
from fedtail.plugins import load_plugins

LOSS = """
from fedtail import LocalLoss

@LocalLoss.register("{name}")
class Mine(LocalLoss):
    '''One more loss.'''
"""


@pytest.fixture(autouse=True)
def registry_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(LocalLoss.registry, "_classes", dict(LocalLoss.registry._classes))
    yield


def written(path: Path, name: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(LOSS.format(name=name))
    return str(path)


def test_a_file_registers_what_it_holds(tmp_path: Path) -> None:
    load_plugins([written(tmp_path / "plug_one.py", "plug-one")])
    assert LocalLoss.model_validate("plug-one").name == "plug-one"


def test_a_file_is_loaded_once(tmp_path: Path) -> None:
    file = written(tmp_path / "plug_two.py", "plug-two")
    load_plugins([file, file])
    load_plugins([file])
    assert "plug-two" in LocalLoss.registry


def test_two_files_of_the_same_name_are_both_loaded(tmp_path: Path) -> None:
    load_plugins(
        [
            written(tmp_path / "a" / "plug_three.py", "plug-three-a"),
            written(tmp_path / "b" / "plug_three.py", "plug-three-b"),
        ]
    )
    assert "plug-three-a" in LocalLoss.registry
    assert "plug-three-b" in LocalLoss.registry


def test_a_module_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "plug_module.py", "plug-module")
    monkeypatch.syspath_prepend(tmp_path)
    load_plugins(["plug_module"])
    assert "plug-module" in LocalLoss.registry


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match=r"plug-in file '.*none\.py' does not exist"):
        load_plugins([str(tmp_path / "none.py")])


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(FedtailError, match="plug-in 'no_such_module_at_all' cannot be imported"):
        load_plugins(["no_such_module_at_all"])


def test_a_file_that_fails_can_be_corrected_and_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "plug_four.py"
    path.write_text("1 / 0")
    with pytest.raises(FedtailError, match="division by zero"):
        load_plugins([str(path)])
    load_plugins([written(path, "plug-four")])
    assert "plug-four" in LocalLoss.registry
