"""Payloads as the content of a Flower message and back: the one place that knows both vocabularies.

A message carries any number of payloads. Each group of tensors of each payload is a group of arrays
(``0/model``, ``0/prior``, ``1/model``, ...), and one JSON text holds everything else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

from fedtail.engines.flower.link import ArrayGroups
from fedtail.engines.flower.records import Content, damaged, sealed, unsealed
from fedtail.engines.wire import pack, unpack
from fedtail.errors import FedtailError
from fedtail.protocol import Payload


def to_content(payloads: Sequence[Payload], notes: Mapping[str, Any]) -> Content:
    """Return payloads and JSON notes as the content of one message."""
    groups: ArrayGroups = {}
    for slot, payload in enumerate(payloads):
        for name, tensor in payload.tensors.items():
            groups.setdefault(f"{slot}/{_group(name)}", {})[name] = _array(name, tensor)
    return groups, json.dumps({**notes, "payloads": [_head(payload) for payload in payloads]})


def from_content(content: Content) -> tuple[list[Payload], dict[str, Any]]:
    """Return what `to_content` was given."""
    groups, text = content
    notes = read_notes(text)
    payloads = []
    try:
        for slot, head in enumerate(notes.pop("payloads")):
            tensors = {
                name: _tensor(array, head["odd"].get(name))
                for group in head["groups"]
                for name, array in groups[f"{slot}/{group}"].items()
            }
            payloads.append(replace(_rest(head["rest"]), tensors=tensors))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(error) from None
    return payloads, notes


def to_records(payloads: Sequence[Payload], notes: Mapping[str, Any]) -> RecordDict:
    """Return payloads and JSON notes as the records of one message."""
    return sealed(to_content(payloads, notes))


def from_records(records: RecordDict) -> tuple[list[Payload], dict[str, Any]]:
    """Return what `to_records` was given."""
    return from_content(unsealed(records))


def read_notes(text: str) -> dict[str, Any]:
    """Return the JSON of a message, or say that this is not one of ours."""
    try:
        notes: Any = json.loads(text)
    except ValueError:
        notes = None
    if not isinstance(notes, dict):
        raise FedtailError("this message is not from fedtail: it has no record 'fedtail'")
    return notes


def wire_bytes(records: RecordDict) -> int:
    """Return the bytes of a message's records as they are sent, without what HTTP adds."""
    arrays = sum(record.count_bytes() for record in records.array_records.values())
    return arrays + sum(record.count_bytes() for record in records.config_records.values())


def _group(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""


def _head(payload: Payload) -> dict[str, Any]:
    halves = [name for name, t in payload.tensors.items() if t.dtype == torch.bfloat16]
    return {
        # What is not a tensor is written as workers are sent it, in one place for both.
        "rest": pack(replace(payload, tensors={}))[8:].decode(),
        "groups": list(dict.fromkeys(map(_group, payload.tensors))),
        "odd": dict.fromkeys(halves, "bfloat16"),
    }


def _rest(text: str) -> Payload:
    data = text.encode()
    return unpack(len(data).to_bytes(8, "little") + data)


def _array(name: str, tensor: Tensor) -> np.ndarray:
    if tensor.layout != torch.strided:
        raise FedtailError(f"'{name}' is sparse, which no message can carry; make it dense")
    plain = tensor.detach().cpu()
    # NumPy has no bfloat16: its bits travel as whole numbers.
    return (plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy()


def _tensor(array: np.ndarray, odd: str | None) -> Tensor:
    plain = torch.tensor(array)  # a copy: the array stands in memory that is not ours
    return plain.view(torch.bfloat16) if odd == "bfloat16" else plain
