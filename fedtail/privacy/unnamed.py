"""The keys of one run, in no folder: even a kill leaves nothing of them on a disk.

The secret key is in a file without a name (on Linux in memory), which is gone when the last process
that has it open ends. Worker processes are handed the open file, never its content, and each reads
the key itself; a worker that is started later gets it in the same way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

from fedtail.errors import FedtailError
from fedtail.privacy.ckks import PUBLIC, SECRET, new_keys


@dataclass(frozen=True)
class UnnamedKey:
    """The clients' key of one run, by the number of an open file."""

    file: int

    def read(self) -> bytes:
        """Return the key."""
        return os.pread(self.file, os.fstat(self.file).st_size, 0)

    def __reduce__(self) -> tuple[Callable[..., UnnamedKey], tuple[Any, ...]]:
        return _arrived, (reduction.DupFd(self.file),)


def _arrived(file: Any) -> UnnamedKey:
    return UnnamedKey(file.detach())


@contextmanager
def unnamed_keys(apart: bool) -> Iterator[tuple[UnnamedKey, bytes]]:
    """Make keys for one run: the clients', and the bytes of what the server gets.

    Parameters
    ----------
    apart
        Whether in another process: where clients are processes of their own, that of the server
        never has the secret key in its memory.
    """
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("fedtail-key")
    else:
        with tempfile.TemporaryFile() as unlinked:
            file = os.dup(unlinked.fileno())
    try:
        yield UnnamedKey(file), _made_apart(file) if apart else fill(file)
    finally:
        os.close(file)


def fill(file: int) -> bytes:
    """Make keys, write the secret one to an open file, and return the public one."""
    made = new_keys()
    with os.fdopen(os.dup(file), "wb") as stream:
        stream.write(made[SECRET])
    return made[PUBLIC]


def _made_apart(file: int) -> bytes:
    code = "import sys; from fedtail.privacy.unnamed import fill; "
    made = subprocess.run(
        [sys.executable, "-c", f"{code}sys.stdout.buffer.write(fill({file}))"],
        capture_output=True,
        pass_fds=[file],
    )
    if made.returncode:
        reason = made.stderr.decode(errors="replace").strip()[-300:]
        raise FedtailError(f"the keys could not be made: {reason}")
    return made.stdout
