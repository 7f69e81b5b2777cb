"""Other libraries beside this one: ``python -m benchmarks.peers``.

It makes the peers' environment in ``.venv-peers`` if it is not there, measures (some minutes, on
an idle machine), keeps the numbers in ``benchmarks/results/peers.json``, and writes the page and
the picture of the documentation from them. ``--page`` only does the last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

from benchmarks.peers.environment import ROOT, python
from benchmarks.peers.page import write
from benchmarks.results_file import save


def main() -> None:
    """Measure, keep and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="measured rounds of each library")
    parser.add_argument("--page", action="store_true", help="write page and picture only")
    chosen = parser.parse_args()
    if not chosen.page:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "numbers.json"
            words = ["-m", "benchmarks.peers.measure", str(file), "--rounds", str(chosen.rounds)]
            one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run([python(), *words], check=True, cwd=ROOT, env=one_thread)
            save("peers", json.loads(file.read_text(encoding="utf-8")))
    write()


if __name__ == "__main__":
    main()
