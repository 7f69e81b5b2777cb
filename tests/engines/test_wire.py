"""Payloads as bytes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedtail.engines.wire import pack, unpack
from fedtail.errors import FedtailError
from fedtail.protocol import Payload, Scalar
from fedtail.tensors import pack_tensors, unpack_tensors

TENSORS = {
    "float32": torch.tensor([[1.5, -0.0], [float("inf"), 1e-45]]),
    "float16": torch.tensor([1.0, 65504.0], dtype=torch.float16),
    "bfloat16": torch.tensor([1.0, 3e38], dtype=torch.bfloat16),
    "float64": torch.tensor([0.1], dtype=torch.float64),
    "int64": torch.tensor([2**62, -1]),
    "int32": torch.tensor([-(2**31)], dtype=torch.int32),
    "bool": torch.tensor([True, False]),
    "uint8": torch.tensor([0, 255], dtype=torch.uint8),
    "0-d": torch.tensor(3.25),
    "0-d int": torch.tensor(7),
    "empty": torch.zeros(0, 5),
    "empty int": torch.zeros(0, dtype=torch.int64),
}


def same(a: Tensor, b: Tensor) -> bool:
    bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)


@pytest.mark.parametrize("name", list(TENSORS))
def test_every_type_of_tensor_arrives_bit_by_bit(name: str) -> None:
    sent = TENSORS[name]
    arrived = unpack(pack(Payload({f"group/{name}": sent}))).tensors[f"group/{name}"]
    assert same(sent, arrived)


def test_all_together_and_names_kept() -> None:
    arrived = unpack(pack(Payload(TENSORS))).tensors
    assert arrived.keys() == TENSORS.keys()
    assert all(same(arrived[name], TENSORS[name]) for name in TENSORS)


def test_nan_arrives_as_nan() -> None:
    (arrived,) = unpack(pack(Payload({"x": torch.tensor([float("nan")])}))).tensors.values()
    assert bool(arrived.isnan().all())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(6.0)[::2],
        torch.zeros(1).expand(4),
        torch.randn(1, 2, 4, 4).to(memory_format=torch.channels_last),
        torch.ones(2, requires_grad=True),
    ],
)
def test_views_and_layouts_arrive_as_their_values(tensor: Tensor) -> None:
    (arrived,) = unpack(pack(Payload({"x": tensor}))).tensors.values()
    assert torch.equal(arrived, tensor)
    assert not arrived.requires_grad


def test_one_tensor_under_two_names() -> None:
    # Tied weights share memory, which safetensors refuses unless they are told apart.
    tied = torch.ones(3)
    arrived = unpack(pack(Payload({"a": tied, "b": tied}))).tensors
    assert torch.equal(arrived["a"], tied)
    assert torch.equal(arrived["b"], tied)


def test_views_of_one_tensor() -> None:
    whole = torch.arange(6.0)
    arrived = unpack(pack(Payload({"a": whole[:4], "b": whole[2:], "c": whole}))).tensors
    assert [arrived[name].tolist() for name in "abc"] == [
        [0.0, 1.0, 2.0, 3.0],
        [2.0, 3.0, 4.0, 5.0],
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
    ]


def test_scalars_arrive_exactly() -> None:
    scalars: dict[str, Scalar] = {
        "n": 2**60 + 1,
        "loss": 0.1 + 0.2,
        "tiny": 5e-324,
        "on": True,
        "name": "é\n",
        "z": 0,
    }
    arrived = unpack(pack(Payload(scalars=scalars))).scalars
    assert arrived == scalars
    assert [type(value) for value in arrived.values()] == [int, float, float, bool, str, int]


def test_a_scalar_that_is_not_finite_arrives_to_be_refused() -> None:
    arrived = unpack(pack(Payload(scalars={"loss": float("inf")}))).scalars
    assert arrived["loss"] == float("inf")


def test_nothing_is_a_payload_too() -> None:
    arrived = unpack(pack(Payload()))
    assert arrived == Payload()
    assert unpack_tensors(pack_tensors({}), "x") == {}


def test_the_same_payload_is_the_same_bytes() -> None:
    assert pack(Payload(TENSORS, {"n": 1})) == pack(Payload(TENSORS, {"n": 1}))


@pytest.mark.parametrize("cut", [1, 20, -1])
def test_damaged_bytes_are_one_sentence(cut: int) -> None:
    data = pack_tensors({"w": torch.ones(5)})[:cut]
    with pytest.raises(FedtailError, match="the model is damaged"):
        unpack_tensors(data, "the model")
