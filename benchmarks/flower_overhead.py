"""What carrying a run over Flower costs: the same experiment on every engine, in one go.

``python -m benchmarks.flower_overhead`` measures embedded, a pool, Ray and three SuperNodes:
seconds a round (the first one apart, because it waits for processes to start), seconds altogether
and the largest memory of all processes together. ``--demo`` leaves out the pool and Ray.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.results_file import save
from fedtail.callbacks import read_records
from fedtail.engines.flower.processes import descendants
from fedtail.state import digest
from fedtail.tensors import unpack_tensors

ENGINES = {
    "embedded": [],
    "pool of 2": ["--workers", "2"],
    "ray, 2 nodes": ["--engine", "ray", "--nodes", "2"],
    "flower, 3 nodes": ["--engine", "flower", "--nodes", "3"],
}
DEMO = ("embedded", "flower, 3 nodes")


def main() -> None:
    """Measure, print the table, and keep the numbers unless it is only a demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--method", default="creff")
    parser.add_argument("--demo", action="store_true")
    chosen = parser.parse_args()
    names = DEMO if chosen.demo else tuple(ENGINES)
    rows = {}
    for name in names:
        print(f"{name} ...", flush=True)
        rows[name] = measure(name, chosen.method, chosen.rounds)
    show(rows)
    if len({row["model"] for row in rows.values()}) != 1:
        sys.exit("the models differ")
    if not chosen.demo:
        save("flower_overhead", rows)


def measure(name: str, method: str, rounds: int) -> dict[str, Any]:
    """Run the experiment once on one engine."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = ["run", "--method", method, "--imbalance", "20", "--clients", "6"]
        words += ["--rounds", str(rounds), "--out", str(out), *ENGINES[name]]
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "fedtail", *words], stdout=sys.stderr)
        with largest_memory(process.pid) as memory:
            code = process.wait(1800)
        seconds = time.perf_counter() - began
        if code:
            sys.exit(f"{name} failed with exit code {code}")
        records = read_records(out / "metrics.jsonl")
        model = digest(unpack_tensors((out / "model.safetensors").read_bytes(), "the model"))
    later = [record["seconds"] for record in records[1:]] or [records[0]["seconds"]]
    return {
        "accuracy": records[-1]["accuracy"],
        "first_round": records[0]["seconds"],
        "round": median(later),
        "total": seconds,
        "memory_mb": max(memory) / 1e6,
        "model": model[:16],
    }


@contextmanager
def largest_memory(pid: int) -> Iterator[list[float]]:
    """Look twice a second at what a process and all that it started hold together."""
    seen, stop = [0.0], threading.Event()

    def look() -> None:
        while not stop.wait(0.5):
            pids = [pid, *(child.pid for child in descendants(pid))]
            seen.append(float(sum(map(proportional, pids))))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def proportional(pid: int) -> int:
    """Return a process's share of memory: pages that several hold are divided among them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print the table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("engine")
    for heading in ("first round", "a round", "altogether", "memory", "accuracy", "model"):
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        table.add_row(
            name,
            f"{row['first_round']:.1f} s",
            f"{row['round']:.1f} s",
            f"{row['total']:.0f} s",
            f"{row['memory_mb']:.0f} MB",
            f"{100 * row['accuracy']:.1f} %",
            row["model"],
        )
    Console(width=max(80, Console().width)).print(table)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
