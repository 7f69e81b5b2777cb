"""One run of a study: done already, left to be finished, or failed without stopping the others."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tomli_w

from fedtail.callbacks import Callback, Record, Snapshot, read_records
from fedtail.data.dataset import Dataset
from fedtail.described import load_experiment
from fedtail.errors import FedtailError, RunStopped
from fedtail.experiment import Experiment
from fedtail.folder import FREE, RunFolder, completed, first_difference
from fedtail.loop import run
from fedtail.plugins import first_line_and_place
from fedtail.setting import as_taken, data_digests, share_out
from fedtail.study.handover import HandedOver
from fedtail.study.plan import Planned
from fedtail.study.runs import read_run


class GivenUp(Exception):
    """A run was ended because it promised too little."""


@dataclass(frozen=True)
class Ending:
    """How a run of a study ended.

    Attributes
    ----------
    failure
        Why it failed, if it did; for a bug in a method, with its place in the file.
    refused
        Whether that was wrong input, which the user can mend.
    before
        Whether it was done already.
    given_up
        Whether it was ended because it promised too little.
    handed_over
        Whether it was left to another process, and has not ended.
    died
        Whether its process ended under it: that is no word on the run, which can go on.
    """

    failure: str = ""
    refused: bool = False
    before: bool = False
    given_up: bool = False
    handed_over: bool = False
    died: bool = False


class Rounds(Callback):
    """Tells each round once it is on record, and ends the run if it is told to."""

    def __init__(self, tell: Callable[[Record], bool]) -> None:
        self.tell = tell

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Tell the round."""
        if not self.tell(snapshot.record):
            raise GivenUp


class DataHere:
    """The data as they are now; what runs share is loaded once, and let go with this."""

    def __init__(self) -> None:
        self._loaded: tuple[object, Dataset] | None = None

    def digests(self, experiment: Experiment) -> dict[str, str]:
        """Return the digests of an experiment's data and split.

        Of data that cannot be loaded there are none: no new run can be mixed with those on them.
        """
        try:
            dataset = self._dataset(experiment)
            return data_digests(dataset, share_out(experiment, dataset))
        except Exception:  # a transform of the user's own may fail in any way
            return {}

    def _dataset(self, experiment: Experiment) -> Dataset:
        wanted = (experiment.data, experiment.model)
        if self._loaded is None or self._loaded[0] != wanted:
            self._loaded = None  # first: there need not be memory for both
            self._loaded = wanted, as_taken(experiment, experiment.data.load())
        return self._loaded[1]


def ended_before(planned: Planned, here: DataHere) -> Ending | None:
    """Return how a run ended that is not to be begun: it is finished, or its folder is another's.

    Nothing is returned for what is left to be done.
    """
    folder = RunFolder(planned.path)
    if not folder.experiment.exists():
        return None
    try:
        must_be_the_same(folder, planned.experiment, here)
    except FedtailError as error:
        return Ending(str(error), refused=True)
    if not (folder.finished and read_records(folder.metrics)):
        return None
    if planned.experiment.test != "none" and read_run(planned.path).tested is None:
        said = "its folder holds a run whose model was not tested (it was run with test = 'none')"
        return Ending(f"{said}; choose another --out", refused=True)
    return Ending(before=True)


def must_be_the_same(folder: RunFolder, experiment: Experiment, here: DataHere) -> None:
    """Refuse a folder that holds a run with other settings, or on other data of the user's own."""
    described = experiment.describe()
    stored, wanted = load_experiment(folder.experiment), tomllib.loads(tomli_w.dumps(described))
    if odd := first_difference(completed(stored), wanted, FREE):
        raise FedtailError(f"its folder holds a run with another '{odd}'; choose another --out")
    # A path, and shapes, say nothing of the values. What is not finished is checked on resume.
    if folder.finished and described["data"].keys() & {"path", "shapes"}:
        try:
            folder.must_be_on(here.digests(experiment))
        except FedtailError:
            raise FedtailError(
                "its folder holds a run on other data; choose another --out"
            ) from None


def settle(planned: Planned, callbacks: Sequence[Callback]) -> Ending:
    """Do what is left of one run."""
    started = RunFolder(planned.path).experiment.exists()
    try:
        run(planned.experiment, out=planned.path, resume=started, callbacks=callbacks)
    except GivenUp:
        return Ending(given_up=True)
    except HandedOver:
        return Ending(handed_over=True)
    except (FedtailError, RunStopped) as error:
        return Ending(str(error), isinstance(error, FedtailError))
    except Exception as error:  # a method of the user's own may fail in any way
        return Ending(first_line_and_place(error))
    return Ending()
