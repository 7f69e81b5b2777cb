"""Whether a method keeps its promises: the checks that fedtail's own methods are held to.

from fedtail.testing import check_method

def test_mine() -> None:
    check_method(MyMethod)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from fedtail.errors import FedtailError
from fedtail.methods.base import Method
from fedtail.plugins import first_line_and_place
from fedtail.testing.case import Case, CheckFailed
from fedtail.testing.checks import CHECKS, Check, a_run_comes_to_its_end
from fedtail.testing.federation import MODELS

__all__ = ["CHECKS", "Case", "Check", "CheckFailed", "Outcome", "check_method", "outcomes"]


@dataclass(frozen=True)
class Outcome:
    """What came of one check.

    Attributes
    ----------
    kept
        ``yes``, ``no``, or ``refused``: the method does not train such a model, and says so.
    sentence
        What is wrong, or the sentence of the refusal.
    error
        What was raised.
    """

    check: str
    model: str
    kept: Literal["yes", "no", "refused"]
    sentence: str = ""
    error: Exception | None = None

    def __str__(self) -> str:
        return f"{self.check} ({self.model}): {self.sentence}"


def check_method(
    method: type[Method[Any]],
    fields: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    workers: bool = False,
) -> list[Outcome]:
    """Hold a registered method to all promises, and raise one error with every failure.

    Parameters
    ----------
    method
        The class.
    fields
        Fields of the method that make it quick: two steps instead of a hundred.
    settings
        Fields of the experiment. A method that needs server data gets two samples a class.
    workers
        Also check with worker processes, which takes seconds; they must be able to import the
        class.

    Raises
    ------
    CheckFailed
        A promise is not kept. The message has a line for each, with the name of the check.
    """
    found = list(outcomes(Case(registered(method), fields or {}, settings or {}), workers))
    failed = [outcome for outcome in found if outcome.kept == "no"]
    if failed:
        raise CheckFailed("\n".join(map(str, failed))) from failed[0].error
    return found


def outcomes(case: Case, workers: bool = False) -> Iterator[Outcome]:
    """Yield what comes of every check, as it is done."""
    refused = {model: sentence for model in MODELS if (sentence := case.on(model).refusal())}
    tried = 0
    broken: set[str] = set()
    for check in CHECKS:
        for model in check.models:
            if (check.processes and not workers) or model in broken:
                continue
            if model in refused:
                if check.function is a_run_comes_to_its_end:
                    yield Outcome(check.name, model, "refused", refused[model])
                continue
            tried += 1
            outcome = outcome_of(check, case.on(model))
            if outcome.kept == "no" and check.function is a_run_comes_to_its_end:
                broken.add(model)  # every other check of this model would say the same
            yield outcome
    if not tried:
        sentence = f"refuses every model: {next(iter(refused.values()))}"
        yield Outcome(a_run_comes_to_its_end.__name__, "any", "no", sentence)


def outcome_of(check: Check, case: Case) -> Outcome:
    """Return what comes of one check."""
    try:
        with _quiet():
            check.function(case)
    except CheckFailed as error:
        return Outcome(check.name, case.model, "no", str(error), error)
    except Exception as error:  # the method's own code may fail in any way
        return Outcome(check.name, case.model, "no", first_line_and_place(error), error)
    return Outcome(check.name, case.model, "yes")


def registered(method: type[Method[Any]]) -> type[Method[Any]]:
    """Return the class, or say that nobody can find it by its name."""
    if method.name not in Method.registry or Method.registry[method.name] is not method:
        raise FedtailError(
            f"class '{method.__name__}' is not registered: put @Method.register('NAME') above it"
        )
    return method


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what is expected to go wrong out of the user's log."""
    logger = logging.getLogger("fedtail")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
