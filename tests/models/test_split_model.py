"""Any module seen as features and classifier."""

from __future__ import annotations

import copy
import gc
import pickle
import time
import weakref

import pytest
import torch
from torch import Tensor, nn

from fedtail.errors import FedtailError
from fedtail.models import DigitsCNN, SplitModel


class Mine(nn.Module):
    """A user's module: BatchNorm, a frozen and a tied parameter, a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.first = nn.Linear(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.first_again = self.first
        self.shift = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(x))) + self.shift
        logits: Tensor = self.fc(input=hidden)
        return logits


@pytest.fixture
def model() -> SplitModel:
    torch.manual_seed(0)
    return SplitModel(Mine(), "fc")


def batch(size: int = 6) -> Tensor:
    return torch.randn(size, 5, generator=torch.Generator().manual_seed(1))


def test_logits_are_the_classifier_of_the_features(model: SplitModel) -> None:
    out = model.eval().output(batch())

    assert torch.equal(out.logits, model.classifier(out.features))
    assert torch.equal(out.logits, model(batch()))
    assert torch.equal(out.features, model.features(batch()))
    assert out.experts is None
    assert (model.num_classes, model.feature_dim) == (3, 4)
    assert list(model.heads) == [model.module.fc]
    assert list(model.head_names) == ["fc"]


def test_features_that_nobody_reads_are_not_there(model: SplitModel) -> None:
    out = model.eval().output(batch(), features=False)

    assert torch.equal(out.logits, model.output(batch()).logits)
    assert out.features.numel() == 0


def test_the_gradient_reaches_the_features(model: SplitModel) -> None:
    out = model.output(batch())
    (gradient,) = torch.autograd.grad(out.logits.sum(), out.features)

    # d(sum of logits)/d(features) is the sum of the classifier's rows, for each sample.
    rows = model.module.get_parameter("fc.weight").sum(0)
    assert torch.allclose(gradient, rows.expand(6, 4))


def test_the_classifier_is_the_last_linear_that_was_registered() -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Sequential(nn.Dropout(), nn.Linear(4, 3)))

    assert SplitModel(net).classifier_name == "2.1"
    assert SplitModel(nn.Linear(5, 3)).num_classes == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SplitModel(nn.Sequential(nn.ReLU())), "has no nn.Linear"),
        (lambda: SplitModel(nn.Sequential(nn.Linear(2, 2)), "head"), "no layer 'head'.*it has: 0"),
        (lambda: SplitModel(nn.Sequential(nn.ReLU()), "0").num_classes, "no 'out_features'"),
    ],
)
def test_a_model_without_classifier_is_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(FedtailError, match=message):
        make()


def test_tensors_are_those_of_state_dict(model: SplitModel) -> None:
    moving = model.tensors()
    tensors = model.whole(moving)

    assert tensors.keys() == model.module.state_dict().keys()
    # What needs no gradient is a part of the architecture: it is not sent.
    assert model.names() == moving.keys() == tensors.keys() - {"shift"}
    assert "first_again.weight" in tensors
    assert "scratch" not in tensors
    assert tensors["norm.num_batches_tracked"].dtype == torch.int64
    fresh = Mine()
    fresh.load_state_dict(tensors)
    assert torch.equal(fresh.eval()(batch()), model.eval()(batch()))


def test_tensors_are_copies_and_load_puts_them_back(model: SplitModel) -> None:
    before = model.tensors()
    held = model.module.get_parameter("fc.weight")
    model.train()(batch())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert int(model.tensors()["norm.num_batches_tracked"]) == 1

    model.load(before)

    assert all(torch.equal(before[name], tensor) for name, tensor in model.tensors().items())
    assert held is model.module.get_parameter("fc.weight")


def test_load_refuses_other_names_and_shapes(model: SplitModel) -> None:
    tensors = model.tensors()

    with pytest.raises(FedtailError, match=r"do not match in fc\.bias"):
        model.load({name: t for name, t in tensors.items() if name != "fc.bias"})
    # A row of shape (1,) would broadcast without a word.
    with pytest.raises(FedtailError, match=r"'fc\.bias' has the shape \(3,\).* not \(1,\)"):
        model.load({**tensors, "fc.bias": torch.zeros(1)})


def test_load_follows_a_change_of_type(model: SplitModel) -> None:
    tensors = model.tensors()
    model.double()
    model.load(tensors)

    assert model.tensors()["norm.running_var"].dtype == torch.float64


def test_tensors_are_contiguous_whatever_the_memory_format() -> None:
    model = DigitsCNN().build((3, 8, 8), 10)
    for conv in model.modules():
        if isinstance(conv, nn.Conv2d):
            conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
    assert not model.module.get_parameter("conv2.weight").is_contiguous()

    assert all(tensor.is_contiguous() for tensor in model.tensors().values())


def test_a_tied_parameter_has_each_name_and_is_trained_once(model: SplitModel) -> None:
    twice = {"first.weight", "first.bias", "first_again.weight", "first_again.bias"}
    others = {"fc.weight", "fc.bias", "norm.weight", "norm.bias"}

    assert model.parameter_names() == twice | others
    assert model.trainable().keys() == others | {"first.weight", "first.bias"}
    assert model.trainable()["fc.bias"] is model.module.get_parameter("fc.bias")


def test_batch_norms(model: SplitModel) -> None:
    assert model.batch_norms() == [model.module.norm]


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_copy_reads_its_own_features(model: SplitModel, way: str) -> None:
    model.output(batch())
    twin = copy.deepcopy(model) if way == "deepcopy" else pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(2)

    ours, theirs = model.eval().output(batch()), twin.eval().output(batch())

    assert torch.equal(theirs.logits, twin.classifier(theirs.features))
    assert torch.equal(ours.logits, model.classifier(ours.features))
    assert not torch.equal(ours.features, theirs.features)


def test_nothing_of_a_pass_is_kept(model: SplitModel) -> None:
    out = model.output(batch())
    features = weakref.ref(out.features)
    del out
    gc.collect()

    assert features() is None
    assert not model.classifier._forward_pre_hooks


def test_no_hook_is_left_after_an_error(model: SplitModel) -> None:
    with pytest.raises(RuntimeError):
        model.output(torch.zeros(2, 7))

    assert not model.classifier._forward_pre_hooks


def test_no_grad(model: SplitModel) -> None:
    with torch.no_grad():
        assert not model.output(batch()).features.requires_grad


def test_a_second_head_stands_beside_the_first(model: SplitModel) -> None:
    two = model.with_head("extra")
    features = two.eval().features(batch())
    before = two(batch())

    assert list(two.tensors())[-2:] == ["extra.weight", "extra.bias"]
    assert {"extra.weight", "extra.bias"} <= two.parameter_names() & two.trainable().keys()
    assert two.extra_heads["extra"](features).shape == (6, 3)
    assert not torch.equal(two.tensors()["extra.weight"], two.tensors()["fc.weight"])
    tensors = two.tensors()
    tensors["extra.weight"] += 1
    two.load(tensors)
    assert torch.equal(two(batch()), before)
    assert torch.equal(two.tensors()["extra.weight"], tensors["extra.weight"])
    assert "extra.weight" not in model.tensors()


@pytest.mark.parametrize("name", ["fc", "keys", "a.b", ""])
def test_a_second_head_needs_a_name_of_its_own(model: SplitModel, name: str) -> None:
    with pytest.raises(FedtailError, match="cannot be called"):
        model.with_head(name)


class Odd(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> object:
        match self.how:
            case "softmax":
                return self.fc(x).softmax(1)
            case "tuple":
                return self.fc(x), x
            case "uncalled":
                return nn.functional.linear(x, self.fc.weight)
            case "tokens":
                return self.fc(x[:, None]).mean(1)
            case "spread":
                return self.fc(x)[:, None]
        return self.fc(x)


def test_check_lets_a_good_model_pass_and_leaves_it_as_it_was(model: SplitModel) -> None:
    model.train()
    model.module.get_submodule("first").eval()
    before = model.tensors()
    modes = [layer.training for layer in model.modules()]

    model.check(batch(), 3)

    assert [layer.training for layer in model.modules()] == modes
    assert all(torch.equal(before[name], tensor) for name, tensor in model.tensors().items())


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("softmax", "'fc' is not the last operation"),
        ("tuple", "returns a tuple"),
        ("uncalled", "without calling its 'fc'"),
        ("tokens", r"features of shape \(6, 1, 5\).*flatten"),
        ("spread", r"output of shape \(6, 1, 3\) where \(6, 3\)"),
    ],
)
def test_check_refuses_by_name(how: str, message: str) -> None:
    with pytest.raises(FedtailError, match=message):
        SplitModel(Odd(how)).check(batch(), 3)


def test_check_refuses_wrong_classes_and_inputs() -> None:
    with pytest.raises(FedtailError, match=r"\(6, 3\) where \(6, 10\)"):
        SplitModel(Odd("")).check(batch(), 10)
    with pytest.raises(FedtailError, match=r"does not take a batch of shape \(6, 7\)"):
        SplitModel(Odd("")).check(torch.zeros(6, 7), 3)


def test_loading_is_fast() -> None:
    model = DigitsCNN().build((1, 8, 8), 10)
    tensors = model.tensors()

    def best(times: int = 50) -> float:
        spent = []
        for _ in range(times):
            start = time.perf_counter()
            model.load(tensors)
            model.tensors()
            spent.append(time.perf_counter() - start)
        return min(spent)

    assert best() < 1e-3


def test_a_second_head_of_another_kind() -> None:
    base = SplitModel(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    own = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))
    model = base.with_head("projection", own)
    assert {"projection.0.weight", "projection.2.bias"} <= model.names()
    assert model.extra_heads["projection"](model.features(torch.zeros(7, 4))).shape == (7, 1)
    assert "projection.0.weight" not in base.names()
    with pytest.raises(FedtailError, match="plain name"):
        model.with_head("projection", own)


class Shifting(nn.Module):
    """Subtracts a mean of what it has seen, and keeps what it saw last: neither is saved."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)
        self.register_buffer("seen", torch.ones(4), persistent=False)
        self.register_buffer("cache", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.mul_(0.5).add_(0.5 * x.detach().mean(0))
            self.cache = x.detach()
        logits: Tensor = self.last(x - self.seen)
        return logits


def test_buffers_that_are_not_saved_are_put_back_with_the_tensors() -> None:
    # They are in no update: what one client has moved must not be there for the next.
    mine = SplitModel(Shifting()).eval()
    sent, x = mine.tensors(), torch.randn(5, 4)
    expected = mine(x)
    for model in (mine, copy.deepcopy(mine.train())):
        model.train()(x + 1)
        model.load(sent)
        assert torch.equal(model.module.seen, torch.ones(4))  # type: ignore[arg-type]
        assert model.module.cache is None
        assert torch.equal(model.eval()(x), expected)
    mine.train()(x + 1)
    again = copy.deepcopy(mine)  # a copy that is made in between has the first ones, too
    again.load(sent)
    assert torch.equal(again.eval()(x), expected)
