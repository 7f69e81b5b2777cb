"""The server's half of protection, around any engine.

Clients send addends (`fedtail.privacy.additive`). This engine adds them up, has a client decrypt
the sum if it is encrypted, and hands the method updates that all carry the mean: whatever the
method averages, it then gets the average, and it never sees one client's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedtail.engines.base import ClientStates, Dropped, Engine, Replies
from fedtail.errors import FedtailError
from fedtail.forms import Form
from fedtail.metrics import Evaluation
from fedtail.privacy.additive import NotASum, Total, form_length
from fedtail.privacy.budget import Budget
from fedtail.privacy.ckks import Adder, Damaged
from fedtail.privacy.clipping import restored
from fedtail.privacy.shield import OPENED, PARTIES, SEALED, secret_generator
from fedtail.protocol import OPEN_SUM, ClientId, Payload, Scalar, Task, Tensors, Update
from fedtail.reduce import Plan
from fedtail.rng import torch_generator

FEWEST = 2
"""A sum over one client is that client's update."""


@dataclass
class Traffic:
    """Bytes down to and up from each client, as they really travel."""

    bytes: dict[ClientId, list[int]] = field(default_factory=dict)

    def add(self, more: Mapping[ClientId, Sequence[int]]) -> None:
        """Add an exchange."""
        for client, (down, up) in more.items():
            both = self.bytes.setdefault(client, [0, 0])
            both[0] += down
            both[1] += up


@dataclass
class Pile:
    """Addends of one form that are added up together.

    Attributes
    ----------
    part
        Over all updates, or over some (`fedtail.privacy.additive`).
    form
        What the numbers are.
    members
        Positions of the updates that they came with.
    vectors
        The addends, or their ciphertexts.
    """

    part: str
    form: str
    members: list[int] = field(default_factory=list)
    vectors: list[Tensor] = field(default_factory=list)


class Unopened(FedtailError):
    """A sum that nobody decrypted."""


class Protected:
    """An engine that shows the method sums over clients, and nothing else of their updates.

    Parameters
    ----------
    engine
        What carries the messages; its clients have the other half (`fedtail.privacy.Shield`).
    adder
        The server's half of the keys; none if the addends are not encrypted.
    budget
        What is spent by showing noisy sums; none without differential privacy.
    seed
        Of the server's noise.
    """

    def __init__(
        self,
        engine: Engine,
        adder: Adder | None = None,
        budget: Budget | None = None,
        seed: int = 0,
    ) -> None:
        self.engine = engine
        self.adder = adder
        self.budget = budget
        self.seed = seed
        self.releases: Counter[int] = Counter()
        self.states: ClientStates = engine.states
        self.tested: int | None = None  # the round whose clients' own models are being tested

    def form(self, task: Task) -> Form:
        """Return what the method declares that clients answer to a task."""
        return self.engine.form(task)

    def announced(self, client: ClientId) -> int | None:
        """Return how many samples a client said at the start that it has; none if it did not."""
        return self.engine.announced(client)

    def perform(
        self, tasks: Sequence[Task], round: int, rounds: int, single: bool = False
    ) -> Replies:
        """Have the tasks done, and the updates summed."""
        asked, plan = told(tasks), Plan.of(tasks, self)
        replies = self.engine.perform(tasks if round == self.tested else asked, round, rounds)
        updates, dropped = list(replies.found.each), list(replies.dropped)
        if round == self.tested or not any(u.payload.group(SEALED) for u in updates):
            refuse_what_is_no_sum(dropped)
            return replace(replies, found=plan.reduced(updates, single))
        refuse_what_is_no_sum(dropped)
        if self.budget is not None:
            self.budget.note(tasks, round)
        updates = self.checked(updates, dropped)
        traffic = Traffic({client: list(both) for client, both in replies.traffic.items()})
        try:
            updates = self.summed(updates, tasks, traffic, (round, rounds))
        except Unopened as error:
            dropped += [Dropped(u.client, str(error)) for u in updates]
            updates = []
        dropped.sort(key=lambda d: d.client)
        return Replies(plan.reduced(updates), dropped, traffic.bytes)

    def summed(
        self,
        updates: Sequence[Update],
        tasks: Sequence[Task],
        traffic: Traffic,
        clock: tuple[int, int],
    ) -> list[Update]:
        """Return the updates as the method may see them, each with the totals of all."""
        piles = pile_up(updates)
        if any(len(pile.members) < FEWEST for pile in piles):
            raise Unopened("a sum over fewer than two clients would show one client's update")
        sums = self.sums(piles, sorted({u.client for u in updates}), traffic, clock)
        totals = [
            self.shown(Total.of(pile.form, numbers, len(pile.members)), len(tasks), clock[0])
            for pile, numbers in zip(piles, sums, strict=True)
        ]
        shown = rebuilt(updates, piles, totals)
        if self.budget is None:
            return shown
        sent = {task.client: task.payload for task in tasks}
        return [
            Update(
                u.client, replace(u.payload, tensors=restored(u.payload.tensors, sent[u.client]))
            )
            for u in shown
        ]

    def shown(self, total: Total, asked: int, round: int) -> Total:
        """Return what the method may see of a sum: with noise, where the server adds it."""
        if self.budget is None:
            return total
        privacy = self.budget.privacy
        sigma = self.budget.sigma if privacy.model == "central" else 0.0
        self.releases[round] += 1
        purpose = f"server/privacy noise/{self.releases[round]}"
        draw = torch_generator(self.seed, purpose, round)
        return total.noised(asked, sigma, secret_generator() if privacy.secret else draw)

    def after_training(self, round: int, test: bool = False) -> None:
        """Pass it on; the test of clients' own models is no part of what is protected."""
        self.tested = round if test else None
        self.engine.after_training(round, test)

    def evaluate(self, tensors: Tensors) -> Evaluation:
        """Test a model on the global test set."""
        return self.engine.evaluate(tensors)

    def close(self) -> None:
        """Stop what was started."""
        self.engine.close()

    def checked(self, updates: Sequence[Update], dropped: list[Dropped]) -> list[Update]:
        """Leave out updates of another form than most, and ciphertexts that cannot be added."""
        usual, good = usual_forms(updates), []
        for update in updates:
            reason = self.defect(update.payload, usual)
            if reason:
                dropped.append(Dropped(update.client, reason))
            else:
                good.append(update)
        return good

    def defect(self, sent: Payload, usual: Mapping[str, str]) -> str:
        """Return why an update cannot be added to the others, or nothing."""
        for part, data in sent.group(SEALED).items():
            if sent.scalars.get(f"form {part}") != usual[part]:
                return "sent other numbers than the rest of the cohort"
            length = form_length(usual[part])
            if self.adder is None and len(data) != length:
                return f"sent {len(data)} numbers instead of {length}"
            try:
                if self.adder is not None:
                    self.adder.check(data, length)
            except Damaged as error:
                return str(error)
        return ""

    def sums(
        self,
        piles: Sequence[Pile],
        clients: Sequence[ClientId],
        traffic: Traffic,
        clock: tuple[int, int],
    ) -> list[Tensor]:
        """Return the sum of every pile; `clients` can be asked to decrypt it."""
        if self.adder is None:
            return [torch.stack(pile.vectors).double().sum(dim=0) for pile in piles]
        tensors: dict[str, Tensor] = {}
        facts: dict[str, Scalar] = {}
        for number, pile in enumerate(piles):
            tensors[f"{SEALED}/{number}"] = self.adder.add(pile.vectors)
            facts[f"length {number}"] = form_length(pile.form)
            facts[f"count {number}"] = len(pile.members)
        question = Payload(tensors, facts)
        reason = ""
        for client in clients:
            task = Task(client, OPEN_SUM, question)
            replies = self.engine.perform([task], *clock)
            traffic.add(replies.traffic)
            if replies.found.each:
                opened = replies.found.each[0].payload.group(OPENED)
                return [opened[str(number)].double() for number in range(len(piles))]
            reason = replies.dropped[0].reason if replies.dropped else "no answer"
        raise Unopened(f"no client could decrypt the sum ({reason})")


def told(tasks: Sequence[Task]) -> list[Task]:
    """Tell each client how many were asked; a payload that tasks share stays one object."""
    new: dict[int, Payload] = {}
    for task in tasks:
        scalars = {**task.payload.scalars, PARTIES: len(tasks)}
        new.setdefault(id(task.payload), replace(task.payload, scalars=scalars))
    return [replace(task, payload=new[id(task.payload)]) for task in tasks]


def refuse_what_is_no_sum(dropped: Sequence[Dropped]) -> None:
    """End the run if clients had to keep back what the method wants of them."""
    mark = f"{NotASum.__name__}: "
    for one in dropped:
        if one.reason.startswith(mark):
            raise FedtailError(
                f"this method cannot be protected: {one.reason.removeprefix(mark)} "
                "(it would leave the client in the clear)"
            )


def usual_forms(updates: Sequence[Update]) -> dict[str, str]:
    """Return the form that most updates have, of each part."""
    seen: dict[str, Counter[str]] = {}
    for update in updates:
        for part in update.payload.group(SEALED):
            form = str(update.payload.scalars.get(f"form {part}"))
            seen.setdefault(part, Counter())[form] += 1
    return {part: counter.most_common(1)[0][0] for part, counter in seen.items()}


def pile_up(updates: Sequence[Update]) -> list[Pile]:
    """Sort addends by what they are added to."""
    piles: dict[tuple[str, str], Pile] = {}
    for position, update in enumerate(updates):
        scalars = update.payload.scalars
        for part, vector in update.payload.group(SEALED).items():
            key = (part, str(scalars[f"within {part}"]))
            pile = piles.setdefault(key, Pile(part, str(scalars[f"form {part}"])))
            pile.members.append(position)
            pile.vectors.append(vector)
    return list(piles.values())


def rebuilt(
    updates: Sequence[Update], piles: Sequence[Pile], totals: Sequence[Total]
) -> list[Update]:
    """Return the updates as the method expects them, each with the totals in place of its own."""
    result = []
    for position, update in enumerate(updates):
        tensors = {
            name: t for name, t in update.payload.tensors.items() if not name.startswith(SEALED)
        }
        scalars = {
            name: value
            for name, value in update.payload.scalars.items()
            if name.partition(" ")[0] not in ("form", "within")
        }
        for pile, total in zip(piles, totals, strict=True):
            if position in pile.members:
                tensors |= total.tensors(first=position == pile.members[0])
                scalars |= total.scalars
        result.append(Update(update.client, Payload(tensors, scalars)))
    return result
