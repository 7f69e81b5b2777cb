"""A federation on this machine answers its own processes, and nobody else."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import ssl
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from fedtail.engines.flower.door import FEDERATION_COMMANDS, HEADER, Door, new_door, secret_of
from fedtail.engines.flower.launcher import write_app
from fedtail.engines.flower.processes import free_ports, start, stop
from fedtail.engines.flower.superlink import CONNECTION, NODE_RESTARTS, FlowerProcesses, Node

NOBODY = 65534
OWN_TOOLS = Path(sys.executable).parent


def answered(secret: str, headers: list[tuple[bytes, bytes]], kind: str = "http") -> list[Any]:
    """Return what a server behind a door sends."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send("let in")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": kind} if kind == "lifespan" else {"type": kind, "headers": headers}
    asyncio.run(Door(app, secret)(scope, None, send))  # type: ignore[arg-type]
    return sent


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"x-fedtail-door", b"")],
        [(b"x-fedtail-door", b"wron")],
        [(b"x-fedtail-door", b"open!")],
        [(b"authorization", b"open")],
        [(b"x-fedtail-door", b"open"), (b"x-fedtail-door", b"wrong")],
        [(b"x-fedtail-door", "öpen".encode())],
    ],
)
def test_a_request_without_the_secret_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    start, body = answered("open", headers)
    assert start["status"] == 403
    assert b"private federation" in body["body"]
    (closed,) = answered("open", headers, "websocket")
    assert closed["type"] == "websocket.close"


def test_one_with_it_is_passed_on() -> None:
    assert answered("open", [(b"x-fedtail-door", b"open")]) == ["let in"]
    assert answered("open", [], "lifespan") == ["let in"]


def test_the_secret_is_its_owner_s_and_another_one_each_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        new_door(tmp_path / name, OWN_TOOLS)
    one, two = (secret_of(tmp_path / name) for name in ("one", "two"))
    assert one != two and len(one) >= 43  # 32 bytes in base64
    key = tmp_path / "one" / "door.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    scripts = {path.name: path for path in (tmp_path / "one" / "bin").iterdir()}
    assert set(scripts) == set(FEDERATION_COMMANDS)
    for path in scripts.values():
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert one not in path.read_text()  # it stands in no command


def test_a_node_that_ends_at_once_is_given_up(tmp_path: Path) -> None:
    federation = FlowerProcesses(tmp_path, tmp_path)
    command = [sys.executable, "-c", "import sys; sys.exit(3)"]
    try:
        federation.nodes[0] = Node(federation._start("node-0", command), command, NODE_RESTARTS)
        until, said = time.monotonic() + 120, []
        while not federation.nodes[0].given_up:
            assert time.monotonic() < until
            said += federation.revive()
            time.sleep(0.1)
        assert len(said) == NODE_RESTARTS and federation.revive() == []
        assert said[0].startswith("node-0 ended with exit code 3 (log: ")
        assert said[0].endswith("; it is started again")
    finally:
        federation.close()


def test_a_node_that_lived_is_always_started_again() -> None:
    old = Node(None, [], 3, tries=3, since=time.monotonic() - 100)  # type: ignore[arg-type]
    new = Node(None, [], 3, tries=2)  # type: ignore[arg-type]
    assert old.again(None).tries == 1  # type: ignore[arg-type]
    assert new.again(None).tries == 3  # type: ignore[arg-type]


# Real processes.


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerProcesses]:
    """A SuperLink and a SuperNode, as the launcher starts them."""
    home, logs = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("logs")
    home.chmod(0o700)
    made = FlowerProcesses(home, logs)
    try:
        made.open()
        made.add_node(0, 1)
        until = time.monotonic() + 120
        while online(made) != 1:
            assert time.monotonic() < until, (logs / "node-0.log").read_text()
            time.sleep(1)
        yield made
    finally:
        made.close()


def online(federation: FlowerProcesses) -> int:
    listed = federation.flwr("supernode", "list", CONNECTION, "--format", "json")
    return sum(found["status"] == "online" for found in listed["nodes"])


def ports(federation: FlowerProcesses) -> list[int]:
    """Return every port that the federation listens on."""
    roots = [psutil.Process(one.process.pid) for one in federation.started]
    every = [p for root in roots for p in [root, *root.children(recursive=True)]]
    found = {c.laddr.port for p in every for c in p.net_connections("tcp") if c.status == "LISTEN"}
    return sorted(found)


def status_of(port: int, path: str, authority: str, secret: str = "") -> int:
    """Return the status that a server answers with."""
    headers = {"content-type": PROTOBUF_MEDIA_TYPE, **({HEADER: secret} if secret else {})}
    asked = urllib.request.Request(f"https://127.0.0.1:{port}{path}", b"", headers)
    trusted = ssl.create_default_context(cadata=authority)
    try:
        with urllib.request.urlopen(asked, timeout=30, context=trusted) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


PATHS = ["/v1/control/list-runs", "/v1/control/start-run", "/v1/fleet/register-node", "/docs"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("flower")
def test_every_port_is_closed_without_the_secret(federation: FlowerProcesses) -> None:
    authority, secret = federation.certificates.authority.read_text(), secret_of(federation.home)
    found = ports(federation)
    assert federation.port in found and len(found) == 2  # the SuperLink's and the SuperNode's
    for port in found:
        for path in [*PATHS, "/health", "/v1/runtime/list-apps", "/anything"]:
            assert status_of(port, path, authority) == 403
            assert status_of(port, path, authority, "guessed") == 403
        # Nor is anything said in plain text.
        with pytest.raises(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30)
    # The same request with the secret is understood.
    assert status_of(federation.port, "/v1/control/list-runs", authority, secret) == 200


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("flower")
def test_a_process_without_the_secret_submits_no_run_and_is_no_node(
    federation: FlowerProcesses, tmp_path: Path
) -> None:
    # It is this user's, it knows the address, and even the authority's certificate.
    shutil.copy(federation.home / "config.toml", tmp_path / "config.toml")
    env = {**os.environ, **federation.env, "FLWR_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    env["PATH"] = f"{OWN_TOOLS}:{env['PATH']}"
    app = write_app(tmp_path / "app", {"out": str(tmp_path)})
    run = subprocess.run(
        [str(OWN_TOOLS / "flwr"), "run", str(app), CONNECTION, "--format", "json"],
        env=env, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert run.returncode or '"success": false' in run.stdout
    assert "run-id" not in run.stdout
    assert "403" in run.stdout + run.stderr
    (port,) = free_ports(1)
    command = [str(OWN_TOOLS / "flower-supernode"), "--superlink", f"127.0.0.1:{federation.port}"]
    command += ["--root-certificates", str(federation.certificates.authority)]
    command += ["--port", str(port), "--node-config", "partition-id=0", "--max-retries", "2"]
    node = start("stranger", command, tmp_path / "stranger.log", env)
    try:
        until = time.monotonic() + 120
        while "403" not in node.log.read_text():
            assert time.monotonic() < until, node.log.read_text()
            time.sleep(0.5)
    finally:
        stop([node])
    assert federation.flwr("list", CONNECTION, "--format", "json").get("runs", []) == []
    assert online(federation) == 1


def as_nobody(link: Any, found: list[int], authority: str, home: str) -> None:
    """Try everything as another user, and tell what came of it."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    told: list[Any] = [status_of(port, path, authority) for port in found for path in PATHS]
    for name in ("door.key", "server.key", "config.toml"):
        try:
            Path(home, name).read_bytes()
            told.append(name)
        except PermissionError:
            told.append("denied")
    link.send(told)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("flower")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_is_not_answered_and_cannot_read_the_secret(
    federation: FlowerProcesses,
) -> None:
    authority = federation.certificates.authority.read_text()  # suppose that it got hold of it
    ours, theirs = multiprocessing.Pipe()
    fork = multiprocessing.get_context("fork")
    other = fork.Process(
        target=as_nobody, args=(theirs, ports(federation), authority, str(federation.home))
    )
    other.start()
    assert ours.poll(120)
    told = ours.recv()
    other.join()
    assert told == [403] * (2 * len(PATHS)) + ["denied"] * 3
