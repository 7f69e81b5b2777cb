from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from fedtail.data.sources import Source
from fedtail.errors import FedtailError

with warnings.catch_warnings():
    # Typer's own import uses names that Click has deprecated.
    warnings.filterwarnings("ignore", "'click", DeprecationWarning)
    from typer.testing import CliRunner

    from fedtail.cli.data import data_app

runner = CliRunner()


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDTAIL_DATA", str(tmp_path))
    return tmp_path


def write_mnist(data: Path) -> Path:
    x, y = np.zeros((6, 28, 28), np.uint8), np.array([0, 0, 0, 0, 1, 1])
    np.savez(data / "mnist.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return data / "mnist.npz"


def test_list_shows_every_source(data: Path) -> None:
    write_mnist(data)
    result = runner.invoke(data_app, ["list"], env={"COLUMNS": "400"})
    assert result.exit_code == 0
    assert all(name in result.output for name in Source.registry)
    assert str(data / "mnist.npz") in result.output
    assert "fedtail data fetch cifar10" in result.output
    assert "needs the extra hf" in result.output


def test_list_is_readable_at_80_columns(data: Path) -> None:
    path = write_mnist(data)
    lines = runner.invoke(data_app, ["list"], env={"COLUMNS": "80"}).output.splitlines()
    # A path is whole, whatever its length: it is there to be copied.
    assert all(len(line) <= 80 for line in lines if str(data) not in line)
    at = lines.index("mnist            hand-written digits, 28x28 grey")
    assert lines[at + 1].strip() == "train / test: 60,000 / 10,000; 10 classes"
    assert f"here: {path}" in " ".join(line.strip() for line in lines[at + 2 : at + 4])
    assert any(line.endswith("62 classes; from 3,400 writers") for line in lines)
    at = next(n for n, line in enumerate(lines) if line.startswith("npz "))
    assert lines[at + 1].strip() == "to have it: data.path=FILE.npz"  # its samples are yours


def test_list_as_json(data: Path) -> None:
    rows = {
        row["name"]: row for row in json.loads(runner.invoke(data_app, ["list", "--json"]).output)
    }
    assert set(rows) == set(Source.registry)
    assert rows["digits"]["path"] == "built in"
    assert rows["cifar100"]["get"] == "fedtail data fetch cifar100"
    assert rows["femnist"]["natural_clients"] == "3,400 writers"


def test_a_source_of_ones_own_is_listed_and_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Source.registry, "_classes", dict(Source.registry._classes))
    plugin = tmp_path / "sources.py"
    plugin.write_text(
        "import numpy as np\n"
        "from fedtail import Arrays, Source\n"
        "@Source.register('own-blobs')\n"
        "class Blobs(Source):\n"
        "    points: int = 40\n"
        "    def load(self):\n"
        "        y = np.arange(self.points) % 4\n"
        "        return Arrays(np.eye(4)[y], y).load()\n"
    )
    given = ["--plugin", str(plugin)]
    assert "own-blobs" in runner.invoke(data_app, ["list", *given]).output
    told = runner.invoke(data_app, ["info", "own-blobs", "data.points=80", *given]).output
    assert "samples: 64 train, 16 test" in told


def test_fetch_prints_the_path(data: Path) -> None:
    path = write_mnist(data)
    result = runner.invoke(data_app, ["fetch", "mnist"])
    assert result.output.strip() == str(path)


def test_fetch_raises_one_sentence() -> None:
    with pytest.raises(FedtailError, match="did you mean 'mnist'"):
        runner.invoke(data_app, ["fetch", "mnits"], catch_exceptions=False)


def test_info_describes_what_is_here(data: Path) -> None:
    write_mnist(data)
    output = runner.invoke(data_app, ["info", "mnist"]).output
    assert "data.normalisation (default none)" in output
    assert "samples: 6 train, 6 test" in output
    assert "input: 1x28x28, uint8" in output
    assert "model: cnn" in output
    assert "imbalance 2" in output


def test_info_says_how_to_get_what_is_not_here() -> None:
    assert "run `fedtail data fetch cifar10`" in runner.invoke(data_app, ["info", "cifar10"]).output
    assert "data.path (required)" in runner.invoke(data_app, ["info", "npz"]).output


def test_info_reads_a_file_of_your_own(tmp_path: Path) -> None:
    x, y = np.eye(4, dtype=np.float32), np.array([0, 0, 0, 1])
    owner = np.array(["ann", "ann", "bob", "bob"])
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y, client_train=owner)
    output = runner.invoke(data_app, ["info", str(tmp_path / "own.npz")]).output
    assert "clients: 2 with training data" in output
    assert "imbalance 3" in output


def test_info_takes_fields_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows = [f"{i},{2 * i},{'ab'[i % 2]},site {i % 4}" for i in range(40)]
    path.write_text("\n".join(["f,g,kind,site", *rows]))
    words = ["info", str(path), "data.client=site", "data.label=kind"]
    output = runner.invoke(data_app, words).output
    assert "input: 2, float32" in output
    assert "clients: 3 with training data" in output  # the fourth tests
    for odd, said in (("site=1", "'site' is no field"), ("data.sites=1", "unknown key 'sites'")):
        with pytest.raises(FedtailError, match=said):
            runner.invoke(data_app, ["info", str(path), odd], catch_exceptions=False)
