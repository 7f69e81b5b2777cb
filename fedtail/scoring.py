"""What would be shipped if training ended here, tested and validated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedtail.engines import Dropped, Engine
from fedtail.engines.runtime import TEST_BATCH, Phase
from fedtail.errors import RunStopped, blaming, some
from fedtail.exchange import Ledger, drive, first_reason
from fedtail.finish import Jury, shipped_network
from fedtail.metrics import Evaluation, client_scores, personal_scores, scores
from fedtail.metrics.scores import SCORES, class_scores
from fedtail.one_body import evaluated_together
from fedtail.protocol import ClientId, Server, Task, Update
from fedtail.reduce import Reduced
from fedtail.setting import Setting
from fedtail.skew import ask_skew
from fedtail.validation import asked, validation_scores

MODELS_AT_ONCE = 8
"""How many clients' own models are in memory while they are tested."""


def untested() -> dict[str, Any]:
    """Return the scores of a round that is not tested."""
    return dict.fromkeys((*SCORES, "per_class"))


@dataclass(frozen=True)
class Trial:
    """What would be shipped after one round, and what is known of it.

    Attributes
    ----------
    model
        What would be shipped.
    after
        What the exchanges after training cost.
    validation
        Its scores on what clients hold out; nothing if nobody does.
    evaluation
        How it does on the test set, if it was tested.
    found
        The scores of the test, as they stand in ``metrics.jsonl``.
    """

    model: dict[str, Tensor]
    after: Ledger
    validation: dict[str, Any] | None
    evaluation: Evaluation | None = None
    found: Mapping[str, Any] = field(default_factory=untested)


@dataclass(frozen=True)
class Scoring:
    """Tests models; nothing of it changes the run.

    Attributes
    ----------
    warn
        Is told who was left out.
    """

    setting: Setting
    engine: Engine
    warn: Callable[[Iterable[str]], None]

    def trial(self, state: Any, server: Server) -> Trial:
        """Have clients score what would be shipped if training ended here."""
        after = Ledger()
        model = self.shippable(state, server, after)
        self.warn_after(server, after.dropped)
        if self.setting.experiment.deviation:
            self.deviation(model, state, server)
        validation = self.validation(model, server) if self.setting.validators else None
        return Trial(model, after, validation)

    def tested(self, trial: Trial, state: Any, server: Server) -> Trial:
        """Return a trial with its scores on the test set."""
        evaluation = self.engine.evaluate(trial.model)
        found = self.scores(evaluation)
        if len(evaluation.by_owner):
            found["clients_test"] = client_scores(
                evaluation.by_owner, self.setting.dataset.client_names
            )
        with blaming(f"server half, round {server.round}"):
            tasks = self.setting.method.personal(state, server)
        if tasks:
            found["personal"] = personal_scores(self.personal(tasks, server), self.own_samples)
        return replace(trial, evaluation=evaluation, found=found)

    def shippable(self, state: Any, server: Server, ledger: Ledger) -> dict[str, Tensor]:
        """Hold the exchanges that come after training, on a copy."""
        method, finish = self.setting.method, self.setting.finish
        with self.forgotten(server, "after"):
            final = drive(method.finalize(state, server), state, self.engine, server, ledger)
            with blaming(f"server half, round {server.round}"):
                model = dict(method.eval_model(final))
            network = shipped_network(model, self.setting.model, self.setting.base)
            jury = Jury(self.setting.validators, self.judged)
            exchange = finish.exchange(model, network, server, jury)
            return drive(exchange, model, self.engine, self.with_validators(server), ledger)

    def with_validators(self, server: Server) -> Server:
        """Return a server that may ask those too who only hold samples out."""
        beyond = max(self.setting.validators, default=-1) + 1
        return replace(server, clients=range(max(len(server.clients), beyond)))

    def judged(self, right: Sequence[int], samples: Sequence[int], loss: float) -> float | None:
        """Return the score that the run's rounds are compared by, the larger the better."""
        experiment = self.setting.experiment
        if experiment.score == "loss":
            return -loss if sum(samples) else None
        found = class_scores(right, samples, experiment.groups, self.setting.class_counts)
        return cast(float | None, found[experiment.score])

    def validation(self, model: dict[str, Tensor], server: Server) -> dict[str, Any]:
        """Have a model counted by those who hold samples out; what that costs stands with it."""
        ledger, nobody = Ledger(), None
        clients = self.setting.validators
        with self.forgotten(server, "after"):
            exchange = asked(model, clients)
            found: Reduced | None = drive(
                exchange, nobody, self.engine, self.with_validators(server), ledger
            )
        self.warn_after(server, ledger.dropped)
        groups, counts = self.setting.experiment.groups, self.setting.class_counts
        costs = ledger.traffic.values()
        return {
            **validation_scores(found, groups, counts),
            "bytes_up": sum(up for _, up in costs),
            "bytes_down": sum(down for down, _ in costs),
        }

    def deviation(self, model: dict[str, Tensor], state: Any, server: Server) -> None:
        """Have clients count how many pairs of their classes deviate at a model."""
        prior = getattr(state, "prior", None)
        with self.forgotten(server, "after"):
            drive(ask_skew(model, prior, server), None, self.engine, server, Ledger())

    @cached_property
    def own_samples(self) -> bool:
        """Whether clients that train have test samples of their own, and it is known which."""
        owners, split = self.setting.federation.test_owner, self.setting.split
        if owners is None:
            return False
        return bool(np.isin(split.owners[: len(split)], owners.numpy()).any())

    def personal(self, tasks: Sequence[Task], server: Server) -> list[dict[str, Any]]:
        """Score the models that clients answer with; only a few are in memory at a time."""
        each: list[dict[str, Any]] = []
        dropped: list[Dropped] = []
        with self.forgotten(server, "test"):
            for start in range(0, len(tasks), MODELS_AT_ONCE):
                few = tasks[start : start + MODELS_AT_ONCE]
                replies = self.engine.perform(few, server.round, server.rounds, single=True)
                self.warn_after(server, replies.dropped)
                dropped += replies.dropped
                tested = self.own_evaluations(replies.found.each)
                each += [self.scores(one) for one in tested if one.samples]
        if not each and dropped and all(d.raised for d in dropped):
            raise RunStopped(
                f"round {server.round}: no client's own model can be tested, "
                f"{first_reason(dropped)}"
            )
        return each

    def own_evaluations(self, updates: Sequence[Update]) -> Iterable[Evaluation]:
        """Test clients' own models: on their own test samples if it is known which these are."""
        if self.own_samples:
            return map(self.own_evaluation, updates)
        models = [update.payload.group("model") for update in updates]
        together = evaluated_together(self.setting.runtime(), models)
        return map(self.engine.evaluate, models) if together is None else together

    def own_evaluation(self, update: Update) -> Evaluation:
        """Test a client's own model on its own test samples."""
        model = update.payload.group("model")
        federation, classes = self.setting.federation, self.setting.dataset.num_classes
        tested = self.setting.runtime().load_tested(model)
        positions = federation.tested_by(int(self.setting.split.owners[update.client]))
        found = Evaluation.empty(classes)
        with torch.inference_mode():
            for part in torch.split(positions, TEST_BATCH):
                x, y = federation.test_samples(part)
                found = found + Evaluation.of(tested(x), y, classes)
        return found

    def scores(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return the scores of one model."""
        return dict(scores(evaluation, self.setting.experiment.groups, self.setting.class_counts))

    def warn_after(self, server: Server, dropped: Iterable[Dropped]) -> None:
        """Tell who was left out of what comes after training."""
        self.warn(
            f"after round {server.round}: client {self.name(d.client)} is left out: {d.reason}"
            for d in dropped
        )

    def name(self, client: ClientId) -> str:
        """Return what a client is called."""
        return self.setting.client_names[client]

    @contextmanager
    def forgotten(self, server: Server, phase: Phase) -> Iterator[None]:
        """Let clients forget what they are asked to do in this block."""
        self.engine.begin(server.round, phase)
        with self.engine.states.forgotten():
            yield


def never_validated(setting: Setting) -> list[str]:
    """Return a sentence on the classes that are trained and that nobody holds a sample of."""
    if not setting.split.held_out:
        return []
    held = setting.split.held_counts.tolist()
    counts = zip(setting.dataset.classes, setting.class_counts, held, strict=True)
    missing = [name for name, trained, apart in counts if trained and not apart]
    if not missing:
        return []
    return [f"no sample is held out of class {some(missing)}: validation says nothing of it"]
