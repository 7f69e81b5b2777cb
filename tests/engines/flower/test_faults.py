"""What real federations meet: nodes, clients, servers and links that fail. No run hangs."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest
from real import PLUGIN, QUICK, Run, kill, marked, running

from fedtail.engines.flower.processes import alive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.xdist_group("flower")]

ON_FLOWER = ["--engine", "flower", "--nodes", "3"]


def unruly(folder: Path, **orders: str) -> list[str]:
    """Write the plug-in and what its clients are ordered to do: ``c0r1="raise"``."""
    (folder / "orders").mkdir()
    (folder / "unruly.py").write_text(PLUGIN)
    for key, order in orders.items():
        client, round = key[1:].split("r")
        (folder / "orders" / f"{client}-{round}").write_text(order)
    return ["--method", "unruly", "--plugin", str(folder / "unruly.py"), *QUICK]


def dropped(run: Run) -> dict[int, dict[int, str]]:
    """Return who was left out of each round, and why."""
    return {r["round"]: {d["client"]: d["reason"] for d in r["dropped"]} for r in run.records()}


def test_clients_that_raise_send_nan_or_a_wrong_shape_are_left_out(tmp_path: Path) -> None:
    words = unruly(tmp_path, c0r1="raise", c1r2="nan", c2r2="shape")
    out = tmp_path / "run"
    with running(out, "run", *words, "--rounds", "2", *ON_FLOWER, "--out", str(out)) as run:
        assert run.end(400) == 0, run.output
    lost = dropped(run)
    assert re.fullmatch(
        r"ValueError \(unruly.py, line \d+\); the client's own log has the text", lost[1].pop(0)
    )
    assert lost[1] == {}
    assert lost[2][1].startswith("sent NaN or infinity in model/")
    assert re.match(r"sent model/\S+ of shape \(1,.*\), not \(", lost[2][2])
    # The text stays on the client: only the log of its node has it.
    holders = [p.name for p in out.rglob("*") if p.is_file() and b"0815" in p.read_bytes()]
    assert holders == ["node-0.log"]
    lines = [json.loads(x) for x in (out / "flower" / "exchanges.jsonl").read_text().splitlines()]
    assert [line["replied"] for line in lines] == [[1, 2], [0, 1, 2]]
    assert all(line["wire_up"] > line["bytes_up"] > 0 for line in lines)


# Without a key of its own a node that comes back is a new one to Flower, with one it is the same.
@pytest.mark.parametrize("tls", [[], ["--tls"]], ids=["a new node", "the same node"])
def test_a_node_that_dies_in_mid_round_is_started_again(tls: list[str], tmp_path: Path) -> None:
    words = unruly(tmp_path, c1r1="sleep")
    out = tmp_path / "run"
    words += ["--rounds", "4", *ON_FLOWER, *tls, "--out", str(out)]
    with running(out, "run", *words) as run:
        run.until((tmp_path / "orders" / "seen-1-1").exists, 300)
        (node,) = run.find("flower-supernode", "partition-id=1")
        (resident,) = run.residents(node)
        kill([node])
        run.until(lambda: not alive(resident), 30)
        assert run.end(900) == 0, run.output
    lost = dropped(run)
    assert lost[1] == {1: "its node went offline"}
    assert lost[4] == {}, "the node serves client 1 again"
    assert "node-1 ended with exit code -9" in run.output
    assert "it is started again" in " ".join(run.output.split())


def test_a_killed_server_goes_on_to_the_same_model(tmp_path: Path) -> None:
    words = ["run", "--method", "scaffold", *QUICK, "--rounds", "3"]
    here, out = tmp_path / "here", tmp_path / "run"
    with running(here, *words, "--out", str(here)) as embedded:
        assert embedded.end(200) == 0, embedded.output
    with running(out, *words, *ON_FLOWER, "--out", str(out)) as run:
        run.until(lambda: (out / "checkpoint" / "manifest-000001.json").exists(), 600)
        kill(run.find("flwr-serverapp"))
        assert run.end(60) == 1
    assert "the server app was killed" in run.output
    assert f"go on with: fedtail run --resume {out}" in run.output
    with running(out, "run", "--resume", str(out)) as again:
        assert again.end(600) == 0, again.output
    assert again.digest() == embedded.digest()


def test_a_killed_resident_is_started_again_and_nobody_is_left_out(tmp_path: Path) -> None:
    words = ["run", "--method", "scaffold", *QUICK, "--rounds", "3"]
    here, out = tmp_path / "here", tmp_path / "run"
    with running(here, *words, "--out", str(here)) as embedded:
        assert embedded.end(200) == 0, embedded.output
    with running(out, *words, *ON_FLOWER, "--out", str(out)) as run:
        run.until(run.records, 600)
        assert len(run.residents()) == 3
        kill(run.residents()[:1])
        assert run.end(400) == 0, run.output
    assert dropped(run) == {1: {}, 2: {}, 3: {}}
    assert run.digest() == embedded.digest()


def test_a_killed_superlink_is_said_with_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["run", *QUICK, "--rounds", "9", *ON_FLOWER, "--out", str(out)]
    with running(out, *words) as run:
        run.until(run.records, 600)
        kill(run.find("flower-superlink"))
        assert run.end(60) == 1
    assert "error: the superlink ended with exit code -9" in run.output
    assert f"go on with: fedtail run --resume {out}" in run.output


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_whoever_ends_the_run_ends_everything_that_was_started(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = ["run", *QUICK, "--rounds", "9", *ON_FLOWER, "--out", str(out)]
    with running(out, *words) as run:
        run.until(lambda: len(run.residents()) == 3, 300)
        family = {**run.family(), **marked(run.mark)}
        assert len([line for line in family.values() if "flower-supernode" in line]) >= 3
        run.process.send_signal(number)
        assert run.end(60) == code
        until = time.monotonic() + (60 if number == signal.SIGKILL else 0)  # for the watchdog
        while any(map(alive, family)) and time.monotonic() < until:
            time.sleep(0.1)
        assert [pid for pid in family if alive(pid)] == []
    said = f"go on with: fedtail run --resume {out}" in run.output
    assert said == (number != signal.SIGKILL)
