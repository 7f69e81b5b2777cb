"""Which methods need only sums of updates: those that say so, and only those."""

from __future__ import annotations

import pytest
from method_needs import make_experiment, make_method
from summing import far

from fedtail import Method, run
from fedtail.errors import FedtailError

NAMES = [n for n in Method.registry if Method.registry[n].__module__.startswith("fedtail.")]


@pytest.mark.parametrize("name", NAMES)
def test_every_method_is_refused_or_the_same_from_secure_sums(name: str) -> None:
    experiment = make_experiment(name, "with BatchNorm")
    if name == "balancefl":
        # Its noise has the signs of a QR factorisation, which the last bit of a feature can flip.
        experiment = experiment.but(method=experiment.method.but(augment_features=False))
    if experiment.method.asks().single:
        with pytest.raises(FedtailError, match=f"method '{name}' cannot be summed securely, which"):
            experiment.but(secure=True)
        return
    plain, found = run(experiment), run(experiment.but(secure=True))
    assert not any(record["dropped"] for record in found.history)
    # Numbers are off by 2^-36 at most; three rounds of training make more of it.
    assert far(found, plain) < 1e-5


def test_what_is_summed_is_no_small_part() -> None:
    summed = {name for name in NAMES if not make_method(name).asks().single}
    known = {"fedavg", "fedlc", "balancefl", "creff", "redgrape", "gbme-p", "fedadam", "ccvr"}
    assert known | {"scaffold", "fednova"} <= summed
    assert {"climb", "gbme", "centralised"}.isdisjoint(summed)
