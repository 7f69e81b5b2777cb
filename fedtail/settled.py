"""What inputs are normalised with, settled before the first round and kept with the model."""

from __future__ import annotations

import logging

import torch

from fedtail.engines import Engine
from fedtail.errors import FedtailError, RunStopped
from fedtail.exchange import Ledger, drive, first_reason
from fedtail.files import write_atomic
from fedtail.folder import RunFolder
from fedtail.model_file import ModelFile
from fedtail.models import ModelSpec
from fedtail.setting import Setting
from fedtail.standardise import ask_constants

logger = logging.getLogger("fedtail")


def settle_inputs(
    setting: Setting, engine: Engine, folder: RunFolder | None, ledger: Ledger, anew: bool
) -> None:
    """Ask the clients for the constants, if the data has none, and describe the model.

    Parameters
    ----------
    setting, engine, folder
        The run; without a folder nothing is written.
    ledger
        What the exchange costs is added to it.
    anew
        Whether the run begins; one that goes on has its constants from its folder.
    """
    federation, server = setting.federation, setting.server(0)
    if not anew and folder is not None and restore_inputs(setting, folder):
        return
    if not federation.known:
        nothing = (torch.empty(0), torch.empty(0))
        mean, std = drive(ask_constants(federation, server), nothing, engine, server, ledger)
        if ledger.kept:
            said = first_reason(ledger.dropped)
            raise RunStopped(f"no client reported the sums of its inputs ({said})")
        federation.standardise(mean, std)
        engine.begin(0, "training")  # what the method draws must not depend on having asked
    if folder is not None:
        if isinstance(setting.architecture, ModelSpec):
            setting.architecture.keep(folder.path)
        write_atomic(folder.description, ModelFile.of(setting).to_json())


def restore_inputs(setting: Setting, folder: RunFolder) -> bool:
    """Normalise as a run did; tell whether its folder still says how."""
    try:
        file = ModelFile.from_json(folder.described(), str(folder.description))
    except FedtailError as error:
        logger.warning("%s", error)
        return False
    if not setting.federation.known:
        setting.federation.standardise(torch.tensor(file.mean), torch.tensor(file.std))
    return True
