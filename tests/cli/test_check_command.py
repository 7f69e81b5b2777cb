"""`fedtail check`."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import fedtail, one_sentence

from fedtail import Method

MINE = '''
from pydantic import Field

from fedtail import FedAvg, Method, ModelState


@Method.register("checked-mine")
class Mine(FedAvg[ModelState]):
    """My own."""

    family = "own"
    paper = "none"

    stage: int = Field({default}, ge=0, description="what it does")

    def weights(self, s, updates, server):
        """Weigh by the stage."""
        return [self.stage] * len(updates)
'''


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Method.registry, "_classes", dict(Method.registry._classes))
    Path("mine.py").write_text(MINE.replace("{default}", "1"))


def test_a_line_a_check_and_no_failure() -> None:
    done = fedtail("check", "mine.py")
    assert done.code == 0, done.out
    lines = done.out.splitlines()
    assert lines[0] == "checked-mine (Mine)"
    assert "  ok      a_resumed_run_gives_the_same_bits (with BatchNorm and dropout)" in lines
    assert all(line.startswith("  ok ") for line in lines[1:-2])
    assert lines[-2].endswith(" kept, 0 not")


def test_a_failure_is_told_with_its_promise_and_exit_code_1() -> None:
    Path("mine.py").write_text(MINE.replace("{default}", "1").replace(", ge=0", ""))
    done = fedtail("check", "mine.py", "--method", "checked-mine", "method.stage=2")
    assert done.code == 1
    assert "  FAIL    every_number_has_a_bound (plain)\n          'stage' has no bound" in done.out
    assert "promised: Have a bound for every number" in done.out
    assert done.err == ""


def test_a_file_without_methods_and_no_file_are_refused() -> None:
    Path("empty.py").write_text("")
    said = one_sentence(fedtail("check", "empty.py"))
    assert said == (
        "plug-in 'empty.py' registers no method: name a plug-in, or a method with --method NAME"
    )
    assert one_sentence(fedtail("check")).startswith("nothing to check")
    assert one_sentence(fedtail("check", "--method", "fedavgg")).startswith("unknown method")
    assert one_sentence(fedtail("check", "none.py")) == "plug-in file 'none.py' does not exist"


@pytest.mark.slow
def test_worker_processes_import_the_plug_in() -> None:
    done = fedtail("check", "mine.py", "--workers")
    assert done.code == 0, done.out
    assert "ok      worker_processes_give_the_same_bits" in done.out
