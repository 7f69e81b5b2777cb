"""Payloads as Flower records and back: the one place that knows both vocabularies.

A message carries any number of payloads. Each group of tensors of each payload is one `ArrayRecord`
(``0/model``, ``0/prior``, ``1/model``, ...), and one `ConfigRecord` holds everything else as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedtail.engines.wire import pack, unpack
from fedtail.errors import FedtailError
from fedtail.protocol import Payload

NOTES = "fedtail"
"""The name of the record with the JSON."""


def to_records(payloads: Sequence[Payload], notes: Mapping[str, Any]) -> RecordDict:
    """Return payloads and JSON notes as the content of one message."""
    records = RecordDict()
    heads = []
    for slot, payload in enumerate(payloads):
        for group in _groups(payload):
            held = {n: _array(n, t) for n, t in payload.tensors.items() if _group(n) == group}
            records[f"{slot}/{group}"] = ArrayRecord(held)
        heads.append(_head(payload))
    records[NOTES] = ConfigRecord({"json": json.dumps({**notes, "payloads": heads})})
    return records


def from_records(records: RecordDict) -> tuple[list[Payload], dict[str, Any]]:
    """Return what `to_records` was given."""
    notes = read_notes(records)
    payloads = []
    try:
        for slot, head in enumerate(notes.pop("payloads")):
            tensors = {
                name: _tensor(array, head["odd"].get(name))
                for group in head["groups"]
                for name, array in records.array_records[f"{slot}/{group}"].items()
            }
            payloads.append(replace(_rest(head["rest"]), tensors=tensors))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FedtailError(f"a message is damaged ({type(error).__name__})") from None
    return payloads, notes


def read_notes(records: RecordDict) -> dict[str, Any]:
    """Return the JSON of a message, or say that this is not one of ours."""
    try:
        notes: Any = json.loads(str(records.config_records[NOTES]["json"]))
    except (KeyError, ValueError):
        notes = None
    if not isinstance(notes, dict):
        raise FedtailError("this message is not from fedtail: it has no record 'fedtail'")
    return notes


def wire_bytes(records: RecordDict) -> int:
    """Return the bytes of a message's records as they are sent, without what HTTP adds."""
    arrays = sum(record.count_bytes() for record in records.array_records.values())
    return arrays + sum(record.count_bytes() for record in records.config_records.values())


def _groups(payload: Payload) -> list[str]:
    """Return the groups in the order in which they first stand in the payload."""
    return list(dict.fromkeys(_group(name) for name in payload.tensors))


def _group(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""


def _head(payload: Payload) -> dict[str, Any]:
    halves = [name for name, t in payload.tensors.items() if t.dtype == torch.bfloat16]
    return {
        # What is not a tensor is written as workers are sent it, in one place for both.
        "rest": pack(replace(payload, tensors={}))[8:].decode(),
        "groups": _groups(payload),
        "odd": dict.fromkeys(halves, "bfloat16"),
    }


def _rest(text: str) -> Payload:
    data = text.encode()
    return unpack(len(data).to_bytes(8, "little") + data)


def _array(name: str, tensor: Tensor) -> Array:
    if tensor.layout != torch.strided:
        raise FedtailError(f"'{name}' is sparse, which no message can carry; make it dense")
    plain = tensor.detach().cpu()
    # NumPy has no bfloat16: its bits travel as whole numbers.
    return Array((plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy())


def _tensor(array: Array, odd: str | None) -> Tensor:
    plain = torch.tensor(array.numpy())  # a copy: the array stands in memory that is not ours
    return plain.view(torch.bfloat16) if odd == "bfloat16" else plain
