"""The launcher's parts, without Flower's processes: refusals, watching, stopping."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tiny
from command_line import fedtail, one_sentence

from fedtail import Experiment, FedtailError, RunStopped, run
from fedtail.callbacks import Callback
from fedtail.engines.flower import Launch
from fedtail.engines.flower.follow import RunFollower
from fedtail.engines.flower.launcher import judge, launch_file, stored_launch
from fedtail.engines.flower.processes import Started, alive, descendants, free_ports, start, stop
from fedtail.engines.flower.status import StatusFiles
from fedtail.folder import RunFolder

FAMILY = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill soon: children are not asked to end, so that each stop takes the whole time."""
    monkeypatch.setattr("fedtail.engines.flower.processes.GRACE", 0.5)


def family(folder: Path, code: str = FAMILY) -> Started:
    made = start("parent", [sys.executable, "-c", code], folder / "log", {})
    until = time.monotonic() + 30
    while "up" not in made.log.read_text() and time.monotonic() < until:
        time.sleep(0.05)
    return made


@pytest.mark.slow
@pytest.mark.usefixtures("short_grace")
def test_stopping_ends_children_that_left_the_session(tmp_path: Path) -> None:
    made = family(tmp_path)
    children = descendants(made.process.pid)
    assert len(children) == 1
    stop([made])
    assert not any(alive(one.pid) for one in children)
    assert made.ended == f"parent ended with exit code -15 (log: {tmp_path / 'log'})"


@pytest.mark.slow
@pytest.mark.usefixtures("short_grace")
def test_stopping_ends_the_orphans_of_a_killed_parent(tmp_path: Path) -> None:
    made = family(tmp_path)
    seen = descendants(made.process.pid)
    made.process.kill()
    made.process.wait()
    assert descendants(made.process.pid) == set()
    assert all(alive(one.pid) for one in seen)
    stop([made], seen)
    assert not any(alive(one.pid) for one in seen)


@pytest.mark.slow
@pytest.mark.usefixtures("short_grace")
def test_a_process_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FAMILY
    made = family(tmp_path, deaf)
    stop([made])
    assert made.process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.usefixtures("short_grace")
def test_only_what_was_started_is_stopped(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        stop([family(tmp_path)])
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


STARTER = """
import sys, time
from pathlib import Path
from fedtail.engines.flower.processes import Watchdog, start
watchdog = Watchdog.over(Path("home"))
watchdog.watch(start("parent", [sys.executable, "-c", sys.argv[1]], Path("log"), {}))
print(watchdog.process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_what_a_killed_process_started_is_ended(tmp_path: Path) -> None:
    (tmp_path / "home" / "keys").mkdir(parents=True)
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, FAMILY], stdout=subprocess.PIPE, cwd=tmp_path
    )
    assert starter.stdout is not None
    watchdog = int(starter.stdout.readline())
    until = time.monotonic() + 60
    while "up" not in (tmp_path / "log").read_text() and time.monotonic() < until:
        time.sleep(0.05)
    made = descendants(starter.pid)
    assert len(made) == 3  # the watchdog, the parent and its child
    starter.kill()
    starter.communicate()
    while any(alive(one.pid) for one in made) and time.monotonic() < until:
        time.sleep(0.05)
    assert [one for one in made if alive(one.pid)] == []
    assert watchdog in {one.pid for one in made}
    assert not (tmp_path / "home").exists()


def test_ports_are_free_and_different() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert all(1024 <= port < 65536 for port in ports)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--engine", "flowr"], "did you mean 'flower'?"),
        (["--engine", "flower", "--nodes", "0"], "--nodes 0 is refused: give at least 1"),
        (["--engine", "flower", "--deadline", "-1"], "--deadline -1 is refused"),
        (["--engine", "flower", "--deadline", "nan"], "--deadline nan is refused"),
        (["--engine", "ray", "--tls"], "--tls is of --engine flower"),
        (["--nodes", "3"], "--nodes is of --engine flower"),
        (["--tls"], "--tls is of --engine flower"),
        (["--resume", "x", "--engine", "flower"], "give nothing else"),
        (["--engine", "flower", "--clients", "0"], "'clients'"),
    ],
)
def test_wrong_words_are_refused_before_anything_starts(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in one_sentence(fedtail("run", *words))
    assert list(tmp_path.iterdir()) == []


def test_what_exists_only_in_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match="the data of this experiment was made in Python"):
        Launch().run(tiny.experiment(), tmp_path / "run")
    with pytest.raises(FedtailError, match="the model of this experiment was made in Python"):
        Launch().run(Experiment(model=tiny.plain_model), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FedtailError, match=r"needs 'flwr'.*pip install '\.\[flower\]'"):
        Launch().run(Experiment(), tmp_path / "run")


def test_a_run_on_flower_is_not_resumed_in_this_process(tmp_path: Path) -> None:
    experiment = tiny.experiment(rounds=1)
    run(experiment, out=tmp_path / "run")
    (tmp_path / "run" / "flower").mkdir()
    with pytest.raises(FedtailError, match="is a run on Flower"):
        run(experiment, out=tmp_path / "run", resume=True)


def test_how_a_run_was_launched_is_remembered(tmp_path: Path) -> None:
    assert stored_launch(tmp_path) is None
    launch_file(tmp_path).parent.mkdir()
    launch_file(tmp_path).write_text(json.dumps({"engine": "ray", "nodes": 5}))
    assert stored_launch(tmp_path) == Launch("ray", 5)


class Told(Callback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.words: list[Any] = []

    def on_round(self, record: Any) -> None:
        self.words.append(record["round"])

    def on_warning(self, message: str) -> None:
        self.words.append(message)


def test_a_run_elsewhere_is_watched_through_its_folder(tmp_path: Path) -> None:
    told, status = Told(), StatusFiles(tmp_path)
    status.clear()
    watch = RunFollower(RunFolder(tmp_path), [told], done=1)
    watch.look()
    lines = [
        {"round": n, "dropped": [{"client": 4, "reason": "was ill"}] * (n == 2)} for n in (1, 2)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines) + '{"rou')
    status.warn("odd")
    for _ in range(2):
        watch.look()
    assert told.words == ["round 2: client 4 is left out: was ill", 2, "odd"]


@pytest.mark.parametrize(
    ("raised", "expected", "text"),
    [
        (FedtailError("wrong"), FedtailError, "wrong"),
        (RunStopped("too few"), RunStopped, "too few"),
        (ZeroDivisionError("by zero"), RunStopped, "ZeroDivisionError: by zero"),
    ],
)
def test_what_the_server_raised_is_raised_here(
    raised: Exception, expected: type[Exception], text: str, tmp_path: Path
) -> None:
    status = StatusFiles(tmp_path)
    status.clear()
    assert status.read() == {}
    with pytest.raises(type(raised)), status.attended():
        assert status.read() == {"pid": os.getpid(), "reason": "", "ended": ""}
        raise raised
    with pytest.raises(expected, match=text):
        judge(status.read())
