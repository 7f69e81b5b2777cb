"""The content of a message as Flower's records and as plain arrays.

No PyTorch here: a process that only passes a message on needs no more than this.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedtail.engines.flower.link import ArrayGroups
from fedtail.errors import FedtailError

NOTES = "fedtail"
"""The name of the record with the JSON."""
Content = tuple[ArrayGroups, str]
"""Groups of arrays, and everything else as JSON."""


def sealed(content: Content) -> RecordDict:
    """Return a content as records: one for each group, and one with the JSON."""
    groups, text = content
    records = RecordDict()
    for group, arrays in groups.items():
        records[group] = ArrayRecord({name: Array(held) for name, held in arrays.items()})
    records[NOTES] = ConfigRecord({"json": text})
    return records


def unsealed(records: RecordDict) -> Content:
    """Return the content of records; those of others have no text."""
    try:
        groups = {
            group: {name: array.numpy() for name, array in arrays.items()}
            for group, arrays in records.array_records.items()
        }
    except (TypeError, ValueError) as error:
        raise damaged(error) from None
    notes = records.config_records.get(NOTES)
    return groups, "" if notes is None else str(notes.get("json", ""))


def damaged(error: Exception) -> FedtailError:
    """Return the error for a message that does not hold what it says."""
    return FedtailError(f"a message is damaged ({type(error).__name__})")
