"""An experiment: one validated description of a run, from Python, TOML or the command line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

import tomli_w
from pydantic import Field, field_validator, model_validator
from torch import nn

from fedtail.config import Config, fields_of, value_at
from fedtail.data.augment import Augment
from fedtail.data.dataset import Source
from fedtail.data.held_out import Validation
from fedtail.data.longtail import NoTail, Tail
from fedtail.data.partitions import Dirichlet, Partition
from fedtail.data.sources import Digits
from fedtail.engines.robust import PlainMean, RobustMean
from fedtail.errors import FedtailError, shown, suggestion
from fedtail.finish import Finish, refuse_private
from fedtail.methods import SLAC, Method
from fedtail.metrics import RankGroups, ShotGroups
from fedtail.models import ModelSpec
from fedtail.models.trained import checked_choice
from fedtail.privacy.config import Privacy


def must_be_experiment(given: object) -> None:
    """Refuse what is no experiment, and say how one is made."""
    if not isinstance(given, Experiment):
        raise FedtailError(
            f"an Experiment is needed, not {shown(given)}: make it with Experiment(rounds=10), or "
            "from a table of fields, as tomllib.load gives, with Experiment.model_validate(table)"
        )


class Experiment(Config):
    """Everything that decides what a run computes.

    Sections (`method`, `data`, `model`, `tail`, `partition`, ...) are components: a name with
    fields of its own, written ``section.field=value`` on the command line.
    """

    method: Method[Any] = Field(SLAC(), description="what is trained, and how")
    data: Source = Field(Digits(), description="where the samples come from")
    model: Any = Field(None, description="the network; by default one that fits the data")
    head: Literal["own", "cosine"] = Field(
        "own", description="the network's classifier: its own, or a cosine head in its place"
    )
    features: Literal["memory", "disk", "anew"] = Field(
        "memory",
        description="where features of a frozen body are kept, computed once: memory, disk (files "
        "in the data folder, for later runs too), or nowhere: anew in every epoch",
    )
    train: str = Field(
        "all",
        description="what is trained of the network: all, head, last:N (its last N blocks), "
        "lora:r=8 (low-rank updates), or names of parameters such as 'layer4.* fc.*'; the rest is "
        "frozen and never sent",
    )
    tail: Tail = Field(NoTail(), description="how a long tail is cut into the training data")
    partition: Partition = Field(
        Dirichlet(),
        description="how samples are shared out to clients; data with natural clients has those "
        "unless another is given",
    )
    augment: Augment = Field(Augment(), description="random changes of training images")
    groups: ShotGroups = Field(
        RankGroups(), description="which classes are many-, medium-, few-shot"
    )
    clients: int | None = Field(
        None, ge=1, description="how many clients; by default 10, or all that the data itself has"
    )
    per_round: int | None = Field(None, ge=1, description="clients in a round; by default all")
    rounds: int = Field(20, ge=1, description="how many rounds")
    seed: int = Field(0, ge=0, description="everything random derives from it")
    workers: int | Literal["auto"] = Field(
        "auto",
        description="worker processes; 0 trains in this one, auto starts as many as cores are "
        "free, if the run is long enough",
    )
    together: int | Literal["auto"] = Field(
        "auto",
        description="clients that train as one computation, if method and network allow it; 0 or 1 "
        "trains each alone, auto decides by their size",
    )
    threads: int = Field(1, ge=1, description="threads of each process; more change the last bits")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="what the body of a network computes in while it trains; weights, classifier, "
        "losses and tests are in float32 always",
    )
    device: str = Field("auto", description="where models train: auto, cpu, cuda, cuda:1, ... mps")
    min_clients: int = Field(
        0, ge=0, description="stop at a round with fewer valid updates; 0: at the third without any"
    )
    on_client_error: Literal["stop", "drop"] = Field(
        "stop",
        description="what a client half that raises does: stop the run, or drop the client from "
        "the round; on Flower it is always dropped",
    )
    task_seconds: float = Field(
        86400.0, gt=0, description="a worker process that takes longer for one task is ended"
    )
    eval_every: int = Field(
        1, ge=1, description="test and validate after every so many rounds, and the last"
    )
    validation: Validation = Field(
        Validation(), description="what is held out of training; a number is its share"
    )
    keep: Literal["last", "best"] = Field(
        "last", description="which round's model is shipped: the last, or the best on validation"
    )
    score: Literal[
        "accuracy", "balanced_accuracy", "many", "medium", "few", "tail", "worst_class", "loss"
    ] = Field("balanced_accuracy", description="the validation score that rounds are compared by")
    test: Literal["every", "best", "none"] = Field(
        "every",
        description="which validated rounds are tested: every one, or those that are the best so "
        "far on validation, and the last, or none",
    )
    patience: int = Field(
        0, ge=0, description="stop after so many validations without a better score; 0 never does"
    )
    finish: Finish | None = Field(
        None,
        description="a last step after training, before a model is tested and shipped, in place of "
        "what the method brings; none for no step",
    )
    deviation: bool = Field(
        False,
        description="whenever a model is tested, have clients count the pairs of their classes of "
        "which local updates turn against the rarer one, by FedLC's deviation bound",
    )
    checkpoint_every: int = Field(1, ge=1, description="save after every so many rounds")
    traffic_limit: float = Field(
        100.0,
        ge=0,
        description="gigabytes that all clients may send and receive in all rounds, where these "
        "grow with classes and features; a run that would need more is refused; 0 is no limit",
    )
    server_per_class: int = Field(
        0, ge=0, description="samples of each class that the server holds and no client does"
    )
    secure: bool = Field(
        False, description="clients mask what they send, and the server learns sums only"
    )
    secure_threshold: float = Field(
        0.66,
        gt=0.5,
        le=1,
        description="of a secure sum: the share of the clients asked who must stay to its end; "
        "with fewer there is no sum",
    )
    privacy: Privacy = Field(Privacy(), description="differential privacy of whole clients")
    robust: RobustMean = Field(
        PlainMean(),
        description="a mean that a few clients with bad updates cannot own; with `secure` only "
        "norm_bound with a `bound`, which each client keeps itself: one that lies does not",
    )
    plugins: tuple[str, ...] = Field((), description="Python files or modules with own components")
    track: tuple[Literal["tensorboard", "mlflow", "wandb"], ...] = Field(
        (), description="trackers that are told each round's numbers"
    )
    name: str = Field("", description="what the run is called; by default data, method and seed")

    @field_validator("model", mode="before")
    @classmethod
    def _model(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "name" not in value:
            raise FedtailError(
                "say which model these fields are of, for example --model resnet8 model.width=16 "
                f"(known: {', '.join(ModelSpec.registry)})"
            )
        if isinstance(value, str | Mapping):
            return ModelSpec.inside(value)
        if value is None or isinstance(value, ModelSpec | nn.Module) or callable(value):
            return value
        raise FedtailError(
            "a model is a registered name, an nn.Module or a function that makes one"
        )

    @field_validator("train")
    @classmethod
    def _train(cls, value: str) -> str:
        return checked_choice(value)

    @model_validator(mode="before")
    @classmethod
    def _data_validation(cls, plain: Any) -> Any:
        """Take ``data.validation`` for the section `validation`, which is of every source."""
        data = plain.get("data") if isinstance(plain, Mapping) else None
        if not isinstance(data, Mapping) or "validation" not in data:
            return plain
        section = plain.get("validation", {})
        if not isinstance(section, Mapping) or "share" in section:
            raise FedtailError("give 'validation.share' or 'data.validation', not both")
        rest = {key: value for key, value in data.items() if key != "validation"}
        others = {key: value for key, value in plain.items() if key != "data"}
        merged = {**section, "share": data["validation"]}
        return {**others, **({"data": rest} if rest else {}), "validation": merged}

    @model_validator(mode="before")
    @classmethod
    def _unnamed_method(cls, plain: Any) -> Any:
        """Switch off what goes with neither privacy nor robust means, where no method is named.

        The budget covers no last step; and a median of rows that most of the cohort does not hold
        is none.
        """
        told = plain.get("method", {}) if isinstance(plain, Mapping) else ""
        if not isinstance(told, Mapping) or "name" in told:
            return plain
        epsilon = value_at(plain, "privacy.epsilon")
        private = isinstance(epsilon, int | float) and math.isfinite(epsilon)
        off = {"finish": "none"} if private else {}
        robust = plain.get("robust", "none")
        if (robust if isinstance(robust, str) else value_at(robust, "name")) not in ("none", None):
            off |= {"rows": "samples"}
        default = cls.model_fields["method"].default
        whole = {**fields_of(default), **off, **told, "name": default.name}
        return {**plain, "method": whole} if off else plain

    @field_validator("validation", mode="before")
    @classmethod
    def _share(cls, value: Any) -> Any:
        return {"share": value} if isinstance(value, int | float) else value

    @model_validator(mode="after")
    def _held_out(self) -> Self:
        if self.validation.share and self.privacy.on:
            raise FedtailError(
                "validation shows sums of counts of clients' samples, which the budget of "
                "differential privacy does not cover: leave out validation.share or privacy.epsilon"
            )
        wants = [f"{name} = 'best'" for name in ("keep", "test") if getattr(self, name) == "best"]
        wants += [f"patience = {self.patience}"] if self.patience else []
        if wants and not self.validation.share:
            raise FedtailError(
                f"{wants[0]} needs samples that are held out of training, for example "
                "validation=0.1; the test set chooses nothing"
            )
        return self

    @field_validator("workers", mode="before")
    @classmethod
    def _workers(cls, value: Any) -> Any:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if isinstance(value, str) and value.isdigit():
            return int(value)
        if value != "auto" and (not whole or value < 0):
            raise FedtailError(f"{value!r} is no number of workers: give auto, 0, 1, 2, ...")
        return value

    @model_validator(mode="after")
    def _finish(self) -> Self:
        if self.privacy.on:
            refuse_private(self.last_step)
            if self.deviation:
                raise FedtailError(
                    "deviation asks clients for more than the budget of differential privacy covers"
                )
        return self

    @field_validator("together", mode="before")
    @classmethod
    def _together(cls, value: Any) -> Any:
        number = int(value) if isinstance(value, str) and value.isdigit() else value
        whole = isinstance(number, int) and not isinstance(number, bool)
        if number != "auto" and (not whole or number < 0):
            raise FedtailError(f"{value!r} is no number of clients: give auto, 0, 1, 2, ...")
        return number

    @field_validator("device")
    @classmethod
    def _device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value):
            near = suggestion(value, ("auto", "cpu", "cuda", "mps"))
            allowed = "give auto, cpu, cuda, cuda:1, ... or mps"
            raise FedtailError(f"'{value}' is no device{near} ({allowed})")
        return value

    @model_validator(mode="after")
    def _cohort(self) -> Self:
        known = self.clients or self.per_round
        if known is not None:
            self.check_cohort(known)
        return self

    @model_validator(mode="after")
    def _server_samples(self) -> Self:
        method = self.method
        if method.server_data != "none" and not self.server_per_class:
            raise FedtailError(
                f"method '{method.name}' needs {method.server_data} samples on the server, which no"
                " client holds: say how many of each class, for example server_per_class=32"
            )
        return self

    @model_validator(mode="after")
    def _idle(self) -> Self:
        """Refuse a protection that is set and does nothing, because of another field."""
        off, bounded = self.privacy.epsilon is None, getattr(self.robust, "bound", None)
        budget = "without privacy.epsilon, the budget (inf is none)"
        bound = f"{budget}; robust.name=norm_bound robust.bound={self.privacy.clip} bounds updates"
        for config, where, names, clause in (
            (self.privacy, "privacy.", ("clip",) if off else (), bound),
            (self.privacy, "privacy.", Privacy.model_fields if off else (), budget),
            (self, "", () if self.secure else ("secure_threshold",), "without secure = true"),
            (self.robust, "robust.", ("multiple",) if bounded else (), "beside robust.bound"),
        ):
            for name in names:
                value = getattr(config, name)
                if value != type(config).model_fields[name].default:
                    raise FedtailError(f"{where}{name} = {value} does nothing {clause}")
        return self

    @model_validator(mode="after")
    def _summable(self) -> Self:
        if not self.protected:
            return self
        asks = self.method.asks()
        if self.robust_side is not None and self.privacy.on:
            raise FedtailError(
                f"robust = '{self.robust.name}' does not go with differential privacy, in which "
                "privacy.clip bounds every update and noise is planned for a plain sum of them"
            )
        if self.robust_side is not None and not self.robust.by_clients:
            raise FedtailError(
                f"robust = '{self.robust.name}' cannot be summed securely: {self.robust.why}"
            )
        reason = asks.single or (asks.numbers if self.privacy.on else "")
        if reason:
            raise FedtailError(
                f"method '{self.method.name}' cannot be {self.protected}, which needs updates that "
                f"are only added up: {reason}"
            )
        if self.clients == 1 or self.per_round == 1:
            raise FedtailError(
                f"a round of one client cannot be {self.protected}: its sum would be the client's "
                "update; per_round is at least 2"
            )
        return self

    def check_cohort(self, clients: int) -> None:
        """Refuse a cohort that so many clients cannot fill; the data may say how many there are."""
        cohort = self.per_round or clients
        if cohort > clients:
            whole = self.validation.share and self.validation.by == "client"
            apart = " (the others are held out for validation)" if whole else ""
            raise FedtailError(
                f"per_round = {cohort} is more than the {clients} clients there are{apart}"
            )
        if self.min_clients > cohort:
            raise FedtailError(
                f"min_clients = {self.min_clients} is more than the {cohort} clients of a round"
            )

    @property
    def last_step(self) -> Finish:
        """What is done to the trained model: what is named here, or what the method brings."""
        return self.method.last_step() if self.finish is None else self.finish

    @property
    def protected(self) -> str:
        """What happens to updates before they leave clients, in a word; nothing by default."""
        both = {"summed securely": self.secure, "made differentially private": self.privacy.on}
        return " and ".join(what for what, is_on in both.items() if is_on)

    @property
    def robust_side(self) -> RobustMean | None:
        """What makes robust means of updates, if they are asked for."""
        return None if isinstance(self.robust, PlainMean) else self.robust

    @property
    def server_data(self) -> str:
        """What the method needed on the server, in words; nothing for most methods."""
        kind = self.method.server_data
        return "" if kind == "none" else f"{kind} server data, {self.server_per_class} a class"

    @property
    def title(self) -> str:
        """What the run is called."""
        return self.name or f"{self.data.name}-{self.method.name}-seed{self.seed}"

    def describe(self) -> dict[str, Any]:
        """Return the experiment as plain data; a model made in Python is named, not described."""
        model = self.model
        plain = super().describe()
        if model is not None and not isinstance(model, ModelSpec):
            plain["model"] = {"python": getattr(model, "__name__", type(model).__name__)}
        if "partition" not in self.model_fields_set:
            del plain["partition"]  # the data may have clients of its own, and that decides
        return plain

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():  # a network would show itself over pages
            yield name, type(value) if isinstance(value, nn.Module) else value

    def to_toml(self) -> str:
        """Return the experiment as TOML."""
        return tomli_w.dumps(self.describe())
