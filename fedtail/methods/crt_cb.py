"""cRT-CB: classifier re-training, after class-balanced training.

Kang, Xie, Rohrbach, Yan, Gordo, Feng, Kalantidis, "Decoupling Representation and Classifier for
Long-Tailed Recognition", ICLR 2020.

As cRT-IB (`crt_ib.py`), but the first stage draws its batches class-balanced, too.
"""

from __future__ import annotations

from pydantic import Field

from fedtail.methods.base import Method
from fedtail.methods.crt_ib import CRTIB
from fedtail.training import BatchSampler, ClassBalanced


@Method.register("crt-cb")
class CRTCB(CRTIB):
    """As crt-ib, with class-balanced batches in both stages."""

    sampler: BatchSampler = Field(
        ClassBalanced(), description="how clients draw batches in the first stage"
    )
