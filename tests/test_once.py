"""Features of a frozen body are computed once, and nothing but the time changes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import tiny
import torch
from rich.console import Console
from torch import Tensor, nn

from fedtail import Arrays, Augment, Experiment, FedAvg, FedtailError, Method, load, run
from fedtail.callbacks import Progress
from fedtail.data.feature_store import CACHE, FeatureStore
from fedtail.methods import ModelState
from fedtail.models import SplitModel
from fedtail.once import Encoder, head_alone
from fedtail.setting import prepare

WHOLE = {"fedalign", "fedyoyo"}
"""Methods that train more of a network than its head, or change inputs themselves."""


class Body(nn.Module):
    """A frozen body that counts what it computes; `shift` is in no tensor."""

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()
        ).requires_grad_(False)
        self.shift, self.seen = shift, 0

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():  # an exported program counts nothing
            self.seen += len(x)
        features: Tensor = self.layers(x) + self.shift
        return features


def network(dropout: float = 0.0, shift: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    between = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(Body(shift), *between, nn.Linear(36, tiny.CLASSES))


def far(one: Any, other: Any) -> float:
    """Return how far the tensors of two results are apart."""
    assert one.tensors.keys() == other.tensors.keys()
    return max(float((t - other.tensors[n]).abs().max()) for n, t in one.tensors.items())


def experiment(where: str, model: nn.Module | None = None, **fields: Any) -> Experiment:
    return tiny.experiment(model=model or network(), features=where, **fields)


def method_of(name: str) -> Method[Any]:
    local = {"local": tiny.quick()} if "local" in Method.registry[name].model_fields else {}
    more: dict[str, Any] = {}
    if name == "clip2fl":
        # Here, because worker processes import this module, and transformers takes them seconds.
        import tiny_clip

        more = tiny_clip.fields()
    return Method.model_validate({"name": name, **local, **more})


@pytest.mark.parametrize("name", [n for n in Method.registry if n not in WHOLE])
def test_every_method_gives_the_same(name: str) -> None:
    needs = Method.registry[name].server_data
    fields: dict[str, Any] = {} if needs == "none" else {"server_per_class": 2}
    method = method_of(name)
    chosen = [tiny.experiment(method, network(), features=w, **fields) for w in ("anew", "memory")]
    assert prepare(chosen[1]).with_features().features.startswith("features computed once (36 a")
    # Batches of 64 and of 4 differ in their last bits, which FedDF's Adam on the server amplifies.
    assert far(*map(run, chosen)) < (1e-4 if name == "feddf" else 1e-6)


class Deep(FedAvg[ModelState]):
    """A method that looks at a layer of the body."""

    name: ClassVar[str] = "deep"

    def build_model(self, base: SplitModel) -> SplitModel:
        if "0.layers.0" not in dict(base.module.named_modules()):
            raise FedtailError("there is no layer '0.layers.0'")
        return base


def test_a_method_that_needs_the_body_has_it() -> None:
    setting = prepare(experiment("memory", method=Deep(local=tiny.quick()))).with_features()
    assert setting.heads is None
    assert setting.features == (
        "features computed every time: method 'deep' needs the whole network (there is no layer "
        "'0.layers.0')"
    )


def test_dropout_before_the_classifier_is_drawn_as_ever() -> None:
    one, other = (run(experiment(w, network(dropout=0.5))) for w in ("anew", "memory"))
    assert far(one, other) < 1e-6
    assert far(one, run(experiment("memory", network(dropout=0.01)))) > 1e-3  # it does something


def test_each_sample_is_computed_once() -> None:
    setting = prepare(experiment("memory", rounds=5)).with_features()
    assert setting.heads is not None
    body: Any = setting.base.module[0]  # type: ignore[index]
    tried = body.seen
    for _ in range(3):
        for client in range(len(setting.federation)):
            data = setting.federation.client(client)
            data.batch(torch.arange(len(data)))
        setting.federation.test_batch(0, 500)
    held = len(setting.federation.train) + len(setting.federation.test)
    assert body.seen - tried == held


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"augment": Augment(flip=True)}, "images are changed at random (augment)"),
        ({"method": Method.model_validate({"name": "paco", "jitter": 0.1})}, "'paco' changes"),
        ({"method": Method.model_validate({"name": "fedyoyo"})}, "'fedyoyo' changes"),
        ({"method": Method.model_validate({"name": "creff", "gradients": "augmented"})}, "creff"),
        ({"model": nn.Sequential(Body(), nn.Dropout(), nn.ReLU(), nn.Linear(36, 4))}, "training"),
    ],
)
def test_where_it_would_not_be_the_same_it_is_not_done(fields: dict[str, Any], reason: str) -> None:
    setting = prepare(experiment(**{"where": "memory", **fields})).with_features()
    assert setting.heads is None
    assert setting.features.startswith("features computed every time: ")
    assert reason in setting.features


def test_nothing_is_said_where_nothing_is_frozen() -> None:
    for model in (tiny.plain_model(), nn.Sequential(nn.Flatten(), nn.Linear(192, tiny.CLASSES))):
        setting = prepare(experiment("memory", model)).with_features()
        assert (setting.heads, setting.features) == (None, "")
    assert prepare(experiment("anew")).with_features().heads is None


def test_workers_and_a_resumed_run_have_the_same_bits(tmp_path: Path) -> None:
    reference = run(experiment("memory", rounds=4, validation=0.2))
    assert run(experiment("memory", rounds=4, validation=0.2, workers=2)).digest == reference.digest
    run(experiment("memory", rounds=2, validation=0.2), out=tmp_path / "run")
    longer = experiment("memory", rounds=4, validation=0.2)
    assert run(longer, out=tmp_path / "run", resume=True).digest == reference.digest


def test_a_client_s_features_are_computed_with_its_own_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In a block too: which other clients are in it depends on where a run was resumed.
    seen: list[set[int]] = []
    groups = FeatureStore._groups

    def watched(store: FeatureStore, together: Tensor) -> list[Tensor]:
        seen.append(set(together.tolist()))
        return groups(store, together)

    monkeypatch.setattr(FeatureStore, "_groups", watched)
    chosen = experiment("memory", together=6, per_round=6)
    run(chosen)
    parts = [set(part.tolist()) for part in prepare(chosen).split.parts]
    assert sum(any(one <= part for part in parts) for one in seen) >= 6
    assert not [one for one in seen if sum(bool(one & part) for part in parts) > 1]


def test_what_is_shipped_is_the_whole_model(tmp_path: Path) -> None:
    mine, held = network(), tiny.arrays()
    result = run(experiment("memory", mine), out=tmp_path / "run")
    assert result.tensors.keys() == mine.state_dict().keys()
    assert result.tensors["0.layers.0.weight"].equal(mine.state_dict()["0.layers.0.weight"])
    loaded = load(tmp_path / "run", network=network)
    for model in (result.model, loaded):
        assert model.score(held["x_test"], held["y_test"]) == result.metrics["accuracy"]
    result.model.export(tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    logits, _ = program(torch.from_numpy(held["x_test"]))
    assert np.array_equal(logits.argmax(1).numpy(), result.model.numbers(held["x_test"]))


def test_constants_that_clients_are_asked_for_come_first() -> None:
    data = Arrays(**tiny.arrays(), normalisation="standard")
    both = [
        experiment(w, data=data, validation=0.2, server_per_class=1) for w in ("anew", "memory")
    ]
    assert far(*map(run, both)) < 1e-6


def test_the_first_line_says_so() -> None:
    said = io.StringIO()
    run(experiment("memory"), callbacks=[Progress(Console(file=said, width=300))])
    # 42 training and 12 test samples, 36 numbers of 4 bytes each.
    line = "3 rounds, features computed once (36 a sample, 7.6 KB, memory)"
    assert line in said.getvalue().splitlines()[0]


def test_on_disk_they_are_there_for_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDTAIL_DATA", str(tmp_path))
    first = run(experiment("disk"))
    assert far(first, run(experiment("memory"))) < 1e-6
    setting = prepare(experiment("disk", seed=1)).with_features()
    body: Any = setting.base.module[0]  # type: ignore[index]
    tried = body.seen
    data = setting.federation.client(0)
    data.batch(torch.arange(len(data)))
    setting.federation.test_batch(0, 500)
    assert body.seen == tried
    assert run(experiment("disk", workers=2)).digest == first.digest
    assert len(list((tmp_path / CACHE).iterdir())) == 2  # training and test samples


def test_another_network_has_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTAIL_DATA", str(tmp_path))
    for model in (network(), network(shift=1.0)):  # in which no tensor differs
        far_from = run(experiment("anew", model))
        assert far(run(experiment("disk", model)), far_from) < 1e-6


def store(key: str) -> FeatureStore:
    return FeatureStore(nn.Flatten(), 2, torch.arange(0), 200, torch.device("cpu"), key)


def test_a_row_that_was_half_written_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDTAIL_DATA", str(tmp_path))
    x, constants = torch.rand(200, 2), (torch.zeros(1), torch.ones(1))
    asked: list[int] = []

    def inputs(positions: Tensor) -> Tensor:
        asked.extend(positions.tolist())
        return x[positions]

    every = torch.arange(200)
    assert store("a").features(every, every, inputs, constants).equal(x)
    assert asked == list(range(200))
    (rows,) = tmp_path.rglob("rows")
    content = bytearray(rows.read_bytes())
    content[8 * 70 : 8 * 70 + 4] = bytes(4)  # the first number of row 70
    rows.write_bytes(bytes(content))
    asked.clear()
    assert store("a").features(every, every, inputs, constants).equal(x)
    assert asked == list(range(64, 128))  # with its neighbours, as it was the first time
    asked.clear()
    some = torch.tensor([3, 199])
    assert store("b").features(some, some, inputs, constants).equal(x[some])
    assert asked == [*range(64), *range(192, 200)]


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTAIL_DATA", str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(Exception, match=r"features take 1.6 KB, but .* has 1000 B left: set FEDT"):
        one, constants = torch.arange(1), (torch.zeros(1), torch.ones(1))
        store("a").features(one, one, lambda positions: positions, constants)


def test_too_much_for_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtail.once.memory", lambda: 10_000)
    setting = prepare(experiment("memory")).with_features()
    assert setting.features == (
        "features computed every time: they would take 7.6 KB of 9.8 KB, and features=disk keeps "
        "them in files"
    )


def test_the_head_alone_has_the_names_that_it_had() -> None:
    inner = nn.Sequential(nn.Dropout(0.3), nn.Linear(36, 4))
    model = SplitModel(nn.Sequential(Body(), inner))
    x = torch.rand(5, 3, 8, 8)
    alone = head_alone(model, x)
    assert alone.names() == model.names() == {"1.1.weight", "1.1.bias"}
    assert torch.equal(alone.eval()(Encoder(model)(x)), model.eval()(x))
    assert [type(layer) for layer in alone.module[0]] == [nn.Dropout, nn.Linear]  # type: ignore[index]


def test_fedavg_sends_the_head_alone() -> None:
    result = run(experiment("memory", method=FedAvg(local=tiny.quick())))
    assert result.metrics["bytes_down"] == 4 * 4 * (4 * 36 + 4)  # four clients, float32


def test_a_head_in_closed_form_comes_of_the_same_features() -> None:
    both = [experiment(w, finish="closed-form", validation=0.2) for w in ("anew", "memory")]
    assert far(*map(run, both)) < 1e-5  # a linear system amplifies last bits
