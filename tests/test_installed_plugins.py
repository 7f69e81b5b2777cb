"""Components of installed packages, found through their entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import fedtail, one_sentence

from fedtail import FedtailError, LocalLoss, Method

METHOD = '''
from fedtail import FedAvg, Method


@Method.register("{name}")
class Theirs(FedAvg):
    """A method of theirs."""

    family = "theirs"
    paper = "none"
'''
LOSS = '''
from fedtail import CrossEntropy, LocalLoss


@LocalLoss.register("their-loss")
class TheirLoss(CrossEntropy):
    """A loss of theirs."""
'''


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder of packages on the path, as `pip install --target` leaves one."""
    for registry in (Method.registry, LocalLoss.registry):
        monkeypatch.setattr(registry, "_classes", dict(registry._classes))
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("theirs"):
            del sys.modules[name]


def install(site: Path, package: str, entries: dict[str, str], **modules: str) -> None:
    """Put a package and what a wheel says of it into the folder."""
    (site / package).mkdir()
    (site / package / "__init__.py").write_text("")
    for module, text in modules.items():
        (site / package / f"{module}.py").write_text(text)
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[fedtail.plugins]", *lines, ""]))


def test_a_method_is_found_by_its_name_and_nothing_else_is_imported(site: Path) -> None:
    install(
        site,
        "theirs_a",
        {"their-method": "theirs_a.method", "their-loss": "theirs_a.loss"},
        method=METHOD.format(name="their-method"),
        loss=LOSS,
    )
    assert "theirs_a" not in sys.modules
    assert Method.model_validate("their-method").family == "theirs"
    assert "theirs_a.method" in sys.modules
    assert "theirs_a.loss" not in sys.modules


def test_an_entry_point_may_be_called_otherwise_than_what_it_registers(site: Path) -> None:
    install(site, "theirs_b", {"collection": "theirs_b.method"}, method=METHOD.format(name="b-one"))
    assert Method.model_validate({"name": "b-one"}).name == "b-one"


def test_parts_are_found_too(site: Path) -> None:
    install(site, "theirs_c", {"anything": "theirs_c.loss"}, loss=LOSS)
    method: Method[object] = Method.model_validate({"name": "fedavg", "loss": "their-loss"})
    assert method.describe()["loss"] == {"name": "their-loss"}


def test_one_that_cannot_be_imported_is_the_error_if_it_was_asked_for(site: Path) -> None:
    install(site, "theirs_d", {"d-one": "theirs_d.method"}, method="\nimport no_such_thing\n")
    with pytest.raises(FedtailError) as refused:
        Method.model_validate("d-one")
    assert str(refused.value) == (
        "plug-in 'theirs_d.method' of the installed package 'theirs_d' cannot be imported: "
        "ModuleNotFoundError: No module named 'no_such_thing'"
    )


def test_another_that_cannot_is_said_where_a_name_is_unknown(site: Path) -> None:
    install(site, "theirs_e", {"e-one": "theirs_e.method"}, method="1 / 0\n")
    said = one_sentence(fedtail("run", "--method", "fedavgg"))
    assert said.startswith("method: unknown method 'fedavgg'; did you mean 'fedavg'?")
    assert said.endswith(
        "plug-in 'theirs_e.method' of the installed package 'theirs_e' cannot be imported: "
        "ZeroDivisionError: division by zero"
    )


def test_they_are_listed_and_a_broken_one_is_a_warning(site: Path) -> None:
    install(site, "theirs_f", {"f-one": "theirs_f.method"}, method=METHOD.format(name="f-one"))
    install(site, "theirs_g", {"g-one": "theirs_g.method"}, method="1 / 0\n")
    done = fedtail("methods")
    assert done.code == 0
    assert "f-one" in done.out
    assert done.err.startswith("warning: plug-in 'theirs_g.method' of the installed package")
    assert done.err.count("\n") == 1
    assert fedtail("methods", "fedavg").err == ""  # who asks for one thing gets one thing


def test_what_is_known_asks_no_package(site: Path) -> None:
    install(site, "theirs_h", {"fedavg": "theirs_h.method"}, method="1 / 0\n")
    assert Method.model_validate("fedavg").name == "fedavg"
