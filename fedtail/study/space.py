"""What of a method is searched, and between which bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedtail.errors import FedtailError
from fedtail.methods import Method

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

TUNABLE: dict[str, dict[str, str]] = {
    "fedavg": {"local.lr": "0.003..1:log"},
    "balancefl": {"ki_weight": "0.1..10:log", "sampler.gamma": "0..1"},
    "ccvr": {"head_lr": "0.001..0.1:log"},
    "climb": {"dual_lr": "0.01..10:log"},
    "creff": {"match_lr": "0.01..1:log", "head_lr": "0.001..0.1:log"},
    "crt-ib": {"first_stage": "0.3..0.95"},
    "fed-grab": {"kp": "0.1..30:log", "ki": "0.0001..0.1:log"},
    "fed-focal": {"loss.gamma": "0.5..5"},
    "fedadagrad": {"server_optimizer.lr": "0.003..1:log"},
    "fedadam": {"server_optimizer.lr": "0.003..1:log"},
    "fedalign": {"mu": "0.01..1:log"},
    "fedavgm": {"server_optimizer.momentum": "0.3..0.97"},
    "fedbe": {"distil_lr": "0.0001..0.01:log"},
    "feddf": {"distil_lr": "0.0001..0.01:log"},
    "fedetf": {"scale": "1..30:log"},
    "fedic": {"distil_lr": "0.0001..0.01:log", "lam": "0.1..0.9"},
    "fedlc": {"tau": "0.1..10:log", "absent": "0.01..10:log"},
    "fedloge": {"norm": "0.05..5:log"},
    "fednh": {"scale": "1..30:log"},
    "fednpc": {"keep": "0.5..0.99", "noise_lr": "0.02..0.3:log"},
    "fedprox": {"mu": "0.0001..0.5:log"},
    "fedrela": {"share": "0.01..0.2:log", "late_rate": "0.1..1:log"},
    "fedrs": {"loss.alpha": "0..1"},
    "fedyogi": {"server_optimizer.lr": "0.003..1:log"},
    "fedyoyo": {"lam": "0.1..8:log", "tau": "0.5..2"},
    "gbme": {"alpha": "0.2..1"},
    "ifca": {"clusters": "2..4:int"},
    "lade": {"loss.lam": "0.001..1:log"},
    "ldam": {"loss.margin": "0.1..1"},
    "paco": {"loss.alpha": "0.001..1:log", "loss.temperature": "0.02..0.5:log"},
    "per-fedavg": {"inner_lr": "0.001..0.1:log"},
    "ratio-loss": {"beta": "0.01..1:log"},
    "redgrape": {"lam": "0.01..1:log"},
    "ride": {"loss.diversity": "0.01..1:log"},
    "rucr": {"weight": "0.02..1:log", "head_lr": "0.001..0.1:log"},
    "slac": {"sampler.gamma": "0..1"},
    "tau-norm": {"tau": "0..1"},
}
"""The one or two fields that matter most, by method; what derives from a method has its too."""


@dataclass(frozen=True)
class Range:
    """Numbers between two bounds: ``0.1..10``, by their logarithm ``:log``, whole ``:int``."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @classmethod
    def read(cls, text: str) -> Range:
        """Read a range as it is typed."""
        bounds, *marks = text.split(":")
        low, dots, high = bounds.partition("..")
        try:
            found = cls(float(low), float(high), "log" in marks, "int" in marks)
        except ValueError:
            dots = ""
        if not dots or not set(marks) <= {"log", "int"}:
            raise FedtailError(f"'{text}' is no range: give LOW..HIGH, LOW..HIGH:log or :int")
        if not found.low < found.high or (found.log and found.low <= 0):
            raise FedtailError(
                f"the range '{text}' is refused: the lower bound comes first, and is above zero "
                "where the logarithm is searched"
            )
        if found.whole and (found.low % 1 or found.high % 1):
            raise FedtailError(f"the range '{text}' is refused: bounds of :int are whole numbers")
        return found

    def distribution(self) -> BaseDistribution:
        """Return the range as Optuna knows it."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(round(self.low), round(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)


def usual_space(method: type[Method[Any]]) -> dict[str, str]:
    """Return what is searched of a method by default: its own main fields, and the local rate."""
    names = [vars(parent).get("name", "") for parent in method.__mro__]
    found: dict[str, str] = {}
    for name in names:
        found |= {k: v for k, v in TUNABLE.get(str(name), {}).items() if k not in found}
    return found


def make_space(
    method: type[Method[Any]],
    fixed: Sequence[str],
    ranges: Mapping[str, str],
    grids: Mapping[str, Sequence[str]],
) -> dict[str, BaseDistribution]:
    """Return what Optuna searches for one method.

    Parameters
    ----------
    method
        Its class.
    fixed
        Fields that were typed with the method, and stay.
    ranges, grids
        What replaces or adds to the usual space, as typed; fields that this method has not are not
        for it.
    """
    from optuna.distributions import CategoricalDistribution

    def fits(path: str) -> bool:
        return path.partition(".")[0] in method.model_fields

    typed = {path: text for path, text in ranges.items() if fits(path)}
    listed = {path: values for path, values in grids.items() if fits(path)}
    texts = {**usual_space(method), **typed}
    return {
        **{
            path: Range.read(text).distribution()
            for path, text in texts.items()
            if path not in listed and path not in fixed
        },
        **{path: CategoricalDistribution(list(values)) for path, values in listed.items()},
    }
