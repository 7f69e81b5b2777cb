"""cRT-CB: cRT-IB with class-balanced batches in the first stage, too."""

from __future__ import annotations

import tiny

from fedtail import CRTCB, CRTIB, ClassBalanced, FedAvg, Shuffled, run


def test_it_is_crt_ib_with_another_sampler() -> None:
    assert CRTCB().sampler == CRTCB().head_sampler == ClassBalanced()
    assert CRTIB().sampler == Shuffled()
    balanced = run(tiny.experiment(CRTCB(local=tiny.quick(), first_stage=0.6)))
    other = run(
        tiny.experiment(CRTIB(local=tiny.quick(), first_stage=0.6, sampler=ClassBalanced()))
    )
    assert balanced.digest == other.digest
    plain = run(tiny.experiment(CRTIB(local=tiny.quick(), first_stage=0.6)))
    assert balanced.digest != plain.digest


def test_a_first_stage_of_everything_is_balanced_fedavg() -> None:
    result = run(tiny.experiment(CRTCB(local=tiny.quick(), first_stage=1)))
    plain = run(tiny.experiment(FedAvg(local=tiny.quick(), sampler=ClassBalanced())))
    assert result.digest == plain.digest
