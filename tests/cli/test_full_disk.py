"""A full disk: one sentence, exit code 2, and what was saved before still resumes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import fedtail, write_npz

pytestmark = pytest.mark.slow

MAIN = "from fedtail.cli import main\n"
WAIT = 250
"""Seconds for a command: on a busy machine the imports alone take one minute."""
# Set after the imports: what Python itself writes is not the point.
LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))
main()"""
RUN = ["run", "--data", "mine.npz", "--clients", "3", "--rounds", "6", "--model", "mlp"]
RUN += ["--imbalance", "2"]  # a tail: a run on data without one says so
KEPT = (("manifest", "json"), ("server", "safetensors"))
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]
SMALL_DISK = """
mkdir disk && mount -t tmpfs -o size=470k none disk || exit 99
"$@" --out disk/run; echo "exit $?"
ls disk/run/checkpoint
mount -o remount,size=64m disk
python="$1"; main="$3"
"$python" -c "$main" run --resume disk/run
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "mine.npz")


def last_hash(text: str) -> str:
    """Return the model's hash from the last line of a run's output."""
    return text.strip().splitlines()[-1].rpartition(" ")[2]


def test_a_file_that_may_grow_no_further() -> None:
    # The limit stops metrics.jsonl, which grows by some 400 bytes a round, before its end. Python
    # ignores the signal, so that the write fails, with EFBIG where a full disk gives ENOSPC.
    words = [*RUN, "model.hidden=[2]", "--out"]
    whole = last_hash(fedtail(*words, "whole").out)
    command = [sys.executable, "-c", MAIN + LIMITED.format(2000), *words, "small"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT)
    assert done.stderr == "error: cannot write 'small/metrics.jsonl': File too large\n"
    assert done.returncode == 2
    resumed = fedtail("run", "--resume", "small")
    assert "continued after round" in resumed.out
    assert last_hash(resumed.out) == whole


def test_a_report_that_cannot_be_written_is_one_line() -> None:
    # 20 KB hold every file of this run but the page, which has more than 40 KB of script and style.
    words = [*RUN, "model.hidden=[2]", "--out", "run"]
    command = [sys.executable, "-c", MAIN + LIMITED.format(20_000), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0
    reason = "cannot write 'run/report.html': File too large"
    assert done.stderr == f"warning: there is no report of 'run': {reason}\n"
    assert last_hash(done.stdout)
    assert sorted(p.name for p in Path("run").iterdir() if "report" in p.name) == []


def test_a_disk_that_is_full() -> None:
    if (
        sys.platform != "linux"
        or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode
    ):
        pytest.skip("needs a mount of its own")
    whole = last_hash(fedtail(*RUN, "--out", "whole").out)
    command = [*UNSHARE, "sh", "-c", SMALL_DISK, "sh", sys.executable, "-c", f"{MAIN}main()", *RUN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT)
    if done.returncode == 99:
        pytest.skip("may not mount")
    # A checkpoint has 165 KB: the third does not fit beside the two that are kept.
    file = "disk/run/checkpoint/server-000003.safetensors"
    assert done.stderr == f"error: cannot write '{file}': No space left on device\n"
    kept = [f"{name}-00000{n}.{kind}" for name, kind in KEPT for n in (1, 2)]
    assert "\n".join(["exit 2", *kept, ""]) in done.stdout
    assert "continued after round 2" in done.stdout
    assert last_hash(done.stdout) == whole
