"""Files that name plug-ins: nothing of them runs before the user says that it may."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import fedtail, one_sentence, write_npz

from fedtail import FedtailError
from fedtail.methods import Method
from fedtail.report import feature_view, read_run

MARKING = """
from pathlib import Path

from fedtail import FedAvg, Method

Path("it-ran").touch()


@Method.register("marking")
class Marking(FedAvg):
    '''Leaves a mark when it is imported.'''

    family = "own"
    paper = "none"
"""
TRUST = "--trust-plugins"
QUICK = ["--data", "mine.npz", "--clients", "3", "--rounds", "1", "--model", "mlp"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Method.registry, "_classes", dict(Method.registry._classes))
    write_npz(tmp_path / "mine.npz")
    Path("plug.py").write_text(MARKING)
    return tmp_path


def left_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a finished run whose folder names the plug-in, as somebody else may have left it."""
    with monkeypatch.context() as patch:
        patch.setattr(Method.registry, "_classes", dict(Method.registry._classes))
        words = [*QUICK, "--plugin", "./plug.py", "--method", "marking", "--out", "theirs"]
        assert fedtail("run", *words).code == 0
    # Their file, at a path that this process has not imported yet.
    Path("plug.py").rename("evil.py")
    file = Path("theirs/experiment.toml")
    file.write_text(file.read_text().replace("./plug.py", "evil.py"))
    Path("it-ran").unlink()


def test_every_command_that_takes_a_folder_or_a_file_asks_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left_by(monkeypatch)
    described = "theirs/experiment.toml"
    for words, file in {
        ("run", "--resume", "theirs"): "theirs",
        ("audit", "theirs"): "theirs",
        ("run", described, "--out", "mine"): described,
        ("compare", described, "--method", "fedavg", "--out", "mine"): described,
        ("split", described): described,
    }.items():
        assert one_sentence(fedtail(*words)) == (
            f"'{file}' names plug-ins, which are code that would run here: 'evil.py'; nothing was "
            "run; if you trust them, add --trust-plugins (in Python trust_plugins=True)"
        )
    said = one_sentence(fedtail("report", "theirs", "--features"))
    assert said.startswith("no features of 'theirs': 'theirs' names plug-ins, which are code")
    with pytest.raises(FedtailError, match="names plug-ins, which are code"):
        feature_view(read_run(Path("theirs")))
    assert fedtail("report", "theirs").code == 0  # a page alone needs no code of theirs
    assert not Path("it-ran").exists()
    assert not Path("mine").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--resume", "theirs", TRUST],
        ["audit", "theirs", TRUST],
        ["report", "theirs", "--features", "--samples", "5", TRUST],
        ["run", "theirs/experiment.toml", "--out", "mine", TRUST],
        ["run", "theirs/experiment.toml", "--out", "mine", "--plugin", "../here/evil.py"],
        ["run", "theirs/experiment.toml", "--out", "mine", 'plugins=["evil.py"]'],
        ["split", "theirs/experiment.toml", TRUST],
        ["compare", "theirs/experiment.toml", "--method", "marking", "--out", "mine", TRUST],
    ],
    ids=lambda words: " ".join(words[:1] + words[-1:]),
)
def test_what_is_trusted_runs(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write_npz(tmp_path / "here" / "mine.npz")
    Path("plug.py").write_text(MARKING)
    left_by(monkeypatch)
    done = fedtail(*words)
    assert done.code == 0, done.err
    assert Path("it-ran").exists()


def test_a_plug_in_that_the_command_names_as_well_is_listed_once() -> None:
    Path("it.toml").write_text('plugins = ["plug.py"]\nmethod = "marking"\n')
    words = ["run", "it.toml", "--plugin", "./plug.py", *QUICK, "--out", "mine"]
    assert fedtail(*words).code == 0
    assert 'plugins = [\n    "./plug.py",\n]' in Path("mine/experiment.toml").read_text()


def test_no_plug_ins_at_all_need_no_trust() -> None:
    Path("it.toml").write_text('plugins = ["plug.py"]\n')
    assert fedtail("run", "it.toml", "plugins=[]", *QUICK, "--out", "mine").code == 0
    assert not Path("it-ran").exists()


@pytest.mark.parametrize("listed", ['"evil.py"', "3", "[3]"])
def test_a_folder_whose_list_is_none_is_refused(listed: str) -> None:
    Path("theirs").mkdir()
    Path("theirs/experiment.toml").write_text(f"plugins = {listed}\n")
    said = one_sentence(fedtail("run", "--resume", "theirs", TRUST))
    assert "is refused: give a list, such as" in said


def test_an_interrupted_run_says_how_to_go_on_with_its_plug_ins() -> None:
    words = [*QUICK, "--plugin", "plug.py", "--method", "marking", "--out", "mine"]
    Path("plug.py").write_text(
        MARKING + "\n    def aggregate(self, s, found, server):\n        raise KeyboardInterrupt\n"
    )
    stopped = fedtail("run", *words)
    assert stopped.code == 130
    assert "go on with: fedtail run --resume mine --trust-plugins" in stopped.out
