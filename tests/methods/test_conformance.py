"""What every method promises, whatever it does.

A method that enters the registry is tested here without another line; if it needs something to run
at all, it gets an entry in `method_needs.py`. The data is `tiny`: six clients, a class that nobody
has, a client with one class and one with a single sample.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import annotated_types
import pytest
import tiny
import torch
from method_needs import MODELS, input_shape, make_experiment, make_method, make_model, needs
from pydantic import BaseModel

from fedtail import FedtailError, Method, RunStopped, run
from fedtail.callbacks import Callback, Record
from fedtail.config import Config
from fedtail.engines.crew import Done, Job, Solo
from fedtail.engines.embedded import TESTING
from fedtail.engines.workplace import Workplace
from fedtail.protocol import Payload
from fedtail.result import Result
from fedtail.setting import prepare

ROOT = Path(__file__).parents[2]

# Methods of the package: other tests may have registered some of their own.
NAMES = [n for n in Method.registry if Method.registry[n].__module__.startswith("fedtail.")]

every_method = pytest.mark.parametrize("name", NAMES)
REFUSED = [(n, m, sentence) for n in NAMES for m, sentence in needs(n).refuses.items()]
PAIRS = [(n, m) for n in NAMES for m in MODELS if m not in needs(n).refuses]
every_method_and_model = pytest.mark.parametrize(("name", "model"), PAIRS)


@cache
def reference(name: str, model: str) -> Result:
    """Return the run that the others are held against."""
    return run(make_experiment(name, model))


def scores(result: Result) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in result.history]


class Stop(Exception):
    """An interruption."""


@dataclass
class StopAfter(Callback):
    """Interrupts the run after a round was saved."""

    round: int

    def on_round(self, record: Record) -> None:
        if record["round"] == self.round + 1:
            raise Stop

    def on_end(self, record: Record, model: Any) -> None:
        raise Stop


class Recorder(Solo):
    """Keeps every message that passes."""

    def __init__(self, place: Workplace) -> None:
        super().__init__(place)
        self.waves: list[list[tuple[Job, Done]]] = []

    def perform(self, jobs: Sequence[Job]) -> list[Done]:
        done = super().perform(jobs)
        self.waves.append(list(zip(jobs, done, strict=True)))
        return done


@dataclass(frozen=True)
class Spoiler(Solo):
    """Spoils whatever client 0 sends."""

    spoil: Callable[[Done], Done] = field(default=lambda done: done)

    def perform(self, jobs: Sequence[Job]) -> list[Done]:
        done = super().perform(jobs)
        return [
            self.spoil(d) if job.task.client == 0 else d for job, d in zip(jobs, done, strict=True)
        ]


def with_nan(done: Done) -> Done:
    """Put NaN into every float that is sent; if none is, lose the answer."""
    if done.payload is None:
        return done
    tensors = {
        n: torch.full_like(t, torch.nan) if t.is_floating_point() else t
        for n, t in done.payload.tensors.items()
    }
    if not any(t.is_floating_point() and t.numel() for t in tensors.values()):
        return lost(done)
    return replace(done, payload=replace(done.payload, tensors=tensors))


def lost(done: Done) -> Done:
    return Done(None, done.state, "lost")


@every_method_and_model
def test_a_run_comes_to_its_end(name: str, model: str) -> None:
    result = reference(name, model)
    assert len(result.history) == 3
    assert all(not record["dropped"] for record in result.history)
    assert all(bool(torch.isfinite(t).all()) for t in result.tensors.values())
    assert result.metrics["per_class"] is not None
    assert len(result.metrics["per_class"]) == tiny.CLASSES


@pytest.mark.parametrize(("name", "model", "sentence"), REFUSED)
def test_a_model_that_cannot_be_trained_is_refused(name: str, model: str, sentence: str) -> None:
    with pytest.raises(FedtailError, match=re.escape(sentence)):
        run(make_experiment(name, model))


@every_method
def test_clients_own_models_are_tested_where_there_are_any(name: str) -> None:
    # All six clients have one, also those that no round has asked for; nobody has class 3.
    for record in reference(name, "with BatchNorm").history:
        assert ("personal" in record) == needs(name).personal
        if needs(name).personal:
            assert record["personal"]["models"] == len(tiny.COUNTS)
            assert 0 < record["accuracy"] < 1


@every_method
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    again = run(make_experiment(name, "with BatchNorm and dropout"))
    assert again.digest == reference(name, "with BatchNorm and dropout").digest
    assert scores(again) == scores(reference(name, "with BatchNorm and dropout"))


@every_method
def test_another_seed_gives_others(name: str) -> None:
    assert run(make_experiment(name, seed=1)).digest != reference(name, "plain").digest


@every_method_and_model
def test_separate_hands_give_the_same_bits(name: str, model: str) -> None:
    # Two copies of the workplace, jobs in reverse order, everything through the wire as bytes.
    result = tiny.run_with(make_experiment(name, model), tiny.Isolated)
    assert result.digest == reference(name, model).digest
    assert scores(result) == scores(reference(name, model))


@pytest.mark.slow
@every_method
def test_two_worker_processes_give_the_same_bits(name: str) -> None:
    result = run(make_experiment(name, "with BatchNorm and dropout", workers=2))
    assert result.digest == reference(name, "with BatchNorm and dropout").digest


@every_method
@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_a_resumed_run_gives_the_same_bits(name: str, done: int, tmp_path: Path) -> None:
    # Prepare: interrupted before the first checkpoint, after one of them, or with the end left.
    chosen = make_experiment(name, "with BatchNorm and dropout")
    with pytest.raises(Stop):
        run(chosen, out=tmp_path / "run", callbacks=[StopAfter(done)])

    # Execute
    result = run(chosen, out=tmp_path / "run", resume=True)

    # Assert
    assert result.digest == reference(name, "with BatchNorm and dropout").digest
    assert scores(result) == scores(reference(name, "with BatchNorm and dropout"))


@every_method
@pytest.mark.parametrize("model", ["plain", "with BatchNorm"])
def test_a_client_that_is_dropped_does_not_break_the_round(name: str, model: str) -> None:
    chosen = make_experiment(name, model, per_round=6)
    others = len(prepare(chosen).federation) - 1
    if not others:  # one holds everything, and nobody else can answer
        with pytest.raises(RunStopped, match="no valid update in 3 rounds"):
            tiny.run_with(chosen, lambda place: Spoiler(place, lost))
        return
    poisoned = tiny.run_with(chosen, lambda place: Spoiler(place, with_nan))
    silent = tiny.run_with(chosen, lambda place: Spoiler(place, lost))
    for record in poisoned.history:
        assert {d["client"] for d in record["dropped"]} == {0}
        assert 0 not in record["clients"]
        assert len(record["clients"]) >= 4
    assert all(bool(torch.isfinite(t).all()) for t in poisoned.tensors.values())
    # Why an answer cannot be used makes no difference.
    assert poisoned.digest == silent.digest


@every_method
def test_a_round_in_which_nobody_answers_keeps_the_model(name: str) -> None:
    class Silent(Solo):
        def perform(self, jobs: Sequence[Job]) -> list[Done]:
            done = super().perform(jobs)
            return [
                lost(d) if job.clock.round == 2 else d for job, d in zip(jobs, done, strict=True)
            ]

    result = tiny.run_with(make_experiment(name), Silent)
    assert result.history[1]["clients"] == []
    assert all(bool(torch.isfinite(t).all()) for t in result.tensors.values())


@cache
def recorded(name: str) -> tuple[Result, list[list[tuple[Job, Done]]]]:
    made: list[Recorder] = []

    def hands(place: Workplace) -> Recorder:
        made.append(Recorder(place))
        return made[0]

    chosen = make_experiment(name, "with BatchNorm", per_round=6, eval_every=3)
    return tiny.run_with(chosen, hands), made[0].waves


def messages(name: str) -> Iterator[tuple[Job, Payload]]:
    for wave in recorded(name)[1]:
        for job, done in wave:
            assert done.payload is not None, done.reason
            yield job, done.payload


@every_method
def test_every_float_on_the_wire_is_float32_on_the_cpu(name: str) -> None:
    for job, answer in messages(name):
        for payload in (job.task.payload, answer):
            for tensor_name, tensor in payload.tensors.items():
                assert not tensor.is_floating_point() or tensor.dtype == torch.float32, tensor_name
                assert tensor.device.type == "cpu"
                assert not tensor.requires_grad


@every_method
def test_all_clients_send_the_same_names_for_one_action(name: str) -> None:
    forms: dict[str, set[frozenset[str]]] = defaultdict(set)
    for job, answer in messages(name):
        forms[job.task.action].add(frozenset([*answer.tensors, *answer.scalars]))
    assert {action: len(kinds) for action, kinds in forms.items()} == dict.fromkeys(forms, 1)


@every_method
def test_names_have_a_group_and_summable_names_groups(name: str) -> None:
    for job, answer in messages(name):
        for payload in (job.task.payload, answer):
            assert all("/" in tensor_name for tensor_name in payload.tensors)
            groups = {tensor_name.partition("/")[0] for tensor_name in payload.tensors}
            assert payload.summable <= groups


@every_method
def test_traffic_is_the_bytes_of_the_payloads(name: str) -> None:
    # Clients' own models are sent to be tested, and for nothing else.
    result, _ = recorded(name)
    sent = [(j.task.payload, a) for j, a in messages(name) if j.clock.turn < TESTING]
    down, up = (sum(pair[i].nbytes for pair in sent) for i in (0, 1))
    assert sum(record["bytes_down"] for record in result.history) == down > 0
    assert sum(record["bytes_up"] for record in result.history) == up > 0
    for record in result.history:
        assert sum(d for d, _ in record["traffic"].values()) == record["bytes_down"]
        assert sum(u for _, u in record["traffic"].values()) == record["bytes_up"]


@every_method
def test_the_streams_of_the_user_are_not_touched(name: str) -> None:
    before = tiny.global_streams()
    run(make_experiment(name, "with BatchNorm and dropout", rounds=1))
    assert tiny.global_streams() == before


@every_method_and_model
def test_what_is_shipped_loads_into_the_users_own_module(name: str, model: str) -> None:
    result = reference(name, model)
    own = make_model(name, model)() if needs(name).ships_own_model else result.network
    own.load_state_dict(result.tensors)
    own.eval()
    assert own(torch.zeros(2, *input_shape(model))).shape == (2, tiny.CLASSES)


@every_method
def test_a_description_rebuilds_the_method(name: str) -> None:
    for method in (make_method(name), Method.registry[name]()):
        again: Method[Any] = Method.model_validate(method.describe())
        assert again == method
        assert type(again) is Method.registry[name]


@every_method
def test_an_unknown_key_is_refused_by_name(name: str) -> None:
    with pytest.raises(FedtailError, match="unknown key 'no_such_field'"):
        Method.model_validate({"name": name, "no_such_field": 1})


def bounded(
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
            yield from bounded(type(info.default), here)


@every_method
def test_a_value_out_of_range_is_refused_by_name(name: str) -> None:
    found = list(bounded(Method.registry[name]))
    assert found
    for path, value in found:
        table: Any = value
        for key in reversed(path):
            table = {key: table}
        with pytest.raises(FedtailError) as refused:
            Method.model_validate({"name": name, **table})
        assert path[-1] in str(refused.value)


@every_method
def test_every_number_has_a_bound(name: str) -> None:
    # A wrong value is refused before work starts: a number without any bound never is.
    cls = Method.registry[name]
    for field_name, info in cls.model_fields.items():
        if info.annotation in (int, float):
            assert info.metadata, field_name


@every_method
def test_a_method_says_what_it_is(name: str) -> None:
    cls = Method.registry[name]
    assert cls.name == name == name.lower()
    assert cls.family
    assert cls.paper
    assert (cls.__doc__ or "").strip()
    module = inspect.getmodule(cls)
    assert module is not None
    # The file opens with the paper: title in quotes, venue and year.
    opening = module.__doc__ or ""
    assert '"' in opening or "“" in opening
    assert any(year in opening for year in map(str, range(1990, 2030)))
    assert all(info.description for info in cls.model_fields.values())


@every_method
def test_one_method_one_file_one_test(name: str) -> None:
    file = needs(name).file or name.replace("-", "_").replace("+", "_")
    assert Method.registry[name].__module__ == f"fedtail.methods.{file}"
    assert (ROOT / "tests" / "methods" / f"test_{file}.py").is_file()


@every_method
def test_a_method_file_is_short_enough_to_be_read(name: str) -> None:
    source = inspect.getsourcefile(Method.registry[name])
    assert source is not None
    assert len(Path(source).read_text().splitlines()) <= 300
