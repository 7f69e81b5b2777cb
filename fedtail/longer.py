"""A run that goes on to another number of rounds than it began with, or is tested otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from fedtail.callbacks.jsonl import read_records
from fedtail.config import Config
from fedtail.errors import FedtailError
from fedtail.experiment import Experiment
from fedtail.folder import LENGTH, RunFolder, completed
from fedtail.training.schedule import Constant, Schedule


def take_up(folder: RunFolder, experiment: Experiment, done: int) -> list[str]:
    """Write down when a resumed run is to end now, and when it is tested, if that is new.

    Parameters
    ----------
    folder
        The run; whether it is the same experiment otherwise was checked before.
    experiment
        As it is to go on.
    done
        How many rounds its checkpoint stands on.

    Returns
    -------
    list of str
        A sentence on what depends on the number of rounds.
    """
    stored = completed(folder.settings())
    before, rounds = stored["rounds"], experiment.rounds
    if rounds < done:
        raise FedtailError(f"'{folder.path}' has done {done} rounds: rounds = {rounds} is fewer")
    if rounds == done != before and not was_tested(folder, done):
        raise FedtailError(
            f"round {done} of '{folder.path}' was not tested and cannot be the last: rounds is at "
            f"least {done + 1}"
        )
    wanted = experiment.describe()
    if all(stored[field] == wanted[field] for field in LENGTH | {"test"}):
        return []
    if rounds != before and experiment.privacy.on:
        raise FedtailError(
            f"the noise of '{folder.path}' was chosen for {before} rounds, and another number "
            "breaks what was promised: begin a new run"
        )
    folder.describe_anew(experiment.to_toml())
    said, differs = [], f"a run of {rounds} rounds from the start would differ"
    found = sorted(shares_of_rounds(experiment)) if done and rounds != before else []
    if found:
        said.append(
            f"{', '.join(found)}: rounds 1 to {done} followed it as a part of {before} rounds, "
            f"those after as a part of {rounds}; {differs}"
        )
    chooses = experiment.keep == "best" or experiment.patience
    if chooses and done == before < rounds and done % experiment.eval_every:
        said.append(
            f"round {done} was validated because it was the last, and may be the best; {differs}"
        )
    return said


def was_tested(folder: RunFolder, round: int) -> bool:
    """Whether a round that is done has scores."""
    records = (record for record in read_records(folder.metrics) if record["round"] == round)
    return any(record.get("accuracy") is not None for record in records)


def shares_of_rounds(config: Config, path: str = "") -> Iterator[str]:
    """Give the settings whose meaning depends on how many rounds there are.

    These are schedules that are not constant, and fields that are a share of the rounds: their
    descriptions say so.
    """
    for name, field in type(config).model_fields.items():
        value, where = getattr(config, name), f"{path}{name}"
        if isinstance(value, Schedule):
            if not isinstance(value, Constant):
                yield f"{where} = {value.name}"
        elif isinstance(value, Config):
            yield from shares_of_rounds(value, f"{where}.")
        elif "of the rounds" in (field.description or "") and value:
            yield f"{where} = {value}"
