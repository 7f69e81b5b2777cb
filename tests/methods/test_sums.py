"""Which methods need only sums of updates: those that say so, and only those."""

from __future__ import annotations

import pytest
from method_needs import make_experiment, make_method
from summing import far, summed

from fedtail import Method, run
from fedtail.errors import FedtailError
from fedtail.methods.base import why_not_a_sum

NAMES = [n for n in Method.registry if Method.registry[n].__module__.startswith("fedtail.")]


@pytest.mark.parametrize("name", NAMES)
def test_every_method_is_refused_or_the_same_from_sums_alone(name: str) -> None:
    experiment = make_experiment(name, "with BatchNorm")
    if name == "balancefl":
        # Its noise has the signs of a QR factorisation, which the last bit of a feature can flip.
        experiment = experiment.but(method=experiment.method.but(augment_features=False))
    method = experiment.method
    if why_not_a_sum(method):
        with pytest.raises(FedtailError, match=f"method '{name}' cannot be encrypted, which needs"):
            experiment.but(encrypt=True)
        return
    plain, found = run(experiment), summed(experiment)
    assert not any(record["dropped"] for record in found.history)
    assert far(found, plain) < 1e-4


def test_what_is_summed_is_no_small_part() -> None:
    additive = {name for name in NAMES if not why_not_a_sum(make_method(name))}
    assert {"fedavg", "fedlc", "balancefl", "creff", "redgrape", "gbme-p", "fedadam"} <= additive
    assert {"ccvr", "gbme", "centralised"}.isdisjoint(additive)
