"""Both halves of a run's protection, made from its description."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fedtail.engines.base import Engine
from fedtail.engines.protected import Protected
from fedtail.errors import FedtailError
from fedtail.experiment import Experiment
from fedtail.privacy.ckks import Adder, make_keys, tenseal
from fedtail.privacy.shield import Shield


@dataclass(frozen=True)
class Guard:
    """What protects the updates of a run, if anything does.

    Attributes
    ----------
    shield
        The clients' half.
    adder
        The server's half of the keys, if updates are encrypted.
    """

    shield: Shield | None = None
    adder: Adder | None = None

    def around(self, engine: Engine) -> Engine:
        """Return the engine as the server sees it."""
        return engine if self.shield is None else Protected(engine, self.adder)


@contextmanager
def guarded(experiment: Experiment) -> Iterator[Guard]:
    """Make what protects a run; keys of its own are gone afterwards."""
    if not experiment.encrypt:
        yield Guard()
        return
    tenseal()  # before anything is written
    with TemporaryDirectory(prefix="fedtail-keys-") as own:
        folder = Path(experiment.keys or own)
        if not experiment.keys:
            new_keys(folder, apart=experiment.workers > 0)
        yield Guard(Shield(folder), Adder.open(folder))


def new_keys(folder: Path, apart: bool) -> None:
    """Make keys for one run.

    Parameters
    ----------
    folder
        Where to.
    apart
        Whether in another process: where clients are processes of their own, that of the server
        never has the secret key.
    """
    if not apart:
        make_keys(folder)
        return
    code = "import sys; from fedtail.privacy.ckks import make_keys; from pathlib import Path; "
    made = subprocess.run(
        [sys.executable, "-c", f"{code}make_keys(Path(sys.argv[1]))", str(folder)],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        raise FedtailError(f"the keys could not be made: {made.stderr.strip()[-300:]}")
