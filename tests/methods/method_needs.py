"""What a method needs, beyond nothing, to take part in the conformance suite.

Most methods need no entry. One that has long inner loops adds small numbers to `FIELDS`, one that
cannot train a model of `fedtail.testing.federation.MODELS` its sentence to `REFUSES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from fedtail import Experiment, Method
from fedtail.testing import Case
from fedtail.testing.federation import BARE, PLAIN

FIELDS: Mapping[str, Mapping[str, Any]] = {
    "creff": {"features": 5, "match_steps": 5, "head_epochs": 5},
    "redgrape": {"per_class": 2},  # eight samples of a class are more than any tiny client has
    "ccvr": {"samples": 5, "head_epochs": 2},
    # Three rounds: two of the first stage, one of the second.
    "crt-cb": {"first_stage": 0.6},
    "crt-ib": {"first_stage": 0.6},
    "fedbe": {"models": 2, "distil_epochs": 3, "distil_batch": 2, "swa_every": 2},
    "fedic": {"tune_steps": 2, "calibrate_steps": 2, "distil_steps": 3, "distil_batch": 4},
    "feddf": {"distil_steps": 4, "distil_batch": 4},
}
REFUSES: Mapping[str, Mapping[str, str]] = {
    "clip2fl": {BARE: "shows CLIP images of 1 or 3 channels, not inputs of shape (6,)"},
    "fedalign": {BARE: "no block with weights before its classifier '' that could be slimmed"},
}
FROZEN: Mapping[str, str] = {"fedalign": "trains the block '0' at two widths, and it is frozen"}
"""Which methods cannot train a head alone, and what they say."""
WHOLE = ("weight", "bias")
READ_CLASSIFIER: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("ccvr", "fednpc", "rucr", "tau-norm", "crt-ib", "crt-cb"), WHOLE),
    **dict.fromkeys(("creff", "clip2fl", "fedrod", "closed-form"), WHOLE),
    **dict.fromkeys(("fedetf", "fednh", "feduh", "fedloge", "ldam", "ride"), WHOLE),
    **dict.fromkeys(("fed-grab", "ratio-loss"), ("weight",)),
}
"""Which methods read or replace what of a classifier, so that it may not be frozen."""


@cache
def case(name: str) -> Case:
    """Return a method on trial; what its checks share is computed once a process."""
    return Case(Method.registry[name], fields_of(name))


def fields_of(name: str) -> Mapping[str, Any]:
    """Return the fields of a method on trial."""
    if name == "clip2fl":
        import tiny_clip  # it imports transformers, which takes seconds

        return tiny_clip.fields()
    return FIELDS.get(name, {})


def make_method(name: str) -> Method[Any]:
    """Return a method with a short local training."""
    return case(name).make_method()


def make_experiment(name: str, model: str = PLAIN, **fields: Any) -> Experiment:
    """Return three rounds of a method on the tiny federation."""
    return case(name).on(model).experiment(**fields)
