"""TLS and node authentication, with real processes: who has no registered key does not get in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real import QUICK, running

from fedtail.engines.flower.processes import Started, free_ports, start, stop
from fedtail.engines.flower.superlink import CONNECTION, FlowerProcesses
from fedtail.engines.flower.tls import make_node_key

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("flower")]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerProcesses]:
    """A SuperLink that wants TLS and keys."""
    home = tmp_path_factory.mktemp("tls")
    made = FlowerProcesses(home, home, tls=True)
    try:
        made.open()
        yield made
    finally:
        made.close()


def node(federation: FlowerProcesses, name: str, *options: str) -> Started:
    (port,) = free_ports(1)
    command = [federation.tool("flower-supernode"), "--superlink", f"127.0.0.1:{federation.port}"]
    command += ["--port", str(port), "--node-config", "partition-id=0", "--max-retries", "2"]
    log = federation.logs / f"{name}.log"
    return start(name, [*command, *options], log, federation.env)


def trust(federation: FlowerProcesses) -> list[str]:
    return ["--root-certificates", str(federation.certificates.authority)]


def online(federation: FlowerProcesses) -> int:
    """Return how many nodes the SuperLink says are online."""
    listed = federation.flwr("supernode", "list", CONNECTION, "--format", "json")
    return sum(found["status"] == "online" for found in listed["nodes"])


def refusal(started: Started, seconds: float = 120) -> str:
    """Wait for the end of a node that is not let in, and return what it said."""
    until = time.monotonic() + seconds
    try:
        while started.process.poll() is None:
            assert time.monotonic() < until, started.log.read_text()
            time.sleep(0.2)
    finally:
        stop([started])
    assert started.process.returncode > 0
    return started.log.read_text()


def test_a_registered_node_is_let_in(federation: FlowerProcesses) -> None:
    key = federation.new_key("friend")
    options = [*trust(federation), "--auth-supernode-private-key", str(key)]
    friend = node(federation, "friend", *options)
    until = time.monotonic() + 120
    try:
        while not online(federation):
            assert time.monotonic() < until, friend.log.read_text()
            time.sleep(1)
    finally:
        stop([friend])


def test_an_unregistered_node_is_refused(federation: FlowerProcesses) -> None:
    key, _ = make_node_key(federation.home, "stranger")
    options = [*trust(federation), "--auth-supernode-private-key", str(key)]
    said = refusal(node(federation, "stranger", *options))
    assert "Failed to activate SuperNode" in said
    assert online(federation) == 0


def test_a_node_without_a_key_is_refused(federation: FlowerProcesses) -> None:
    said = refusal(node(federation, "keyless", *trust(federation)))
    assert "SuperNode authentication is enabled" in said
    assert online(federation) == 0


def test_a_plaintext_node_is_refused(federation: FlowerProcesses) -> None:
    said = refusal(node(federation, "plain", "--insecure"))
    assert "Giving up reconnection" in said
    assert online(federation) == 0


def test_a_run_over_tls_with_registered_nodes_gives_the_same_model(tmp_path: Path) -> None:
    words = ["run", *QUICK, "--rounds", "1"]
    here, there = tmp_path / "here", tmp_path / "there"
    with running(here, *words, "--out", str(here)) as embedded:
        assert embedded.end(200) == 0, embedded.output
    on = ["--engine", "flower", "--nodes", "2", "--tls"]
    with running(there, *words, *on, "--out", str(there)) as run:
        assert run.end(400) == 0, run.output
    assert run.digest() == embedded.digest()
    assert run.records()[0]["dropped"] == []
    # Keys and certificates are gone with the federation.
    assert not [p for p in there.rglob("*") if p.suffix in (".key", ".pem", ".crt", ".pub")]
