"""One file from one address: resumed where it stopped, and never accepted with a wrong hash."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from fedtail.data.public import Archive, file_hash, has_hash
from fedtail.errors import FedtailError

TIMEOUT = 10.0
READ_BYTES = 1 << 18
Advance = Callable[[int, int], None]
"""Called with the bytes there are and the bytes there will be (0 if unknown)."""


class Unreachable(FedtailError):
    """An address that did not answer, or stopped answering; what came so far is kept."""


def download(archive: Archive, folder: Path, console: Console, timeout: float = TIMEOUT) -> Path:
    """Return the verified file, downloaded unless it is there already.

    Bytes are collected in ``FILE.part``, which a later call continues; only a complete file with
    the right hash gets its name.
    """
    target = folder / archive.file
    if target.is_file() and has_hash(target, archive.hash):
        return target
    part = folder / f"{archive.file}.part"
    with _shown(archive.file, console) as advance:
        while not _append(archive.url, part, timeout, advance):
            pass
    verify(part, archive.hash, archive.file)
    part.replace(target)
    return target


def verify(path: Path, expected: str, what: str) -> None:
    """Refuse a file with a wrong hash; that file alone is deleted."""
    algorithm, digest = expected.split(":")
    got = file_hash(path, algorithm)
    if got != digest:
        path.unlink()
        raise FedtailError(
            f"{what} has the wrong {algorithm}: expected {digest}, got {got}; it was not kept"
        )


def _append(url: str, part: Path, timeout: float, advance: Advance) -> bool:
    """Ask for the bytes that are missing; return whether the file is complete."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            continued = response.status == http.HTTPStatus.PARTIAL_CONTENT
            start = have if continued else 0
            length = response.headers.get("Content-Length")
            total = start + int(length) if length else 0
            end = _copy(response, part, "ab" if continued else "wb", start, total, advance)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return True  # nothing is missing; the hash decides
        raise Unreachable(f"{url} answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{url} cannot be reached ({error})") from error
    if total and end < total and end <= have:
        raise Unreachable(f"{url} stopped at {end} of {total} bytes; a new try continues there")
    return not total or end >= total


def _copy(
    response: http.client.HTTPResponse, part: Path, mode: str, at: int, total: int, advance: Advance
) -> int:
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open(mode) as out:
        while block := response.read(READ_BYTES):
            out.write(block)
            at += len(block)
            advance(at, total)
    return at


@contextmanager
def _shown(name: str, console: Console) -> Iterator[Advance]:
    """Show a bar in a terminal, one plain line elsewhere."""
    if not console.is_terminal:
        console.print(f"downloading {name}", highlight=False, soft_wrap=True)
        yield lambda at, total: None
        return
    columns = ("[progress.description]{task.description}", BarColumn(), DownloadColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task(name, total=None)
        yield lambda at, total: progress.update(task, completed=at, total=total or None)
