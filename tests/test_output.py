"""Nobody reads standard output any more: the run goes on, and ends as it would have."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import write_npz

from fedtail.output import SafeStream, safe_stream

slow = pytest.mark.slow
RUN = "-m fedtail run --data mine.npz --clients 3 --rounds 3 --imbalance 2 --model mlp --out run"


def closed_pipe() -> io.TextIOWrapper:
    """Return a stream whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("{{ {0}; echo $? > code; }} | head -1", 0, ""),
        ("{0} >&-; echo $? > code", 0, ""),
        pytest.param("{0} >&- 2>&- <&-; echo $? > code", 0, "", marks=slow),
        pytest.param("{{ {0} rounds=0 2>&1; echo $? > code; }} | true", 2, "", marks=slow),
        pytest.param(
            "{0} >/dev/full; echo $? > code",
            1,
            "error: cannot write standard output: No space left on device\n",
            marks=slow,
        ),
    ],
    ids=["head", "closed", "all closed", "an error that nobody reads", "full"],
)
def test_a_run_goes_on_when_nobody_listens(
    tmp_path: Path, shell: str, code: int, said: str
) -> None:
    write_npz(tmp_path / "mine.npz")
    done = subprocess.run(
        ["sh", "-c", shell.format(f"{sys.executable} {RUN}")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.stderr == said
    assert len(done.stdout.splitlines()) == ("head" in shell)
    assert int((tmp_path / "code").read_text()) == code
    assert (tmp_path / "run" / "model.safetensors").exists() == (code < 2)


def test_what_nobody_reads_is_dropped_and_the_rest_is_written() -> None:
    stream = closed_pipe()
    gone = SafeStream(stream)
    assert gone.write("x" * 100_000) == 100_000
    gone.flush()
    gone.write("and more")
    gone.flush()
    assert gone.lost == ""
    stream.close()  # what was left in the buffer went nowhere, so that this does not raise
    gone.write("and yet more")
    gone.flush()
    assert not gone.isatty()
    heard = io.StringIO()
    assert SafeStream(heard).write("text") == 4
    assert heard.getvalue() == "text"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_remembered() -> None:
    with Path("/dev/full").open("w") as stream:
        full = SafeStream(stream)
        full.write("x")
        full.flush()
        assert full.lost == "No space left on device"


def test_a_letter_that_cannot_be_written_is_no_closed_stream() -> None:
    with pytest.raises(UnicodeEncodeError):
        SafeStream(io.TextIOWrapper(io.BytesIO(), encoding="ascii")).write("μ")


def test_an_outlet_is_not_wrapped_again() -> None:
    stream = safe_stream(io.StringIO())
    assert safe_stream(stream) is stream
