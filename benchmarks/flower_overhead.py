"""What carrying a run over Flower costs, beside an app that only echoes the same bytes.

``python -m benchmarks.flower_overhead --on flower`` measures, in one go, an embedded run, the echo
(`flower_echo`) and the same run on three SuperNodes; ``--on ray`` on three simulated nodes. What is
compared is the time from one round's answers to the next's: with the test of the model and the
checkpoint, without the first round, which waits for processes to start. ``--demo`` has no echo.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.results_file import save
from fedtail.callbacks import read_records
from fedtail.engines.flower.launcher import write_app
from fedtail.engines.flower.processes import descendants
from fedtail.engines.flower.superlink import FlowerProcesses
from fedtail.state import digest
from fedtail.tensors import unpack_tensors

NODES = 3
ECHO = "echo"


def main() -> None:
    """Measure, print the table, and keep the numbers unless it is only a demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", choices=["flower", "ray"], default="flower")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--demo", action="store_true")
    chosen = parser.parse_args()
    if chosen.on == "ray" and find_spec("ray") is None:
        parser.error("--on ray needs Ray: pip install 'fedtail[flower]'")
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])  # for the echo's own processes
    words = ["--method", chosen.method, "--imbalance", "20", "--clients", str(NODES)]
    words += ["--epochs", "1", "--together", "0", "--rounds", str(chosen.rounds)]
    rows = {}
    with tempfile.TemporaryDirectory(prefix="fedtail-") as place:
        folder = Path(place)
        print("embedded ...", flush=True)
        rows["embedded"] = measure(folder / "embedded", words)
        if not chosen.demo:
            print(f"{ECHO} on {chosen.on} ...", flush=True)
            rows[ECHO] = measure_echo(folder, chosen.rounds, chosen.on == "ray")
        print(f"{chosen.on} ...", flush=True)
        on = ["--engine", chosen.on, "--nodes", str(NODES)]
        rows[chosen.on] = measure(folder / chosen.on, [*words, *on])
    show(rows)
    if rows["embedded"]["model"] != rows[chosen.on]["model"]:
        sys.exit("the models differ")
    if not chosen.demo:
        ratio = rows[chosen.on]["round"] / rows[ECHO]["round"]
        load = os.getloadavg()
        save("flower_overhead", {**rows, "ratio": ratio, "load": load}, file=f"flower_{chosen.on}")


def measure(out: Path, words: list[str]) -> dict[str, Any]:
    """Run the experiment once on one engine."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "fedtail", "run", *words, "--out", str(out)]
    process = subprocess.Popen(command, stdout=sys.stderr)
    with largest_memory(process.pid) as memory:
        code = process.wait(1800)
    seconds = time.perf_counter() - began
    if code:
        sys.exit(f"exit code {code}")
    records = read_records(out / "metrics.jsonl")
    model = digest(unpack_tensors((out / "model.safetensors").read_bytes(), "the model"))
    journal = out / "flower" / "exchanges.jsonl"
    lines = read_records(journal) if journal.exists() else []
    last = {line["round"]: line for line in lines}  # of the exchanges of a round
    rounds = [record["seconds"] for record in records[1:]]
    return {
        "first_round": records[0]["seconds"],
        **(periods(list(last.values())) if lines else {"round": median(rounds), "rounds": rounds}),
        "total": seconds,
        "memory_mb": max(memory) / 1e6,
        "accuracy": records[-1]["accuracy"],
        "model": model[:16],
    }


def measure_echo(folder: Path, rounds: int, simulation: bool) -> dict[str, Any]:
    """Run the echo once, on processes that are started as those of a run are."""
    home, out = folder / "home", folder / "echo.json"
    home.mkdir()
    experiment = str(folder / "embedded" / "experiment.toml")
    config = {"experiment": experiment, "nodes": NODES, "rounds": rounds, "out": str(out)}
    parts = {side: f"benchmarks.flower_echo:{side[:6]}_app" for side in ("serverapp", "clientapp")}
    app = write_app(home / "app", config, parts)
    federation = FlowerProcesses(home, folder, simulation=simulation)
    began = time.perf_counter()
    try:
        federation.open()
        for partition in range(0 if simulation else NODES):
            federation.add_node(partition, NODES)
        resources = f"num-supernodes={NODES} client-resources-num-cpus=1"
        federation.submit(app, *(["--federation-config", resources] if simulation else []))
        while not out.exists():
            if time.perf_counter() - began > 600:
                sys.exit((folder / "superlink.log").read_text())
            time.sleep(0.1)
    finally:
        federation.close()
    return {**periods(json.loads(out.read_text())), "total": time.perf_counter() - began}


def periods(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the time from one round's answers to the next's, and the bytes that were sent."""
    times = [after["time"] - before["time"] for before, after in pairwise(lines)]
    return {"round": median(times), "rounds": times, "wire_down": lines[-1]["wire_down"]}


@contextmanager
def largest_memory(pid: int) -> Iterator[list[float]]:
    """Look twice a second at what a process and all that it started hold together."""
    seen, stop = [0.0], threading.Event()

    def look() -> None:
        while not stop.wait(0.5):
            pids = {pid, *(child.pid for child in descendants(pid))}
            seen.append(float(sum(map(proportional, pids | residents_of(pids)))))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def residents_of(nodes: set[int]) -> set[int]:
    """Return the resident processes of nodes, which are no one's children."""
    lines = {one.pid: one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])}
    return {
        pid
        for pid, line in lines.items()
        if any("fedtail.engines.flower.resident" in word for word in line)
        and int(line[-2]) in nodes
    }


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
    headings = {
        "first_round": ("first round", "{:.1f} s"),
        "round": ("a round", "{:.2f} s"),
        "total": ("altogether", "{:.0f} s"),
        "memory_mb": ("memory", "{:.0f} MB"),
        "wire_down": ("sent a round", "{} B"),
        "model": ("model", "{}"),
    }
    for heading, _ in headings.values():
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        shown = (form.format(row[key]) if key in row else "" for key, (_, form) in headings.items())
        table.add_row(name, *shown)
    Console(width=max(80, Console().width)).print(table)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
