"""Bytes, and the arithmetic of BalanceFL's Table 2."""

from __future__ import annotations

import pytest

from fedtail.metrics import GB, checkpoint_traffic, gigabytes, human_bytes


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KB"),
        (1536, "1.5 KB"),
        (5 * 2**20, "5.0 MB"),
        (GB, "1.0 GB"),
        (3 * 2**50, "3.0 PB"),
        (2**63, "8192.0 PB"),
    ],
)
def test_human_bytes(nbytes: int, text: str) -> None:
    assert human_bytes(nbytes) == text


@pytest.mark.parametrize(("rounds", "printed"), [(23, 6.10), (92, 24.40), (175, 46.42)])
def test_balancefl_table_2(rounds: int, printed: float) -> None:
    """ResNet-8 has 3,553,749 values of four bytes, ten nodes; serialisation adds 0.17 %."""
    nbytes = checkpoint_traffic(rounds, clients=10, checkpoint_bytes=4 * 3_553_749)

    assert gigabytes(nbytes) * 1.0017 == pytest.approx(printed, abs=0.01)
