"""Runs that fail: the exit code, the place of the mistake, and how to go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import fedtail, one_sentence, write_npz

from fedtail.methods import Method

PLUGIN = '''
from pathlib import Path

from fedtail import FedAvg, FedtailError, Method


def broken(where):
    return Path("broken").exists() and Path("broken").read_text() == where


@Method.register("typos")
class Typos(FedAvg):
    """Has a mistake in each half, in round 2, for as long as a file names it."""

    def prepare(self, run):
        if run.client.round == 2 and run.client.id == 1:
            if broken("client"):
                return clientt
            if broken("wrong use"):
                raise FedtailError("it needs a linear classifier")
            if broken("wrong field"):
                self.local.but(lr=-1.0)
        if run.client.round == 2 and broken("all clients"):
            return clientt

    def aggregate(self, s, found, server):
        if server.round == 2 and broken("server"):
            Path("no such file").read_text()
        return super().aggregate(s, found, server)
'''
CLIENT, FIELD, SERVER = (
    PLUGIN[: PLUGIN.index(text)].count("\n") + 1 for text in ("clientt\n", "lr=-1", 'Path("no')
)
RUN = ["run", "--data", "mine.npz", "--clients", "3", "--rounds", "3", "--out", "out"]
TYPOS = [*RUN, "--plugin", "plug.py", "--method", "typos"]
DIVERGING = "fedavg,local.lr=1e20,local.epochs=5"
ON = "go on with: fedtail run --resume out"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Method.registry, "_classes", dict(Method.registry._classes))
    write_npz(tmp_path / "mine.npz")
    (tmp_path / "plug.py").write_text(PLUGIN)
    return tmp_path


def test_a_typo_in_the_client_half(here: Path) -> None:
    Path("broken").write_text("client")
    done = fedtail(*TYPOS)
    assert done.code == 1
    assert done.out.endswith(f"{ON} --trust-plugins\n")
    assert done.err.startswith("Traceback (most recent call last):\n")
    assert f'plug.py", line {CLIENT}, in prepare' in done.err
    assert done.err.endswith(
        "NameError: name 'clientt' is not defined\n"
        "raised by the method: client 1, action 'train', round 2\n"
    )
    assert not Path("out/model.safetensors").exists()
    # The checkpoint stands: what is mended goes on, to the model of a run that never failed.
    Path("broken").unlink()
    mended = fedtail("run", "--resume", "out", "--trust-plugins")
    assert (mended.code, "continued after round 1" in mended.out) == (0, True)
    assert fedtail(*TYPOS[:8], "other", *TYPOS[9:]).out.split()[-1] == mended.out.split()[-1]


@pytest.mark.timeout(120)
def test_a_typo_in_the_client_half_in_a_worker_process() -> None:
    Path("broken").write_text("client")
    done = fedtail(*TYPOS, "--workers", "2")
    assert done.code == 1
    assert done.out.endswith(f"{ON} --trust-plugins\n")
    assert done.err.startswith(
        f"error: NameError: name 'clientt' is not defined (plug.py, line {CLIENT}): client 1, "
        "action 'train', round 2\nIn a worker process:\nTraceback (most recent call last):\n"
    )
    assert f'plug.py", line {CLIENT}, in prepare' in done.err


@pytest.mark.parametrize(
    "workers", ["0", pytest.param("2", marks=(pytest.mark.slow, pytest.mark.timeout(120)))]
)
def test_a_typo_in_the_server_half(workers: str) -> None:
    # A file that is not found is otherwise a sentence about the user's input.
    Path("broken").write_text("server")
    done = fedtail(*TYPOS, "--workers", workers)
    assert done.code == 1
    assert done.out.endswith(f"{ON} --trust-plugins\n")
    assert f'plug.py", line {SERVER}, in aggregate' in done.err
    assert done.err.endswith("\nraised by the method: server half, round 2\n")


def test_wrong_use_found_by_the_client_half_is_a_sentence() -> None:
    Path("broken").write_text("wrong use")
    assert one_sentence(fedtail(*TYPOS)) == "it needs a linear classifier"


def test_what_a_plugin_calls_wrongly_is_a_sentence_with_its_line() -> None:
    Path("broken").write_text("wrong field")
    said = one_sentence(fedtail(*TYPOS))
    assert said.startswith("'lr' = -1.0 is refused")
    assert said.endswith(f" (plug.py, line {FIELD})")


def test_clients_that_fail_are_dropped_if_one_says_so() -> None:
    Path("broken").write_text("client")
    done = fedtail(*TYPOS, "--on-client-error", "drop")
    assert done.code == 0, done.err
    warning = "warning: round 2: client 1 is left out: NameError: name 'clientt' is not defined"
    assert done.out.count(warning) == 1
    assert done.err == ""
    Path("broken").write_text("all clients")
    stopped = fedtail(*TYPOS, "--on-client-error", "drop", "name=again", "--out", "again")
    assert stopped.code == 1
    assert "every client failed, the first, client 0: NameError: name 'clientt'" in stopped.err
    assert "'on_client_error' = 'ignore' is refused" in one_sentence(
        fedtail(*TYPOS, "--on-client-error", "ignore", "--out", "third")
    )


def test_a_run_that_diverges_ends_with_1_and_ships_nothing() -> None:
    done = fedtail("run", "--lr", "1e20", "--rounds", "5", "--out", "out")
    assert done.code == 1
    assert done.out.endswith(f"{ON}\n")
    assert done.err.startswith("error: no valid update in 3 rounds, up to round 3 (the first, cli")
    assert not Path("out/model.safetensors").exists()
    assert not Path("out/report.html").exists()
    again = fedtail("run", "--resume", "out")
    assert (again.code, again.err) == (1, done.err)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "workers", ["0", pytest.param("2", marks=pytest.mark.slow)], ids=["alone", "workers"]
)
def test_in_a_comparison_the_others_go_on(workers: str) -> None:
    Path("broken").write_text("client")
    compared = ["compare", *RUN[1:], "--plugin", "plug.py", "--workers", workers]
    methods = ["--method", "typos", "--method", DIVERGING, "--method", "fedavg"]
    done = fedtail(*compared, *methods)
    assert done.code == 1
    typos, diverged, good = json.loads(Path("out/comparison.json").read_text())
    place = f"NameError: name 'clientt' is not defined (plug.py, line {CLIENT})"
    assert typos["failed"]["0"].startswith(place)
    assert f"typos seed 0 failed: {place}" in done.out
    assert diverged["failed"]["0"].startswith("no valid update in 3 rounds")
    assert (good["failed"], good["seeds"]) == ({}, [0])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            'needs = "server data"',
            "'needs' = 'server data' is refused: give a tuple of texts, such as ('server data',)",
        ),
        ('needs = ("a model", "")', "'needs' = ('a model', '') is refused: give a tuple of texts"),
        ('paper = ""', "'paper' = '' is refused: give a text: authors, title, venue"),
        ("family = None", "'family' = None is refused: give a text"),
        ('traffic = ("none",)', "'traffic' = ('none',) is refused: give a text, such as 'none'"),
        (
            'server_data = "some"',
            "'server_data' = 'some' is refused: give 'none', 'labelled' or 'unlabelled'",
        ),
        ('pooled = "no"', "'pooled' = 'no' is refused: give True or False"),
    ],
)
def test_what_a_class_says_of_itself_is_checked_when_it_is_registered(line: str, said: str) -> None:
    name = line.partition(" ")[0]
    Path("odd.py").write_text(
        "from fedtail import FedAvg, Method\n"
        f'@Method.register("odd-{name}")\nclass Odd(FedAvg):\n    """Odd."""\n    {line}\n'
    )
    refused = one_sentence(fedtail("run", "--plugin", "odd.py", "--method", f"odd-{name}"))
    assert f"plug-in 'odd.py': method class 'Odd': {said}" in refused
    assert f"odd-{name}" not in Method.registry


def test_a_method_of_no_family_is_refused() -> None:
    with pytest.raises(ValueError, match="method class 'Bare': no 'family': give a text"):

        @Method.register("bare")
        class Bare(Method[object]):
            """Says nothing of itself."""
