"""The score by which something may be chosen: that of the samples that clients hold out."""

from __future__ import annotations

from fedtail.callbacks import Record
from fedtail.errors import FedtailError
from fedtail.experiment import Experiment
from fedtail.metrics.scores import LESS_IS_BETTER


def validation_score(record: Record, key: str) -> float | None:
    """Return a score of the clients' held-out samples, more being better; nothing without one."""
    score = (record.get("validation") or {}).get(key)
    if score is None:
        return None
    return -float(score) if key in LESS_IS_BETTER else float(score)


def must_be_validated(experiment: Experiment) -> None:
    """Refuse to choose where only the test set could tell."""
    if not experiment.validation.share:
        raise FedtailError(
            "a search needs samples that clients hold out of training, for example "
            "validation=0.1; the test set chooses nothing"
        )
