"""A run folder: description, split, numbers, checkpoint and model, side by side."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import tomli_w
import torch
from torch import Tensor

from fedtail.cores import machine_load
from fedtail.errors import FedtailError
from fedtail.files import make_folder, remove, sync_folder, write_atomic
from fedtail.lock import LOCK
from fedtail.tensors import pack_tensors, unpack_tensors
from fedtail.version import __version__

FREE = {
    "workers",
    "track",
    "plugins",
    "name",
    "on_client_error",
    "task_seconds",
    "checkpoint_every",
    "test",
}
"""Fields that do not change what a run trains and ships: a resumed run may have others."""
LENGTH = {"rounds", "patience"}
"""Fields that say when a run ends: a resumed run may end earlier or later than it was to."""
MACHINE = {"device", "threads"}
"""What another machine may not have."""
PLACES = {"path", "test"}
"""Where data are: they may be elsewhere by now, and have digests of their own."""
SEAL = "# The settings that this run was begun with: "
"""The last line of a description, by which one that was edited since is known."""
logger = logging.getLogger("fedtail")


def first_difference(
    stored: Mapping[str, Any], wanted: Mapping[str, Any], free: Set[str] = frozenset()
) -> str:
    """Return the first key, in order of the alphabet, whose values differ; nothing if none does.

    Parameters
    ----------
    stored, wanted
        Settings, as tables or under dotted names.
    free
        Sections that may differ.
    """
    keys = sorted(stored.keys() | wanted.keys())
    odd = (key for key in keys if stored.get(key) != wanted.get(key))
    return next((key for key in odd if key.partition(".")[0] not in free), "")


def completed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment's description with the defaults of fields that are newer than it."""
    from fedtail.experiment import Experiment

    return {**tomllib.loads(tomli_w.dumps(Experiment().describe())), **stored}


def with_seal(description: str) -> str:
    """Return a description with a digest of what may not change while a run goes on."""
    free = FREE | LENGTH | MACHINE
    settings = {k: v for k, v in tomllib.loads(description).items() if k not in free}
    data = {k: v for k, v in settings.get("data", {}).items() if k not in PLACES}
    plain = json.dumps({**settings, "data": data}, sort_keys=True, default=str)
    return f"{description}\n{SEAL}{hashlib.sha256(plain.encode()).hexdigest()}\n"


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps what it makes."""

    path: Path

    @property
    def experiment(self) -> Path:
        """The description, as TOML."""
        return self.path / "experiment.toml"

    @property
    def metrics(self) -> Path:
        """One JSON object a round."""
        return self.path / "metrics.jsonl"

    @property
    def privacy(self) -> Path:
        """What each exchange spent of a privacy budget."""
        return self.path / "privacy.jsonl"

    @property
    def checkpoint(self) -> Path:
        """What a resumed run starts from."""
        return self.path / "checkpoint"

    @property
    def client_states(self) -> Path:
        """What clients on nodes of this machine remember."""
        return self.path / "clients"

    @property
    def model(self) -> Path:
        """The model that is tested and shipped; there when the run is finished."""
        return self.path / "model.safetensors"

    @property
    def model_digest(self) -> Path:
        """SHA-256 of the model and its description, as ``sha256sum --check`` reads them."""
        return self.path / "model.safetensors.sha256"

    @property
    def description(self) -> Path:
        """What the model's tensors need to predict (`fedtail.model_file`)."""
        return self.path / "model.json"

    @property
    def digests(self) -> Path:
        """SHA-256 of what the run trains and tests on."""
        return self.path / "digests.json"

    @property
    def environment(self) -> Path:
        """Versions, the machine, and what else the last bits depend on."""
        return self.path / "env.json"

    @property
    def confusion(self) -> Path:
        """Class names, and how often the model takes one class for another."""
        return self.path / "confusion.json"

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.model.exists()

    def must_be_new(self) -> None:
        """Refuse a folder that already holds something."""
        if self.experiment.exists():
            raise FedtailError(
                f"'{self.path}' already holds a run: go on with it "
                f"(fedtail run --resume {self.path}) or choose another --out"
            )
        if self.path.exists() and (
            not self.path.is_dir() or not all(map(_early, self.path.iterdir()))
        ):
            raise FedtailError(f"'{self.path}' is not an empty folder; choose another --out")

    def must_be_a_run(self) -> None:
        """Refuse to resume what is not a run folder."""
        if not self.experiment.is_file():
            raise FedtailError(f"'{self.path}' is not a run folder: it has no experiment.toml")

    def must_be_here(self) -> None:
        """Refuse to resume in this process what has its clients' states elsewhere."""
        self.must_be_a_run()
        if (self.path / "flower").is_dir():
            raise FedtailError(
                f"'{self.path}' is a run on Flower: go on with fedtail run --resume {self.path}"
            )

    def settings(self) -> dict[str, Any]:
        """Return the description as plain data."""
        return tomllib.loads(self.experiment.read_text(encoding="utf-8"))

    def describe_anew(self, experiment: str) -> None:
        """Put another description in place; a run that was finished is then not.

        The model goes first: whenever this is interrupted, the folder holds a run that can go on.
        """
        remove(self.model)
        sync_folder(self.path)
        write_atomic(self.experiment, with_seal(experiment))

    def must_hold(self, settings: Mapping[str, Any]) -> None:
        """Refuse to go on with another experiment than the one that stands in the folder."""
        description, seal, told = self.experiment.read_text(encoding="utf-8").rpartition(SEAL)
        if seal and with_seal(description).rpartition(SEAL)[2] != told:
            raise FedtailError(
                f"'{self.experiment}' was changed since the run began: put it back as it was, or "
                "begin a new run with it"
            )
        wanted = tomllib.loads(tomli_w.dumps(settings))
        if odd := first_difference(completed(self.settings()), wanted, FREE | LENGTH):
            raise FedtailError(
                f"'{self.path}' holds a run with another '{odd}'; resume it as it is"
            )

    def must_be_on(self, digests: Mapping[str, str]) -> list[str]:
        """Refuse to go on with other data or another split than the run began with.

        Parameters
        ----------
        digests
            Of what is here (`Setting.digests`).

        Returns
        -------
        list of str
            Sentences on what could not be compared.
        """
        try:
            stored = json.loads(self.digests.read_bytes())
            differ = [name for name in digests if stored[name] != digests[name]]
        except (OSError, ValueError, KeyError, TypeError):
            return [f"'{self.digests}' cannot be read: whether data and split are the same is open"]
        if differ:
            raise FedtailError(
                f"'{self.path}' holds a run with another {differ[0]}: resume it with what it began "
                "with, or begin a new run"
            )
        return []

    def together(self, default: int) -> int:
        """Return how many clients the run trains as one computation, if it wrote that down."""
        try:
            noted = json.loads(self.environment.read_bytes())
            return int(noted.get("together", 0))
        except (OSError, ValueError, TypeError, AttributeError):
            return default

    def begin(
        self, experiment: str, split: str, numerics: Mapping[str, Any], digests: Mapping[str, str]
    ) -> None:
        """Write what is known before the first round."""
        files = {
            self.path / "split.json": split,
            self.digests: json.dumps(digests, indent=1),
            self.environment: json.dumps(
                {**environment(), "load": machine_load(), **numerics}, indent=1
            ),
            # Last: a folder with a description is a run that can be resumed.
            self.experiment: with_seal(experiment),
        }
        make_folder(self.path)
        try:
            for path, content in files.items():
                write_atomic(path, content)
        except FedtailError:
            self._abandon(files)
            raise

    def _abandon(self, files: Iterable[Path]) -> None:
        """Leave nothing behind that a second attempt would stumble over."""
        with contextlib.suppress(OSError):
            for path in files:
                remove(path)
            self.path.rmdir()

    def keep_confusion(self, classes: Sequence[str], confusion: Tensor) -> None:
        """Write how often a sample of one class (row) was taken for another (column).

        With very many classes none was counted (`Evaluation`), and there is no file.
        """
        if len(confusion):
            content = {"classes": list(classes), "confusion": confusion.tolist()}
            write_atomic(self.confusion, json.dumps(content, ensure_ascii=False))

    def finish(self, tensors: Mapping[str, Tensor]) -> None:
        """Write the model, after its digest: the model makes a run count as finished."""
        data = pack_tensors(tensors)
        if self.finished:  # a model of an earlier end never stands beside another's digest
            remove(self.model)
            sync_folder(self.path)
        lines = [f"{_sha256(data)}  {self.model.name}\n"]
        if self.description.is_file():
            described = _sha256(self.description.read_bytes())
            lines.append(f"{described}  {self.description.name}\n")
        write_atomic(self.model_digest, "".join(lines))
        write_atomic(self.model, data)

    def described(self) -> bytes:
        """Return the model's description; one that is not what was written is refused."""
        try:
            data = self.description.read_bytes()
        except OSError:
            raise FedtailError(
                f"'{self.path}' has no '{self.description.name}': it cannot say what its model "
                "takes; runs of this version write it"
            ) from None
        digests = self.model_digest.read_text().split() if self.model_digest.is_file() else []
        if self.description.name in digests and _sha256(data) not in digests:
            raise FedtailError(
                f"'{self.description}' is damaged: its SHA-256 is not that of "
                f"'{self.model_digest.name}'"
            )
        return data

    def shipped(self) -> dict[str, Tensor]:
        """Return the model of a finished run; one that is not what was written is refused."""
        data = self.model.read_bytes()
        if not self.model_digest.is_file():
            logger.warning("'%s' cannot be checked: '%s' is missing", self.model, self.model_digest)
        elif self.model_digest.read_text(errors="replace").split()[:1] != [_sha256(data)]:
            raise FedtailError(
                f"'{self.model}' is damaged: its SHA-256 is not that of "
                f"'{self.model_digest.name}'; if you remove it, "
                f"fedtail run --resume {self.path} writes it again"
            )
        return unpack_tensors(data, str(self.model))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _early(path: Path) -> bool:
    """Whether this is what a kill leaves of `begin` before the run can be resumed."""
    return path.name in ("split.json", "digests.json", "env.json", LOCK) or (
        path.name.startswith(".") and path.suffix == ".tmp"
    )


def free_folder(parent: Path, name: str) -> RunFolder:
    """Return a folder of that name that does not exist yet, numbered if it must be."""
    names = [name, *(f"{name}-{number}" for number in range(2, 10_000))]
    return RunFolder(next(parent / n for n in names if not (parent / n).exists()))


def environment() -> dict[str, Any]:
    """Return what a reader needs to run the same thing again."""
    return {
        "fedtail": __version__,
        "commit": _commit(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
    }


def _commit() -> str | None:
    """Return the commit of a source checkout; an installed package has its version."""
    source = Path(__file__).parents[1]
    if not (source / ".git").exists():
        return None
    command = ["git", "-C", str(source), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
