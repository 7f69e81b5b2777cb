"""Standard output that nobody may be reading: what cannot be said is dropped, the work goes on.

``fedtail run | head`` closes the pipe after ten lines, ``>&-`` before the first one, and a lost
connection takes the terminal away. None of this is a reason to end a training run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import IO, TextIO, cast

NOWHERE = Path(os.devnull)
GONE = (errno.EPIPE, errno.EBADF, errno.EIO, errno.ENXIO)
"""What writing fails with when the reader, the descriptor or the terminal is no longer there."""


class SafeStream:
    """A stream that never raises because nobody reads it; otherwise it is the stream itself.

    Attributes
    ----------
    lost
        Why something was not written although somebody may read it (a full disk); else empty.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.lost = ""

    def write(self, text: str) -> int:
        """Write, or drop what nobody can read."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError) as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        """Flush, or drop what nobody can read."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._give_up(error)

    def isatty(self) -> bool:
        """Whether a person may be reading; a closed stream has no reader."""
        return not self._stream.closed and self._stream.isatty()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def _give_up(self, error: OSError | ValueError) -> None:
        if isinstance(error, OSError):
            if error.errno not in GONE:
                self.lost = self.lost or error.strerror or str(error)
        elif not self._stream.closed:  # a letter that cannot be encoded, for example
            raise error
        # What is left in the buffer goes nowhere too: Python flushes it once more at exit, and
        # would complain and end with exit code 120.
        with contextlib.suppress(OSError, ValueError), NOWHERE.open("wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())


def safe_stream(stream: TextIO | None) -> TextIO:
    """Return the stream as a `SafeStream`; one that was closed before Python began goes nowhere."""
    if isinstance(stream, SafeStream):
        return cast(TextIO, stream)
    return cast(TextIO, SafeStream(_nowhere() if stream is None else stream))


def guard_streams() -> None:
    """Make standard output and standard error of this process safe streams."""
    if sys.stdin is None:  # in this order: the lowest free descriptor is that of the missing stream
        sys.stdin = _nowhere("r")
    sys.stdout = safe_stream(sys.stdout)
    sys.stderr = safe_stream(sys.stderr)


def unwritten() -> str:
    """Return why some standard output was lost to somebody who wanted it; usually nothing."""
    sys.stdout.flush()
    return sys.stdout.lost if isinstance(sys.stdout, SafeStream) else ""


def _nowhere(mode: str = "w") -> TextIO:
    # Kept open, in worker processes too: else the next file that is opened is "standard output".
    stream = NOWHERE.open(mode)
    os.set_inheritable(stream.fileno(), True)
    return cast(TextIO, stream)
