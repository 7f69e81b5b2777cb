"""Whatever a payload holds comes back from a message bit by bit."""

from __future__ import annotations

import math

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtail import FedtailError, Payload
from fedtail.engines.flower.bridge import from_records, to_records, wire_bytes
from fedtail.protocol import Scalar
from fedtail.state import digest

KINDS = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def there_and_back(*payloads: Payload) -> list[Payload]:
    return from_records(to_records(payloads, {}))[0]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4)], ids=str)
def test_every_type_and_shape_comes_back(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 9).to(kind)
    (payload,) = there_and_back(Payload({"model/w": tensor}))
    back = payload.tensors["model/w"]
    assert (back.dtype, back.shape) == (kind, shape)
    assert digest({"w": back}) == digest({"w": tensor})


def test_views_and_channels_last_come_back_as_their_values() -> None:
    table = torch.arange(24.0).reshape(2, 3, 2, 2)
    odd = {"a/t": table[0, :, 0].T, "a/c": table.contiguous(memory_format=torch.channels_last)}
    (payload,) = there_and_back(Payload(odd))
    assert all(torch.equal(payload.tensors[name], odd[name]) for name in odd)


def test_nan_infinity_and_minus_zero_keep_their_bits() -> None:
    odd = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
    (payload,) = there_and_back(Payload({"m/x": odd}, {"loss": math.inf}))
    assert digest(payload.tensors) == digest({"m/x": odd})
    assert payload.scalars["loss"] == math.inf


def test_what_came_back_can_be_changed_without_changing_anything_else() -> None:
    records = to_records([Payload({"m/x": torch.zeros(2)})], {})
    from_records(records)[0][0].tensors["m/x"].add_(1)
    assert torch.equal(from_records(records)[0][0].tensors["m/x"], torch.zeros(2))


def test_each_group_is_one_record_and_payloads_do_not_mix() -> None:
    first = Payload(
        {"model/a": torch.ones(1), "prior/counts": torch.ones(2), "model/b": torch.ones(3)}
    )
    second = Payload({"model/a": torch.zeros(1), "loose": torch.zeros(4)})
    records = to_records([first, second], {"round": 3})
    assert list(records.array_records) == ["0/model", "0/prior", "1/model", "1/"]
    back, notes = from_records(records)
    assert notes == {"round": 3}
    assert [digest(p.tensors) for p in back] == [digest(first.tensors), digest(second.tensors)]


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=8),
        st.one_of(st.integers(), st.floats(allow_nan=False), st.text(max_size=8), st.booleans()),
        max_size=4,
    ),
    st.lists(st.text(max_size=9), max_size=5),
)
def test_any_names_scalars_and_groups_come_back(
    scalars: dict[str, Scalar], names: list[str]
) -> None:
    tensors = {name: torch.full((2,), float(i)) for i, name in enumerate(names)}
    (payload,) = there_and_back(Payload(tensors, scalars))
    assert payload.scalars == scalars
    assert [type(v) for v in payload.scalars.values()] == [type(v) for v in scalars.values()]
    assert digest(payload.tensors) == digest(tensors)


def test_a_sparse_tensor_is_refused_by_name() -> None:
    with pytest.raises(FedtailError, match="'m/x' is sparse"):
        to_records([Payload({"m/x": torch.eye(3).to_sparse()})], {})


def test_a_foreign_or_damaged_message_is_refused() -> None:
    with pytest.raises(FedtailError, match="not from fedtail"):
        from_records(RecordDict({"config": ConfigRecord({"lr": 0.1})}))
    with pytest.raises(FedtailError, match="not from fedtail"):
        from_records(RecordDict({"fedtail": ConfigRecord({"json": "[1"})}))
    records = to_records([Payload({"m/x": torch.zeros(2)})], {})
    del records["0/m"]
    with pytest.raises(FedtailError, match="damaged"):
        from_records(records)


def test_the_wire_carries_the_counted_bytes_and_a_header_a_tensor() -> None:
    payload = Payload({"m/x": torch.zeros(1000)}, {"samples": 3})
    # 4000 bytes of numbers; NumPy's header is 128 bytes, the name 3, the JSON about 100.
    assert payload.nbytes < wire_bytes(to_records([payload], {})) < payload.nbytes + 300
