"""What a server sees of one round, with each protection and without: the same updates each time.

The first round is replayed with every client, exactly as the run's seed made it: early updates tell
most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedtail.engines import Embedded
from fedtail.engines.runtime import Clock, Runtime
from fedtail.forms import CLASSES, HELD, ROWS, Form
from fedtail.models.split_model import SplitModel
from fedtail.privacy.clipping import private_update, restored
from fedtail.privacy.gaussian import analytic_sigma
from fedtail.privacy.layout import part_of
from fedtail.privacy.noise import seeded_bytes
from fedtail.protocol import Payload, Server, Task, Update, grouped
from fedtail.reduce import Reduced, reduced
from fedtail.setting import Setting

Seen = Mapping[str, Tensor]
"""What the server can read of one client's update, by name."""
SeenViews = dict[str, dict[int, Seen]]
"""By protection and client."""

AUDIT_NOISE = "audit/noise"
NOTHING, SUM_ONLY, CLIPPED, NOISY, SUM_CLIPPED, SUM_NOISY = (
    "no protection",
    "secure sum",
    "private, central",
    "private, local",
    "secure sum, private, central",
    "secure sum, private, local",
)
SEEN_NOTES = {
    NOTHING: "every update as it was sent",
    SUM_ONLY: "the sum of all updates and no single one (secure aggregation)",
    CLIPPED: "every update, clipped but clean: it adds the noise itself, for others",
    NOISY: "every update, clipped and noisy (epsilon {epsilon:g} for this one)",
    SUM_CLIPPED: "the sum of clipped updates, clean: it adds the noise itself, for others",
    SUM_NOISY: "the sum of updates that are each clipped and noisy (epsilon {epsilon:g} each)",
}


@dataclass(frozen=True)
class Witnessed:
    """One client's task and its answer as the method made it, before any protection."""

    task: Task
    answer: Payload
    form: Form
    state: Mapping[str, Tensor]


def first_round(setting: Setting, runtime: Runtime) -> list[Witnessed]:
    """Do the first exchange of round 1 again, with every client."""
    from fedtail.exchange import Ledger, drive  # the loop knows the plan, which knows this package

    method, server = setting.method, setting.server(0)
    state = method.init(setting.model, server)
    engine = Embedded(runtime)
    state = drive(method.setup(state, server), state, engine, server, Ledger())
    everybody: Server = replace(setting.server(1), per_round=len(setting.federation), cohorts=None)
    tasks = next(method.round(state, everybody), [])
    asked = [(task, dict(engine.states.get(task.client, {}))) for task in tasks]
    return [answered_alone(task, kept, setting, runtime) for task, kept in asked]


def answered_alone(
    task: Task, state: Mapping[str, Tensor], setting: Setting, runtime: Runtime
) -> Witnessed:
    """Have a task of round 1 done by a client with this state."""
    clock = Clock(1, setting.experiment.rounds)
    return Witnessed(task, runtime.perform(task, dict(state), clock), runtime.declared(task), state)


def seen_by_server(
    witnessed: list[Witnessed], setting: Setting, epsilon: float, noise: str = AUDIT_NOISE
) -> SeenViews:
    """Return what is seen of the same updates under each protection that the method can have.

    Parameters
    ----------
    witnessed, setting
        The updates of all clients, and the run.
    epsilon
        Of one update with local noise, at the run's δ and clipping norm.
    noise
        The purpose that noise is drawn for: another one gives other noise.
    """
    views: SeenViews = {NOTHING: plain_view(witnessed)}
    if setting.method.asks().single:
        return views
    privacy, seed = setting.experiment.privacy, setting.experiment.seed
    # The updates of the first one's part, as the server is told of them.
    own = [w for w in witnessed if part_of(w.form) == part_of(witnessed[0].form)]
    found = reduced([Update(w.task.client, w.answer) for w in own], own[0].form)
    groups = {name.partition("/")[0] for name in own[0].form.tensors}
    mean = {n: t for g in groups for n, t in grouped(g, _group(found, g, own[0].form)).items()}
    views[SUM_ONLY] = plain_view(replace(w, answer=Payload(mean)) for w in witnessed)
    sigma = analytic_sigma(epsilon, privacy.delta, 2 * privacy.clip)
    for single, summed, spread in ((CLIPPED, SUM_CLIPPED, 0.0), (NOISY, SUM_NOISY, sigma)):
        views[single] = {}
        for w in witnessed:
            source = seeded_bytes(seed, noise, 1, w.task.client)
            rows = {f"{g}/{CLASSES}": torch.arange(c) for g, c in w.form.rows.items()}
            safe = private_update(w.answer, w.form, w.task.payload, privacy.clip, spread, source)
            views[single][w.task.client] = with_rows({**safe.tensors, **rows})
        total = with_rows(_mean([views[single][w.task.client] for w in own]))
        views[summed] = {w.task.client: total for w in witnessed}
    return views


def with_rows(seen: Seen) -> Seen:
    """Return an update with its classifier where other methods have it.

    Rows that were weighed by the class shares beside them can be divided by these.
    """
    held = seen.get(f"{ROWS}/{HELD}")
    if held is None:
        return seen
    found = dict(seen)
    for name, rows in seen.items():
        group, _, own = name.partition("/")
        if group == ROWS and own != HELD:
            share = held if rows.ndim == 1 or len(rows) != len(held) else held[:, None]
            found[f"model/{own}"] = torch.where(share > 0, rows / share, 0.0)
    return found


def plain_view(witnessed: Iterable[Witnessed]) -> dict[int, Seen]:
    """Return what is seen without protection: the change of whatever was sent out."""
    seen: dict[int, Seen] = {}
    for w in witnessed:
        sent = w.task.payload.tensors
        changes = {
            name: t - sent[name] if name in sent and t.is_floating_point() else t
            for name, t in w.answer.tensors.items()
        }
        seen[w.task.client] = with_rows(changes)
    return seen


def seen_model(task: Task, seen: Seen, model: SplitModel) -> dict[str, Tensor] | None:
    """Return the model that an update leads to, as far as it is seen; none if it has no model."""
    sent = task.payload.group("model")
    if not sent or not any(name.startswith("model/") for name in seen):
        return None
    found = dict(sent)
    for name, old in sent.items():
        change = seen.get(f"model/{name}")
        if change is not None and old.is_floating_point():
            found[name] = restored(name, change, Payload({name: old}))
    return found if model.fits(found) else None


def _group(found: Reduced, group: str, form: Form) -> dict[str, Tensor]:
    part = part_of(form)
    return found[group] or (found[group, part] if part is not None else {})


def _mean(each: list[Seen]) -> Seen:
    """Return the mean of updates; what is no number to add stays as it is."""
    return {
        name: torch.stack([seen[name] for seen in each]).mean(dim=0) if t.is_floating_point() else t
        for name, t in each[0].items()
    }
