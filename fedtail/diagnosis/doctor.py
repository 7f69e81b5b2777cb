"""`fedtail.doctor`: a few probe rounds, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import tomli_w

from fedtail.callbacks import Callback, Record
from fedtail.data.held_out import Validation
from fedtail.described import made_in_python
from fedtail.diagnosis.parts import trained_parts
from fedtail.diagnosis.rules import READINGS, RULES, Signal, decide, doubts, signal_of
from fedtail.diagnosis.signals import Readings
from fedtail.engines.robust import PlainMean
from fedtail.errors import FedtailError
from fedtail.experiment import Experiment, must_be_experiment
from fedtail.finish import NoFinish
from fedtail.loop import run
from fedtail.methods import FedAvg, Probe
from fedtail.protocol import Payload
from fedtail.result import Result
from fedtail.setting import Setting, prepare
from fedtail.study.spec import apply_method
from fedtail.training import LocalTraining
from fedtail.volume import Traffic, Volume, form_bytes, model_bytes

ROUNDS = 5
"""How long the probe is, unless said otherwise."""
PROBE_SHARE = 0.2
"""What clients hold out of the probe, where the experiment names no share of samples."""
SEEN = 0.9
"""How likely a round should have somebody who holds the rarest class."""
SLOWER = {"balancefl": 1.61, "creff": 1.32, "fedvls": 1.17}
"""How much longer than FedAvg clients train, where it is more than a few per cent: measured on
ResNet-8 by ``benchmarks.methods_cost``."""

Start = Callable[..., Result]


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor found.

    Attributes
    ----------
    signals
        By their keys (`fedtail.diagnosis.rules`).
    rule
        The number of the rule that applies, from 1.
    methods
        What is recommended, and then what to try beside it, as typed after ``--method``.
    settings
        What else to set, by the fields of the experiment.
    because
        Why the method, why each setting, and what else is to be known: a sentence each.
    doubts
        The signals that are not sure enough, and the method that the opposite would lead to.
    recommended
        The experiment as recommended.
    bytes, seconds
        What it will send and receive, and about how long it will train on this machine.
    classes
        Of each class its name, samples, clients that hold it, and the held-out accuracy of the
        trained and of the closed-form head.
    probe
        Rounds, clients asked, groups, bytes and seconds of the probe itself.
    """

    signals: Mapping[str, Signal]
    rule: int
    methods: tuple[str, ...]
    settings: Mapping[str, Any]
    because: tuple[str, ...]
    doubts: Mapping[str, str]
    recommended: Experiment
    bytes: int
    seconds: float
    classes: Sequence[Mapping[str, Any]]
    probe: Mapping[str, Any]
    folder: Path | None = None

    @property
    def method(self) -> str:
        """The recommended method, as typed after ``--method``."""
        return self.methods[0]

    @property
    def words(self) -> list[str]:
        """What to add to a `fedtail run` command."""
        return ["--method", self.method, *(f"{k}={v}" for k, v in self.settings.items())]

    @property
    def toml(self) -> str:
        """The recommended experiment; of one that was made in Python, what differs from it."""
        plain = self.recommended.describe()
        if made_in_python(plain):
            plain = {"method": plain["method"]}
        return tomli_w.dumps(plain)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        signals = [
            {
                "id": s.reading.id,
                "key": key,
                "title": s.reading.title,
                "value": s.estimate.value,
                "low": s.estimate.low,
                "high": s.estimate.high,
                "threshold": s.reading.threshold,
                "verdict": s.verdict,
            }
            for key, s in self.signals.items()
        ]
        return {
            "signals": signals,
            "rule": self.rule,
            "method": self.method,
            "alternatives": list(self.methods[1:]),
            "settings": dict(self.settings),
            "because": list(self.because),
            "not_enough_signal": dict(self.doubts),
            "command": " ".join(["fedtail run", *self.words]),
            "toml": self.toml,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "classes": [dict(each) for each in self.classes],
            "probe": dict(self.probe),
        }

    def __str__(self) -> str:
        from fedtail.diagnosis.words import diagnosis_lines

        return "\n".join(diagnosis_lines(self))


def doctor(
    experiment: Experiment,
    *,
    rounds: int = ROUNDS,
    out: str | Path | None = None,
    start: Start = run,
    callbacks: Sequence[Callback] = (),
) -> Diagnosis:
    """Run a few probe rounds, and say what is wrong with a federation and what to do about it.

    Parameters
    ----------
    experiment
        The run that is planned; its method counts only for how clients train.
    rounds
        How many probe rounds.
    out
        A run folder for the probe, with ``doctor.html``, ``doctor.json`` and ``recommended.toml``;
        without one, nothing is written.
    start
        What runs the probe, if not this process: ``Launch().run`` for Flower.
    callbacks
        What watches the probe.
    """
    must_be_experiment(experiment)
    asked = probe_of(experiment, rounds)
    setting = prepare(asked)
    result = start(asked, **({} if out is None else {"out": out}), callbacks=callbacks)
    found = diagnosed(experiment, setting, result.history)
    if out is not None:
        from fedtail.diagnosis.page import leave_diagnosis

        found = replace(found, folder=Path(out))
        leave_diagnosis(found, Path(out))
    return found


def probe_of(experiment: Experiment, rounds: int) -> Experiment:
    """Return the experiment that probes another."""
    if experiment.privacy.on:
        raise FedtailError(
            "the doctor asks clients for counts and sums of features, which differential privacy "
            "does not cover: leave out privacy.epsilon; secure=true shows the server sums alone"
        )
    held = experiment.validation
    return experiment.but(
        method=Probe(local=getattr(experiment.method, "local", LocalTraining())),
        rounds=rounds,
        eval_every=rounds,
        validation=held if held.share and held.by == "sample" else Validation(share=PROBE_SHARE),
        keep="last",
        patience=0,
        finish=NoFinish(),
        robust=PlainMean(),
        deviation=False,
        server_per_class=0,
        name=f"{experiment.data.name}-doctor-seed{experiment.seed}",
    )


def diagnosed(experiment: Experiment, setting: Setting, history: Sequence[Record]) -> Diagnosis:
    """Return what the records of a probe say.

    Parameters
    ----------
    experiment
        What is planned.
    setting
        The real things behind the probe.
    history
        The records of its rounds.
    """
    clients = len(setting.federation)
    cohort = min(experiment.per_round or clients, clients)
    readings = Readings(history, clients, cohort)
    signals = {reading.key: signal_of(reading, readings) for reading in READINGS}
    frozen = all(of_head for _, of_head in trained_parts(setting.base))
    fired = {**{key: signal.fired for key, signal in signals.items()}, "frozen": frozen}
    rule = RULES[decide(fired)]
    usable = {w: e for w in rule.methods if (e := applied(w, experiment, setting)) is not None}
    if not usable:
        usable = {"fedavg": experiment.but(method={"name": "fedavg"})}
    chosen = next(iter(usable.values()))
    settings, why = advised(chosen, signals, cohort, clients)
    for path, value in settings.items():
        chosen = with_field(chosen, path, value)
    unsure = {
        key: next((w for w in RULES[other].methods if applied(w, experiment, setting)), "fedavg")
        for key, other in doubts(fired, signals).items()
    }
    lacking = signals["missing"].estimate.value or 0.0
    nbytes, seconds = costs(chosen, setting, history, readings.asked, lacking)
    return Diagnosis(
        signals=signals,
        rule=1 + RULES.index(rule),
        methods=tuple(usable),
        settings=settings,
        because=(rule.because, *why),
        doubts=unsure,
        recommended=chosen,
        bytes=nbytes,
        seconds=seconds,
        classes=readings.classes(setting.dataset.classes),
        probe={
            "rounds": len(history),
            "clients": readings.asked,
            "groups": len(readings.told),
            "bytes": sum(r["bytes_up"] + r["bytes_down"] for r in history),
            "seconds": sum(r["seconds"] for r in history),
            "losses": readings.losses(),
        },
    )


def applied(words: str, experiment: Experiment, setting: Setting) -> Experiment | None:
    """Return the experiment with another method, or nothing if it cannot be used here."""
    local = getattr(experiment.method, "local", None)
    old = {"name": experiment.method.name, **({} if local is None else {"local": local.describe()})}
    plain: dict[str, Any] = {"method": old}
    apply_method(plain, words)
    if "buffers=local" in words and not setting.base.batch_norms():
        return None
    try:
        found = experiment.but(method=plain["method"])
        found.method.check_model(found.method.build_model(setting.base))
        found.last_step.check(setting.base)
    except FedtailError:  # secure sums or a network that the method cannot have
        return None
    return found


def with_field(experiment: Experiment, path: str, value: Any) -> Experiment:
    """Return the experiment with one field of a section, or of its own, changed."""
    if path == "method.local.lr":
        method: Any = experiment.method
        return experiment.but(method=method.but(local=method.local.but(lr=value)))
    if path == "validation.share":
        return experiment.but(validation=experiment.validation.but(share=value))
    return experiment.but(**{path: value})


def advised(
    chosen: Experiment, signals: Mapping[str, Signal], cohort: int, clients: int
) -> tuple[dict[str, Any], list[str]]:
    """Return what else to set, and what else to know, a sentence each."""
    settings: dict[str, Any] = {}
    why: list[str] = []
    if chosen.last_step.asks and not chosen.validation.share:
        settings["validation.share"] = 0.1
        why.append("Held-out samples choose how much of the closed-form head is taken.")
    if signals["noise"].verdict == "yes" and hasattr(chosen.method, "local"):
        settings["method.local.lr"] = chosen.method.local.lr / 2
        why.append("Successive rounds undo each other: half the local rate.")
    held = signals["coverage"].estimate.value
    if signals["coverage"].fired and held and cohort < clients:
        settings["per_round"] = enough(held, cohort, clients)
        why.append(
            f"Only {100 * held:.0f} % of the clients hold the rarest-held class: with "
            f"{settings['per_round']} clients a round it is there in {100 * SEEN:.0f} % of rounds."
        )
    if signals["overfit"].verdict == "yes":
        why.append("Rare classes are learned by heart: augmentation helps more than rounds.")
    if signals["labels"].fired:
        why.append(
            "The surest answers are often wrong: look at labels of such samples, or give the "
            "network more to tell classes by, before any method."
        )
    return settings, why


def enough(share: float, cohort: int, clients: int) -> int:
    """Return how many clients a round needs to have a holder of a class, with 90 %."""
    holders = max(1, round(share * clients))
    for size in range(cohort, clients):
        none = math.comb(clients - holders, size) / math.comb(clients, size)
        if none <= 1 - SEEN + 1e-9:  # 0.1, however it is rounded
            return size
    return clients


def costs(
    chosen: Experiment, setting: Setting, history: Sequence[Record], asked: int, lacking: float
) -> tuple[int, float]:
    """Return the bytes of a run and about how long it trains, from how long the probe did.

    Parameters
    ----------
    chosen, setting
        What is planned, and the real things behind the probe.
    history, asked
        The records of the probe, and how many clients a round of it had.
    lacking
        The share of classes that a client lacks.
    """
    planned = replace(
        setting, experiment=chosen, model=chosen.method.build_model(setting.base), heads=None
    )
    method, classes, clients = chosen.method, setting.dataset.num_classes, len(setting.federation)
    held = classes if chosen.protected else classes * (1 - lacking)
    own = method.volume(planned.model, classes, held)
    if own is None:
        # Methods with exchanges of their own say their volume; the others upload as FedAvg does.
        form = cast("FedAvg[Any]", method).train_form(Payload(), planned.model, classes)
        own = Volume(down=model_bytes(planned.model), up=form_bytes(form, held))
    last = planned.finish.volume(setting.base, classes, bool(planned.validators))
    volumes = [own, *([] if last is None else [last])]
    until = method.trained_rounds(planned.server(1))
    traffic = Traffic.of(volumes, until, planned.cohort, clients)
    rounds = [record["seconds"] for record in history]
    each = min(rounds) / asked
    trained = planned.cohort * until if own.down else clients
    return (0 if traffic is None else traffic.total), each * trained * SLOWER.get(method.name, 1.0)
