from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.encryption import measure
from fedtail.privacy.ckks import Adder, Keyholder, make_keys
from fedtail.protocol import Payload


def test_the_table_is_measured_on_real_ciphertexts(tmp_path: Path) -> None:
    make_keys(tmp_path)
    payloads = [
        Payload({"model/w": torch.full((4000,), k + 1.0)}, {"samples": 5}) for k in range(2)
    ]
    found = measure(payloads, Keyholder.open(tmp_path), Adder.open(tmp_path))
    assert found["numbers"] == 4002  # weight, samples and the tensor
    assert found["plain_bytes"] == 4 * 4000 + 8
    assert found["bytes_ratio"] == pytest.approx(8.2, abs=0.2)
    assert found["largest_relative_error"] < 1e-6
    assert min(found[k] for k in found if k.endswith("seconds")) >= 0
