"""From a description to the real things: data, split, model, all checked before work starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtail.data.augment import as_float, per_channel
from fedtail.data.dataset import Dataset, Features
from fedtail.data.federation import Federation
from fedtail.data.formats.images import ImageFiles
from fedtail.data.partitions import Natural
from fedtail.data.parts import Parts
from fedtail.data.split import Split, make_split
from fedtail.device import choose_device, emulates_bfloat16, runs_on_images, to_device, try_there
from fedtail.engines import Runtime
from fedtail.engines.runtime import ClientSide
from fedtail.engines.workers import check_workers
from fedtail.errors import FedtailError
from fedtail.experiment import Experiment
from fedtail.finish import Finish, shipped_network
from fedtail.methods import Method
from fedtail.metrics.groups import has_tail
from fedtail.metrics.traffic import GB, human_bytes
from fedtail.models import ModelLike, ModelSpec, fitted, made, with_cosine_heads
from fedtail.models.spec import with_numbers
from fedtail.models.split_model import SplitModel
from fedtail.models.trained import with_trained
from fedtail.once import (
    Heads,
    Unsuited,
    feature_stores,
    features_key,
    frozen_body,
    heads_on_features,
)
from fedtail.privacy.cohorts import Cohorts
from fedtail.protocol import Server
from fedtail.rng import contained, derive
from fedtail.state import digest
from fedtail.volume import Traffic

DEFAULT_CLIENTS = 10
MUCH = 1.0
"""From so many gigabytes on, what a run sends is said before it starts."""
COUNTED_CLIENTS = 1000
"""How many clients stand for all where the classes that they hold are counted."""
LOOKED_AT = 64
"""How many inputs stand for all where each is decoded from a file of its own."""


@dataclass(frozen=True)
class Setting:
    """The real things behind an experiment.

    Attributes
    ----------
    base, model
        The user's network, and what the method makes of it.
    heads
        What clients train in their place, where features are computed once (`with_features`).
    features
        A clause on that, or on why not; empty where nothing before the classifier is frozen.
    """

    experiment: Experiment
    dataset: Dataset
    split: Split
    federation: Federation
    base: SplitModel
    model: SplitModel
    device: torch.device
    heads: Heads | None = None
    features: str = ""

    @property
    def trained(self) -> Heads:
        """What tasks are done with: the networks, or heads on features."""
        return self.heads or Heads(self.base, self.model)

    @cached_property
    def method(self) -> Method[Any]:
        """The method; the last step that it brings is the experiment's, if that names one."""
        method, named = self.experiment.method, self.experiment.finish
        brings = "finish" in type(method).model_fields
        return method.but(finish=named) if brings and named is not None else method

    @property
    def architecture(self) -> ModelLike:
        """The description of a built-in network, or the user's own."""
        return architecture(self.experiment, self.dataset)

    @property
    def cohort(self) -> int:
        """How many clients a round has."""
        return min(self.experiment.per_round or len(self.federation), len(self.federation))

    @cached_property
    def cohorts(self) -> Cohorts | None:
        """Who draws the clients of a round in a private run; none if all are asked, or openly."""
        privacy, clients = self.experiment.privacy, len(self.federation)
        if not privacy.on or self.cohort == clients:
            return None
        # In the local model who is asked is no secret, and the noise is planned for just these.
        open_draw = privacy.simulated or privacy.model == "local"
        seed = self.experiment.seed if open_draw else None
        return Cohorts(clients, self.cohort, privacy.sampling == "poisson", seed)

    @property
    def min_clients(self) -> int:
        """How many valid updates a round needs; never more than there are clients."""
        return min(self.experiment.min_clients, len(self.federation))

    @property
    def class_counts(self) -> tuple[int, ...]:
        """How many training samples of each class all clients hold together."""
        return tuple(self.federation.class_counts().tolist())

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """What the clients are called, those that are held out whole last."""
        if not self.method.pooled:
            return self.split.names(self.dataset.client_names)
        return ("all", *self.split.names(self.dataset.client_names)[len(self.split) :])

    @property
    def validators(self) -> range:
        """Who holds samples out of training."""
        validation, trained = self.experiment.validation, len(self.federation)
        if not validation.share:
            return range(0)
        if validation.by == "sample":
            return range(trained)
        return range(trained, trained + len(self.split.held_out) - len(self.split))

    @property
    def finish(self) -> Finish:
        """The last step: what the experiment names, or what the method brings."""
        return self.experiment.last_step

    @cached_property
    def traffic(self) -> Traffic | None:
        """What will be sent, where that grows with classes and features."""
        experiment, classes = self.experiment, self.dataset.num_classes
        last = self.finish.volume(self.base, classes, bool(self.validators))
        if last is None and self.method.volume(self.model, classes, 0) is None:
            return None
        some = range(0, len(self.federation), max(1, len(self.federation) // COUNTED_CLIENTS))
        held = [int((self.federation.counts(k) > 0).sum()) for k in some]
        # Protected updates have rows of all classes, zeros included.
        mean = classes if experiment.protected else sum(held) / max(1, len(held))
        own = self.method.volume(self.model, classes, mean)
        volumes = [volume for volume in (own, last) if volume is not None]
        return Traffic.of(volumes, experiment.rounds, self.cohort, len(self.federation))

    def check_traffic(self) -> None:
        """Refuse a run that would send more than its limit, with the number."""
        limit, traffic = self.experiment.traffic_limit, self.traffic
        if limit and traffic is not None and traffic.total > limit * GB:
            raise FedtailError(
                f"method '{self.method.name}' would send {traffic.sentence}, more than "
                f"traffic_limit = {limit:g} GB: {traffic.less}; or raise the limit with "
                f"traffic_limit={math.ceil(traffic.total / GB)} (0 is no limit)"
            )

    def remarks(self) -> list[str]:
        """Return what is odd about the classes, much traffic and slow numbers, a sentence each."""
        much = self.traffic is not None and self.traffic.total >= MUCH * GB
        said = [*self.odd_classes(), *([self.traffic.remark] if self.traffic and much else [])]
        if self.experiment.precision == "bfloat16" and emulates_bfloat16(self.device):
            said.append(
                "this processor has no instructions for bfloat16, so training in it takes several "
                "times as long as in float32"
            )
        return said

    def odd_classes(self) -> list[str]:
        """Return what is odd about the classes, a sentence each."""
        held = np.array(self.class_counts)
        if not held.any():  # nobody said what the clients hold
            return []
        tested = torch.bincount(self.dataset.test.y, minlength=len(held)).numpy()
        missing = [self.dataset.classes[c] for c in np.flatnonzero((held == 0) & (tested > 0))]
        said = []
        if missing:
            named = ", ".join(missing[:10]) + (", ..." if len(missing) > 10 else "")
            said.append(
                f"no client holds a sample of class {named}, which is tested: it cannot be learned"
            )
        if not has_tail(self.class_counts):
            scored = any(self.experiment.groups.assign(self.class_counts).values())
            said.append(
                "the training data has no tail, all classes have about as many samples"
                + ("" if scored else ": many, medium and few are not scored")
            )
        return said

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of the data and the split: a run is resumed on the same ones.

        Of a model that is frozen in part, that part too: a checkpoint does not hold it.
        """
        frozen = self.base.whole({})
        return {
            **data_digests(self.dataset, self.split),
            **({"frozen part of the model": digest(frozen)} if frozen else {}),
        }

    def server(self, round: int) -> Server:
        """Return the server of one round."""
        clients = range(len(self.federation))
        return Server(
            round=round,
            rounds=self.experiment.rounds,
            clients=clients,
            per_round=self.experiment.per_round or len(clients),
            num_classes=self.dataset.num_classes,
            model=self.trained.model,
            seed=self.experiment.seed,
            device=self.device,
            data=self.federation.server_data(self.split.server),
            cohorts=self.cohorts,
            classes=self.dataset.classes,
        )

    def runtime(self, client_side: ClientSide | None = None) -> Runtime:
        """Return the place where tasks are done, and updates protected before they leave."""
        return Runtime(
            self.federation,
            self.method,
            self.trained.base,
            self.trained.model,
            self.experiment.seed,
            self.device,
            client_side,
        )

    def with_features(self) -> Setting:
        """Return the same setting, with heads on features where that is the same but faster."""
        where, base, federation = self.experiment.features, self.base, self.federation
        if where == "anew" or not frozen_body(base):
            return self
        server = torch.from_numpy(self.split.server)
        try:
            heads, seen = heads_on_features(self.method, base, self.model, federation)
            key = features_key(base, seen, self._computing()) if where == "disk" else ""
            stores = feature_stores(base, federation, server, key)
        except Unsuited as reason:
            return replace(self, features=f"features computed every time: {reason}")
        size = human_bytes(sum(store.nbytes for store in stores))
        said = f"features computed once ({base.feature_dim} a sample, {size}, {where})"
        return replace(
            self, federation=federation.with_features(stores), heads=heads, features=said
        )

    def _computing(self) -> str:
        """Return a digest of the data, and what changes the last bits of what is computed."""
        sets = [_all_of(held.x) for held in (self.dataset.train, self.dataset.test)]
        how = (
            f"{torch.__version__} {self.experiment.threads} {self.device} {self.federation.tokens}"
        )
        return " ".join([*sets, how])


def data_digests(dataset: Dataset, split: Split) -> dict[str, str]:
    """Return the SHA-256 of the data, as the network takes them, and of the split."""
    sets = {"training set": dataset.train, "test set": dataset.test}
    found = {name: digest({"x": _seen(held.x), "y": held.y}) for name, held in sets.items()}
    return {**found, "split": split.digest}


def _seen(x: Features) -> Tensor:
    """Return inputs as a tensor; of those that are read from files on demand, a few for all."""
    if isinstance(x, Tensor):
        return x
    return x[torch.arange(0, len(x), max(1, len(x) // LOOKED_AT))]


def _all_of(x: Features) -> str:
    """Return a digest of all inputs; of image files their names, sizes and times stand for them."""
    if isinstance(x, Tensor):
        return digest({"x": x})
    if not isinstance(x, ImageFiles):
        raise Unsuited(f"a {type(x).__name__} does not say what it holds; features=memory can be")
    return digest({x.facts(): torch.empty(0)})


def architecture(experiment: Experiment, dataset: Dataset) -> ModelLike:
    """Return the network that was asked for, or the one that suits the data."""
    model = experiment.model
    return ModelSpec.inside(experiment.data.model_for(dataset)) if model is None else model


def as_taken(experiment: Experiment, dataset: Dataset) -> Dataset:
    """Return the data as the network takes it, before it is normalised."""
    if experiment.model is None:
        dataset = with_numbers(dataset)  # which network suits texts, nobody can say
    network = architecture(experiment, dataset)
    return network.inputs(dataset) if isinstance(network, ModelSpec) else with_numbers(dataset)


def share_out(experiment: Experiment, dataset: Dataset) -> Split:
    """Cut the tail and share the samples out to clients."""
    asked = dataset.client_train is None or "partition" in experiment.model_fields_set
    partition = experiment.partition if asked else Natural()
    natural = isinstance(partition, Natural)
    clients = experiment.clients or (None if natural else DEFAULT_CLIENTS)
    return make_split(
        # A copy: workers move the labels into shared memory, and a view would be of what was freed.
        dataset.train.y.numpy().copy(),
        dataset.num_classes,
        experiment.tail,
        partition,
        clients,
        experiment.seed,
        owner=dataset.client_train,
        server_per_class=experiment.server_per_class,
        validation=experiment.validation,
    )


def check_server_data(experiment: Experiment, split: Split) -> None:
    """Refuse a method that needs samples on the server where none could be set aside."""
    if experiment.method.server_data != "none" and not len(split.server):
        raise FedtailError(
            f"method '{experiment.method.name}' needs samples on the server, but no class has two"
            " to take one from: the tail dropped none, and at least half stay with the clients"
        )


def in_one_place(split: Split) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
    """Return the split as one client with all samples would have it, and what it holds out.

    Clients that are held out whole stay clients.
    """
    trained, held = len(split), split.held_out
    own = [np.sort(np.concatenate(held[:trained]))] if held else []
    return [np.sort(Parts.of(split.parts).order)], [*own, *held[trained:]]


def trial_batches(dataset: Dataset) -> list[Tensor]:
    """Return two test inputs as a network may take them: as numbers, and if they can be, whole.

    The constants of the clients are not known yet; those of the two inputs do for a trial.
    """
    x = dataset.test.x[torch.arange(min(2, len(dataset.test)))]
    numbers = as_float(x)
    if dataset.mean:
        shape = dataset.input_shape
        mean, std = (per_channel(torch.tensor(c), shape) for c in (dataset.mean, dataset.std))
        numbers = (numbers - mean) / std
    elif dataset.normalisation != "none":
        numbers = (numbers - numbers.mean()) / numbers.std(correction=0).clamp_min(1e-6)
    return [numbers] if x.is_floating_point() else [numbers, x.long()]


def takes_whole(model: SplitModel, x: Tensor, num_classes: int) -> bool:
    """Whether a network takes inputs as whole numbers only; one that takes none is refused."""
    batches = [as_float(x)] if x.is_floating_point() else [as_float(x), x.long()]
    return not fitted(model, batches, num_classes)[1].is_floating_point()


def network_for(experiment: Experiment, dataset: Dataset) -> tuple[SplitModel, Tensor]:
    """Return the network that was asked for, and a batch as it takes inputs; all checked."""
    batches = trial_batches(dataset)
    network = made(architecture(experiment, dataset), dataset.input_shape, dataset.num_classes)
    base, taken = fitted(network, batches, dataset.num_classes)
    if experiment.head == "cosine":
        base = with_cosine_heads(base)
        base.check(taken, dataset.num_classes)
    return with_trained(base, experiment.train), taken


def prepare(experiment: Experiment) -> Setting:
    """Load the data, make the split, build and check the model. Nothing is written."""
    device = choose_device(experiment.device)
    check_workers(experiment.workers, device)
    dataset = as_taken(experiment, experiment.data.load())
    experiment.method.check_data(dataset)
    split = share_out(experiment, dataset)
    experiment.check_cohort(len(split.parts))
    check_server_data(experiment, split)
    with contained(derive(experiment.seed, "model")):
        base, taken = network_for(experiment, dataset)
        model = experiment.method.build_model(base)
    experiment.method.check_model(model)
    images = runs_on_images(model, device)
    to_device((base, model), device, images, experiment.precision)
    try_there(base, taken, device)
    parts, held = in_one_place(split) if experiment.method.pooled else (split.parts, split.held_out)
    tokens = not taken.is_floating_point()
    check_bytes(dataset, tokens)
    federation = Federation(dataset, parts, experiment.augment, device, images, held, tokens)
    check_normalisation(federation, experiment)
    setting = Setting(experiment, dataset, split, federation, base, model, device)
    experiment.groups.assign(setting.class_counts)  # refuses classes that are not there
    check_finish(setting)
    setting.check_traffic()
    return setting


def check_normalisation(federation: Federation, experiment: Experiment) -> None:
    """Refuse to ask clients for sums of their inputs in a private run."""
    if federation.asks != "none" and experiment.privacy.on:
        raise FedtailError(
            f"data.normalisation = '{federation.asks}' asks clients for sums of their inputs, which"
            " differential privacy does not cover: give data.mean and data.std, or"
            " data.normalisation=none"
        )


def check_bytes(dataset: Dataset, tokens: bool) -> None:
    """Refuse bytes in one set and other numbers in the other: they would not count alike."""
    kinds = [str(held.x.dtype).removeprefix("torch.") for held in (dataset.train, dataset.test)]
    if not tokens and kinds[0] != kinds[1] and "uint8" in kinds:
        raise FedtailError(
            f"training inputs are {kinds[0]} and test inputs {kinds[1]}: bytes (uint8) count 0 to "
            "1 and all other numbers as they are, so give both as bytes, or neither"
        )


def check_finish(setting: Setting) -> None:
    """Refuse a last step that cannot be done to what the method ships."""
    method, finish = setting.method, setting.finish
    if finish.asks:
        shipped = dict(method.eval_model(method.init(setting.model, setting.server(0))))
        finish.check(shipped_network(shipped, setting.model, setting.base))
