"""Which methods need only sums of updates: those that say so, and only those."""

from __future__ import annotations

from pathlib import Path

import pytest
from method_needs import make_experiment, make_method
from summing import far

from fedtail import Method, run
from fedtail.errors import FedtailError
from fedtail.privacy.ckks import make_keys

NAMES = [n for n in Method.registry if Method.registry[n].__module__.startswith("fedtail.")]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_every_method_is_refused_or_the_same_from_encrypted_sums(name: str, keys: Path) -> None:
    experiment = make_experiment(name, "with BatchNorm")
    if name == "balancefl":
        # Its noise has the signs of a QR factorisation, which the last bit of a feature can flip.
        experiment = experiment.but(method=experiment.method.but(augment_features=False))
    if experiment.method.asks().single:
        with pytest.raises(FedtailError, match=f"method '{name}' cannot be encrypted, which needs"):
            experiment.but(encrypt=True)
        return
    plain, found = run(experiment), run(experiment.but(encrypt=True, keys=str(keys)))
    assert not any(record["dropped"] for record in found.history)
    # CKKS has an absolute error of 1e-6; three rounds of training make more of it.
    assert far(found, plain) < 1e-4


def test_what_is_summed_is_no_small_part() -> None:
    summed = {name for name in NAMES if not make_method(name).asks().single}
    known = {"fedavg", "fedlc", "balancefl", "creff", "redgrape", "gbme-p", "fedadam", "ccvr"}
    assert known | {"scaffold", "fednova"} <= summed
    assert {"climb", "gbme", "centralised"}.isdisjoint(summed)
