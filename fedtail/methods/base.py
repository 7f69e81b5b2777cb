"""What a method is: hyper-parameters with a server half and a client half, and no I/O.

A new method derives from `FedAvg` (`fedavg.py`) and overrides what differs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from fedtail.config import Component, Registry
from fedtail.data.dataset import Dataset
from fedtail.errors import FedtailError
from fedtail.finish import Finish, NoFinish
from fedtail.forms import Form
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Client, Exchange, Payload, Server, Task, Tensors
from fedtail.reduce import Reduced
from fedtail.skew import count_skew, skew_form
from fedtail.standardise import report_sums, sums_form
from fedtail.training.blends import blends_form, count_blends
from fedtail.training.closed_heads import ClosedHead
from fedtail.training.feature_sums import (
    products_form,
    report_feature_products,
    report_feature_sums,
    sums_of_features_form,
)
from fedtail.training.priors import counts_form
from fedtail.validation import count, form_of_counts
from fedtail.volume import Volume

S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., Payload])


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


ATTRIBUTES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "family": (_is_text, "a text"),
    "paper": (_is_text, "a text: authors, title, venue"),
    "needs": (
        lambda value: isinstance(value, tuple) and all(map(_is_text, value)),
        "a tuple of texts, such as ('server data',)",
    ),
    "traffic": (_is_text, "a text, such as 'none'"),
    "server_data": (
        lambda value: value in ("none", "labelled", "unlabelled"),
        "'none', 'labelled' or 'unlabelled'",
    ),
    "pooled": (lambda value: isinstance(value, bool), "True or False"),
}
"""What a method's class says of itself, and what each of it has to be."""


def action(function: F) -> F:
    """Mark a function of the client half as one that a task may name.

    A task arrives over a network; only marked functions (and their overrides) can be called by it.
    """
    function.__dict__["is_action"] = True
    return function


class Asks(NamedTuple):
    """What a server half asks of clients, as far as secure sums and privacy rest on it.

    They rest on what is really asked, too: an exchange that is not as it was declared here is
    refused, or costs more of the budget.

    Attributes
    ----------
    setup
        How many preliminary exchanges there are, each with every client.
    round
        Whether a round asks one ``cohort``, drawn at random, or clients of its own choice.
    after
        Whether clients are asked once more after training.
    single
        Why it needs single updates and not only sums, in a clause; empty if it does not. The form
        of the action says the same (`Form.singly`).
    numbers
        Why it computes with scalars of the clients, which clipping does not cover, in a clause.
    """

    setup: int = 0
    round: Literal["cohort", "own"] = "cohort"
    after: bool = False
    single: str = ""
    numbers: str = ""


class Method(Component, Generic[S]):
    """The server half goes from state to state; the client half from payload to payload.

    Attributes
    ----------
    family
        Which shelf it stands on in `fedtail methods`.
    paper
        Authors, title, venue.
    needs
        What it needs beyond FedAvg: server data, revealed class counts, ...
    traffic
        What it sends beyond FedAvg, in words.
    server_data
        Which samples the server must hold; for most methods none.
    pooled
        Whether it trains on the samples of all clients in one place, as one client.
    """

    registry: ClassVar[Registry[Method[object]]] = Registry("method")
    keeps: ClassVar[str] = ": what is remembered stands in the server's state, or in client.state"
    family: ClassVar[str]
    paper: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    traffic: ClassVar[str] = "none"
    server_data: ClassVar[Literal["none", "labelled", "unlabelled"]] = "none"
    pooled: ClassVar[bool] = False

    @classmethod
    def check_class(cls) -> None:
        """Refuse a class that says something of itself in a form that nobody can read."""
        for name, (is_good, allowed) in ATTRIBUTES.items():
            where = f"method class '{cls.__name__}'"
            if name in cls.model_fields:
                raise FedtailError(f"{where}: '{name}' is of the class: annotate it as a ClassVar")
            value = getattr(cls, name, None)
            if not is_good(value):
                said = f"'{name}' = {value!r} is refused" if hasattr(cls, name) else f"no '{name}'"
                raise FedtailError(f"{where}: {said}: give {allowed}")

    @classmethod
    @cache
    def actions(cls) -> frozenset[str]:
        """Return the names that a task may name."""
        marked = (
            name
            for parent in cls.__mro__
            for name, item in vars(parent).items()
            if getattr(item, "is_action", False)
        )
        return frozenset(marked)

    def build_model(self, base: SplitModel) -> SplitModel:
        """Return the model that this method trains: the user's, or one made from it."""
        return base

    def check_data(self, dataset: Dataset) -> None:
        """Refuse data that it cannot train on, before work starts; by default none."""

    def check_model(self, model: SplitModel) -> None:
        """Refuse what `build_model` made if a part cannot be read off it; by default nothing."""

    def changes_inputs(self) -> bool:
        """Whether clients change inputs themselves, beyond `augment`.

        Features of a frozen body are then computed every time, and not once.
        """
        return False

    def init(self, model: SplitModel, server: Server) -> S:
        """Return the state before the first round."""
        raise NotImplementedError("abstract: derive from FedAvg")

    def setup(self, s: S, server: Server) -> Exchange[S]:
        """Hold the preliminary exchanges, once; none by default."""
        yield from ()
        return s

    def round(self, s: S, server: Server) -> Exchange[S]:
        """Hold the exchanges of one round."""
        raise NotImplementedError("abstract: derive from FedAvg")

    def aggregate(self, s: S, found: Reduced, server: Server) -> S:
        """Return the state after one exchange, to which at least one client answered."""
        raise NotImplementedError("abstract: derive from FedAvg")

    def finalize(self, s: S, server: Server) -> Exchange[S]:
        """Hold the exchanges that come after training; run on a copy, at evaluation time."""
        yield from ()
        return s

    def eval_model(self, s: S) -> Tensors:
        """Return what is tested and shipped; it may differ from what is trained."""
        raise NotImplementedError("abstract: derive from FedAvg")

    def asks(self) -> Asks:
        """Say what the server half asks of clients, as far as protections rest on it."""
        return Asks()

    def trained_rounds(self, server: Server) -> int:
        """Return after how many rounds training ends; those after it ask nobody."""
        return server.rounds

    def volume(self, model: SplitModel, classes: int, held: float) -> Volume | None:
        """Return how many bytes one client is sent and sends, where they grow with classes.

        None by default: what most methods send is the model, and grows with nothing else.

        Parameters
        ----------
        model, classes
            What is trained, and for how many classes.
        held
            How many classes a client holds, on average.
        """
        return None

    def closed_head(self) -> ClosedHead | None:
        """Return how it makes a head of sums of features, if it does: what an audit attacks."""
        return None

    def last_step(self) -> Finish:
        """Return what is done to the model before it is tested, where the experiment says nothing.

        By default nothing. The run asks it of the clients, see `fedtail.finish`.
        """
        return NoFinish()

    def personal(self, s: S, server: Server) -> list[Task]:
        """Return tasks that clients answer with models of their own, in the group ``model``.

        By default there are none. Each of these models is tested on its own client's test samples,
        or on the whole test set if it is not known whose samples those are. The scores stand under
        ``personal``, beside those of the model that is shipped. Clients forget the task afterwards,
        and no traffic is counted: it is a part of the test.
        """
        return []

    # Client half

    def input_sums_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare the sums of the local inputs."""
        return sums_form(task)

    @action
    def input_sums(self, payload: Payload, client: Client) -> Payload:
        """Report the sums that inputs are standardised with; the run asks, not the method."""
        return report_sums(payload, client)

    def assess_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare counts by class and a loss, added up over clients."""
        return form_of_counts(classes)

    @action
    def assess(self, payload: Payload, client: Client) -> Payload:
        """Count how a model that might be shipped does on what the client holds out."""
        return count(payload.group("model"), client)

    def count_deviation_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare how many pairs of classes deviate."""
        return skew_form()

    @action
    def count_deviation(self, payload: Payload, client: Client) -> Payload:
        """Count the pairs of local classes that deviate at a model; the run asks (`deviation`)."""
        context = getattr(self, "context", None)  # FedAvg's, and of what derives from it
        prior = client.counts.float() if context is None else context(payload, client).prior
        return count_skew(payload, client, getattr(self, "loss", None), prior)

    def class_totals_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare the local class counts."""
        return counts_form(classes)

    @action
    def class_totals(self, payload: Payload, client: Client) -> Payload:
        """Report the local class counts, before sums of features are asked for."""
        return Payload({"counts/classes": client.counts})

    def feature_sums_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare counts, sums and second moments of features."""
        return sums_of_features_form(task, classes)

    @action
    def feature_sums(self, payload: Payload, client: Client) -> Payload:
        """Report what the local features add up to, at a model that might be shipped."""
        return report_feature_sums(payload, client)

    def feature_products_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare the product of second moments with a few directions."""
        return products_form(task)

    @action
    def feature_products(self, payload: Payload, client: Client) -> Payload:
        """Report what the second moments of the local features make of a few directions."""
        return report_feature_products(payload, client)

    def compare_heads_form(self, task: Payload, model: SplitModel, classes: int) -> Form:
        """Declare counts by class and losses of several heads."""
        return blends_form(task, classes)

    @action
    def compare_heads(self, payload: Payload, client: Client) -> Payload:
        """Count how mixtures of two heads do on what the client holds out."""
        return count_blends(payload, client)
