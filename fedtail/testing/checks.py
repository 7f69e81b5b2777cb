"""What every method promises, whatever it does: one function a promise.

A check is given a `Case` and raises `CheckFailed`, or whatever the method itself raises.
"""

from __future__ import annotations

import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import annotated_types
import tomli_w
import torch
from pydantic import BaseModel

from fedtail.config import Config
from fedtail.engines.executor import Job
from fedtail.errors import FedtailError, RunStopped
from fedtail.forms import Form
from fedtail.loop import run
from fedtail.methods.base import Method
from fedtail.privacy.layout import why_no_sum
from fedtail.result import Result
from fedtail.setting import prepare
from fedtail.testing.case import Case, CheckFailed, expect
from fedtail.testing.executors import (
    InterruptAfter,
    Interrupted,
    Isolated,
    Spoiler,
    global_streams,
    lost,
    run_with,
    with_more,
    with_nan,
)
from fedtail.testing.federation import (
    COUNTS,
    DROPOUT,
    MODELS,
    NORM,
    NUM_CLASSES,
    PLAIN,
    input_shape,
)


@dataclass(frozen=True)
class Check:
    """One promise.

    Attributes
    ----------
    name
        The name of its function.
    models
        On which models it is tried.
    processes
        Whether it starts processes, which takes seconds.
    """

    name: str
    function: Callable[[Case], None]
    models: tuple[str, ...]
    processes: bool = False

    @property
    def promise(self) -> str:
        """What is promised: the first line of the function's docstring."""
        return (self.function.__doc__ or "").strip().split("\n")[0].removesuffix(".")


CHECKS: list[Check] = []
"""All of them, in the order in which they are run."""
EVERY = tuple(MODELS)

Function = Callable[[Case], None]


def register_check(*models: str, processes: bool = False) -> Callable[[Function], Function]:
    """Enter a function in `CHECKS`, with the models that it is tried on."""

    def enter(function: Function) -> Function:
        CHECKS.append(Check(function.__name__, function, models, processes))
        return function

    return enter


# What it says of itself


@register_check(PLAIN)
def says_what_it_is(case: Case) -> None:
    """Have a name in lower case, a docstring, and a description of every field."""
    cls = case.method
    expect(cls.name == cls.name.lower(), f"the name '{cls.name}' is not in lower case")
    expect(bool((cls.__doc__ or "").strip()), f"class '{cls.__name__}' has no docstring")
    bare = [name for name, info in cls.model_fields.items() if not info.description]
    expect(not bare, f"without a description: {', '.join(bare)}")


@register_check(NORM)
def every_action_has_a_form(case: Case) -> None:
    """Declare beside every action what clients answer to it."""
    for name in sorted(case.method.actions()):
        found = callable(getattr(case.method, f"{name}_form", None))
        expect(found, f"action '{name}' has no '{name}_form(self, task, model, classes)'")
    runtime = prepare(case.experiment()).runtime()
    for task in {job.task.action: job.task for job, _ in case.messages()}.values():
        declared = runtime.form(task)
        expect(isinstance(declared, Form), f"'{task.action}_form' returns no Form: {declared!r}")


@register_check(PLAIN)
def a_description_rebuilds_it(case: Case) -> None:
    """Be the same method after being written to TOML and read again."""
    for method in (case.make_method(), case.method()):
        plain = tomllib.loads(tomli_w.dumps(method.describe()))
        again: Method[Any] = Method.model_validate(plain)
        expect(type(again) is case.method, f"'{method.name}' is read as a {type(again).__name__}")
        expect(again == method, f"{method!r} is read as {again!r}")


@register_check(PLAIN)
def an_unknown_key_is_refused(case: Case) -> None:
    """Refuse a field that it does not have, by name."""
    refused = _refusal({"name": case.method.name, "no_such_field": 1})
    expect("unknown key 'no_such_field'" in refused, f"'no_such_field' is not refused: {refused!r}")


@register_check(PLAIN)
def a_value_out_of_range_is_refused(case: Case) -> None:
    """Refuse a value just outside of a field's bounds, by the field's name."""
    for path, value in _bounded(case.method):
        table: Any = value
        for key in reversed(path):
            table = {key: table}
        refused = _refusal({"name": case.method.name, **table})
        expect(path[-1] in refused, f"{'.'.join(path)} = {value} is not refused: {refused!r}")


@register_check(PLAIN)
def every_number_has_a_bound(case: Case) -> None:
    """Have a bound for every number: else nothing wrong is refused before work starts."""
    for name, info in case.method.model_fields.items():
        if info.annotation in (int, float):
            expect(bool(info.metadata), f"'{name}' has no bound: Field(..., ge=0), for example")


def _refusal(plain: dict[str, Any]) -> str:
    try:
        Method.model_validate(plain)
    except FedtailError as error:
        return str(error)
    return ""


def _bounded(
    cls: type[BaseModel], at: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every field with a bound, also of tables inside, and a value just outside."""
    for field_name, info in cls.model_fields.items():
        here = (*at, field_name)
        for bound in info.metadata:
            if isinstance(bound, annotated_types.Ge):
                yield here, cast(float, bound.ge) - 1
            if isinstance(bound, annotated_types.Gt):
                yield here, bound.gt
            if isinstance(bound, annotated_types.Le):
                yield here, cast(float, bound.le) + 1
            if isinstance(bound, annotated_types.Lt):
                yield here, bound.lt
        if isinstance(info.default, Config):
            yield from _bounded(type(info.default), here)


# Runs


@register_check(*EVERY)
def a_run_comes_to_its_end(case: Case) -> None:
    """End with finite numbers in spite of absent classes, one class and one sample."""
    result = case.reference()
    expect(len(result.history) == 3, f"{len(result.history)} rounds instead of 3")
    for record in result.history:
        expect(not record["dropped"], f"a client was dropped: {record['dropped']}")
    _expect_finite(result)
    scored = result.metrics["per_class"]
    expect(len(scored) == NUM_CLASSES, f"scores of {len(scored)} classes, not {NUM_CLASSES}")


@register_check(DROPOUT)
def the_same_seed_gives_the_same_bits(case: Case) -> None:
    """Give the same bits for the same seed."""
    _expect_same(run(case.experiment()), case.reference())


@register_check(PLAIN)
def another_seed_gives_others(case: Case) -> None:
    """Give another model for another seed."""
    other = run(case.experiment(seed=1))
    expect(other.digest != case.reference().digest, "seeds 0 and 1 give the same model")


@register_check(*EVERY)
def separate_copies_give_the_same_bits(case: Case) -> None:
    """Give the same bits as two copies, in reverse order, with everything sent as bytes."""
    _expect_same(run_with(case.experiment(), Isolated), case.reference())


@register_check(DROPOUT)
def a_resumed_run_gives_the_same_bits(case: Case) -> None:
    """Go on to the same bits when interrupted: before, between and after the rounds."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        for done in range(4):
            try:
                run(case.experiment(), out=out, resume=done > 0, callbacks=[InterruptAfter(done)])
            except Interrupted:
                continue
            raise CheckFailed(f"nothing interrupted the run after round {done}")
        _expect_same(run(case.experiment(), out=out, resume=True), case.reference())


@register_check(PLAIN, NORM)
def a_client_that_is_dropped_does_not_break_the_round(case: Case) -> None:
    """Take an update with NaN, or with what nobody declared, as one that was lost."""
    chosen = case.experiment(per_round=len(COUNTS))
    if len(prepare(chosen).federation) == 1:  # one holds everything, and nobody else can answer
        try:
            run_with(chosen, partial(Spoiler, spoil=lost))
        except RunStopped:
            return
        raise CheckFailed("a run without a single update does not stop")
    silent = run_with(chosen, partial(Spoiler, spoil=lost))
    for spoil in (with_nan, with_more):
        spoiled = run_with(chosen, partial(Spoiler, spoil=spoil))
        asked = [record for record in spoiled.history if record["clients"] or record["dropped"]]
        expect(bool(asked), "no round asks anybody")
        for record in asked:
            dropped = {d["client"] for d in record["dropped"]}
            expect(dropped == {0}, f"client 0 sent nonsense, and {dropped or 'nobody'} was dropped")
            took_part = record["clients"]
            expect(0 not in took_part and len(took_part) >= 4, f"clients {took_part} took part")
        _expect_finite(spoiled)
        expect(spoiled.digest == silent.digest, "why an update cannot be used makes a difference")


@register_check(PLAIN)
def a_round_in_which_nobody_answers_keeps_the_model(case: Case) -> None:
    """Go on when all answers of a round are lost."""

    def in_round_2(job: Job) -> bool:
        return job.clock.round == 2 and job.clock.phase != "test"

    result = run_with(case.experiment(), partial(Spoiler, spoil=lost, which=in_round_2))
    expect(result.history[1]["clients"] == [], "somebody took part in the round without answers")
    _expect_finite(result)


@register_check(NORM)
def clients_own_models_are_tested(case: Case) -> None:
    """Have all clients' own models tested where there are any, also of those never asked."""
    own = case.method.personal is not Method.personal
    for record in case.reference().history:
        expect(("personal" in record) == own, "'personal' gives no tasks, or there is none of it")
        if own:
            tested = record["personal"]["models"]
            expect(tested == len(COUNTS), f"{tested} own models of {len(COUNTS)} clients")


@register_check(NORM)
def what_is_held_out_is_counted(case: Case) -> None:
    """Have what would be shipped counted by clients on what they hold out of training."""
    experiment = case.experiment(validation=0.5, keep="best", score="accuracy")
    held = int(prepare(experiment).split.held_counts.sum())
    result = run(experiment)
    found = [record["validation"] for record in result.history]
    for scores in found:
        expect(scores["samples"] == held, f"{scores['samples']} of {held} samples were counted")
    best = max(scores["accuracy"] for scores in found)
    kept = result.best["validation"]["accuracy"]
    expect(kept == best, f"the round that is shipped has {kept}, and the best one {best}")


@register_check(DROPOUT)
def the_streams_of_the_user_are_not_touched(case: Case) -> None:
    """Leave Python's, NumPy's and torch's global random numbers where they were."""
    before = global_streams()
    run(case.experiment(rounds=1))
    for name, old, new in zip(
        ("Python's", "NumPy's", "torch's"), before, global_streams(), strict=True
    ):
        expect(old == new, f"{name} global stream was used: take client.generator(...)")


@register_check(*EVERY)
def what_is_shipped_loads(case: Case) -> None:
    """Ship what loads into the user's own module, or into the network of the result."""
    result = case.reference()
    module = MODELS[case.model]()
    shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
    same = shapes == {name: tensor.shape for name, tensor in result.tensors.items()}
    own = module if same else result.network
    own.load_state_dict(result.tensors)
    own.eval()
    shape = tuple(own(torch.zeros(2, *input_shape(case.model))).shape)
    expect(
        shape == (2, NUM_CLASSES),
        f"two inputs give logits of shape {shape}, not {(2, NUM_CLASSES)}",
    )


@register_check(DROPOUT, processes=True)
def worker_processes_give_the_same_bits(case: Case) -> None:
    """Give the same bits on two worker processes."""
    _expect_same(run(case.experiment(workers=2)), case.reference())


# Messages


@register_check(NORM)
def floats_on_the_wire_are_float32_on_the_cpu(case: Case) -> None:
    """Send float32 on the CPU, without gradients; another precision only where the form says so."""
    runtime = prepare(case.experiment()).runtime()
    for job, answer in case.messages():
        declared = runtime.declared(job.task).tensors
        for payload in (job.task.payload, answer):
            for name, tensor in payload.tensors.items():
                kinds = {torch.float32, *(declared[n].dtype for n in (name,) if n in declared)}
                right = not tensor.is_floating_point() or tensor.dtype in kinds
                expect(right, f"{job}: '{name}' is {tensor.dtype}")
                expect(tensor.device.type == "cpu", f"{job}: '{name}' is on {tensor.device}")
                expect(not tensor.requires_grad, f"{job}: '{name}' carries a gradient: detach it")


@register_check(NORM)
def all_clients_send_the_same_names(case: Case) -> None:
    """Answer one action with the same names from every client."""
    kinds: dict[str, set[frozenset[str]]] = defaultdict(set)
    for job, answer in case.messages():
        kinds[job.task.action].add(frozenset([*answer.tensors, *answer.scalars]))
    for action, names in kinds.items():
        odd = frozenset.union(*names) - frozenset.intersection(*names)
        expect(not odd, f"action '{action}': only some clients send {', '.join(sorted(odd))}")


@register_check(NORM)
def names_have_a_group(case: Case) -> None:
    """Name tensors group/name."""
    for job, answer in case.messages():
        for payload in (job.task.payload, answer):
            for name in payload.tensors:
                expect("/" in name, f"{job}: '{name}' has no group before a slash")


@register_check(NORM)
def asks_what_it_says(case: Case) -> None:
    """Ask clients what `asks` says, which secure sums and privacy are refused or planned by."""
    setting = prepare(case.experiment(per_round=len(COUNTS)))
    asks, runtime = setting.method.asks(), setting.runtime()
    _, waves = case.recorded()
    for wave in waves:
        clock, tasks = wave[0][0].clock, [job.task for job, _ in wave]
        for task in tasks:
            why = why_no_sum(runtime.declared(task))
            expect(
                bool(asks.single) or not why, f"'{task.action}' is read singly, asks().single is ''"
            )
        if clock.phase == "after":
            expect(
                asks.after, f"'{tasks[0].action}' is asked after training, asks().after is False"
            )
        if clock.phase == "training" and clock.round and asks.round == "cohort":
            cohort = setting.server(clock.round).cohort()
            drawn = [task.client for task in tasks] == cohort
            expect(drawn, f"round {clock.round} does not ask its cohort, asks().round is 'cohort'")
    before = sum(1 for wave in waves if not wave[0][0].clock.round)
    expect(before == asks.setup, f"{before} exchanges in setup, asks().setup is {asks.setup}")


@register_check(NORM)
def traffic_is_counted(case: Case) -> None:
    """Be charged for the bytes that are sent, and for no test of own models."""
    result, _ = case.recorded()
    sent = [(j.task.payload, a) for j, a in case.messages() if j.clock.phase != "test"]
    for way, which in (("down", 0), ("up", 1)):
        bytes_sent = sum(pair[which].nbytes for pair in sent)
        told = sum(record[f"bytes_{way}"] for record in result.history)
        expect(told == bytes_sent > 0, f"bytes {way}: {told} are recorded, {bytes_sent} were sent")
        for record in result.history:
            single = sum(both[which] for both in record["traffic"].values())
            expect(single == record[f"bytes_{way}"], f"bytes {way}: the clients' make {single}")


def _expect_finite(result: Result) -> None:
    for name, tensor in result.tensors.items():
        expect(bool(torch.isfinite(tensor).all()), f"the final '{name}' holds NaN or infinity")


def _expect_same(found: Result, wanted: Result) -> None:
    odd = [n for n, t in wanted.tensors.items() if not torch.equal(t, found.tensors[n])]
    expect(not odd, f"other bits in {', '.join(odd)}")
    expect(_scores(found) == _scores(wanted), "the records of the rounds differ")


def _scores(result: Result) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in result.history]
