"""The architectures, against the counts of the papers' own code (methods.md 4.5)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedtail.errors import FedtailError
from fedtail.models import (
    CNN,
    MLP,
    BalanceFLResNet8,
    McMahanCNN,
    ModelSpec,
    ResNet8,
    ResNet32,
    ResNet32Experts,
    ResNet50,
    ResNet56,
    SignalCNN,
    SmallCNN,
    SplitModel,
)

MNIST, CIFAR, LARGE = (1, 28, 28), (3, 32, 32), (3, 224, 224)


def empty(name: str, shape: tuple[int, ...], classes: int, **fields: Any) -> SplitModel:
    """Build without memory: only shapes are looked at."""
    with torch.device("meta"):
        model: SplitModel = ModelSpec.registry[name](**fields).build(shape, classes)
    return model


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "fields", "shape", "classes", "parameters"),
    [
        ("mlp", {}, MNIST, 10, 199_210),
        ("digits_cnn", {}, (1, 8, 8), 10, 13_706),
        # 7·16 + 16, 16·7·32 + 32, 32·7·64 + 64, twice 112 for the norms, 64·4 + 4
        ("signal_cnn", {}, (128,), 4, 18_628),
        ("mcmahan_cnn", {}, MNIST, 10, 1_663_370),
        ("mcmahan_cnn", {}, MNIST, 62, 1_690_046),
        ("cnn", {}, MNIST, 10, 1_199_882),
        ("cnn", {}, MNIST, 62, 1_206_590),
        ("resnet56", {}, CIFAR, 10, 591_322),
        ("resnet56", {}, CIFAR, 100, 614_452),
        ("resnet8", {}, CIFAR, 10, 1_227_594),
        ("resnet8", {}, CIFAR, 100, 1_250_724),
        ("resnet8", {"width": 16}, CIFAR, 10, 78_042),
        ("balancefl_resnet8", {}, CIFAR, 10, 3_549_770),
        ("balancefl_resnet8", {}, (1, 32, 32), 35, 3_561_443),
        ("balancefl_dnn", {}, (1800,), 8, 529_032),
        ("resnet32", {}, CIFAR, 10, 464_154),
        ("resnet32", {}, CIFAR, 100, 470_004),
        ("resnet32_experts", {"experts": 2}, CIFAR, 100, 530_512),
        ("resnet32_experts", {"experts": 3}, CIFAR, 100, 783_856),
        ("resnet32_experts", {"experts": 4}, CIFAR, 100, 1_037_200),
        ("resnet32_experts", {"experts": 5}, CIFAR, 100, 1_290_544),
        ("resnet18", {}, CIFAR, 10, 11_173_962),
        ("resnet18", {"stem": "imagenet"}, LARGE, 1000, 11_689_512),
        ("resnet50", {}, LARGE, 1000, 25_557_032),
        ("resnext50", {}, LARGE, 1000, 25_028_904),
    ],
)
def test_parameters(
    name: str, fields: dict[str, Any], shape: tuple[int, ...], classes: int, parameters: int
) -> None:
    assert size(empty(name, shape, classes, **fields)) == parameters


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("cnn", MNIST, 10, 1_201_172),
        ("cnn", MNIST, 62, 1_214_588),
        ("resnet56", CIFAR, 10, 593_892),
        ("resnet56", CIFAR, 100, 640_152),
    ],
)
def test_parameters_with_the_second_head_of_redgrape(
    name: str, shape: tuple[int, ...], classes: int, parameters: int
) -> None:
    model = empty(name, shape, classes).with_head("supplementary")

    assert size(model) == parameters
    assert sum(model.trainable()[name].numel() for name in model.parameter_names()) == parameters


def test_buffers() -> None:
    assert sum(b.numel() for b in empty("resnet56", CIFAR, 10).buffers()) == 9_050
    checkpoint = empty("balancefl_resnet8", CIFAR, 10).module.state_dict()
    assert sum(tensor.numel() for tensor in checkpoint.values()) == 3_553_749


@pytest.mark.parametrize(
    ("name", "fields", "shape", "width"),
    [
        ("mlp", {"hidden": (7,)}, (2, 3), 7),
        ("mlp", {"hidden": ()}, (6,), 6),
        ("signal_cnn", {"width": 8, "norm": "none"}, (8,), 32),
        ("signal_cnn", {"width": 8, "kernel": 3}, (50, 6), 32),
        ("small_cnn", {"width": 8}, (1, 8, 8), 32),
        ("small_cnn", {"width": 8, "norm": "batch"}, (3, 33, 20), 32),
        ("small_cnn", {"width": 8, "norm": "group"}, CIFAR, 32),
        ("digits_cnn", {}, (1, 8, 8), 64),
        ("mcmahan_cnn", {}, (3, 14, 15), 512),
        ("cnn", {}, (3, 13, 14), 128),
        ("resnet56", {}, (1, 8, 8), 256),
        ("resnet8", {"width": 4}, (1, 9, 8), 16),
        ("balancefl_resnet8", {}, (1, 8, 7), 512),
        ("balancefl_dnn", {}, (6, 5), 256),
        ("resnet32", {}, (3, 7, 8), 64),
        ("resnet32_experts", {}, (3, 7, 8), 144),
        ("resnet18", {}, (1, 8, 8), 512),
        ("resnet18", {"stem": "imagenet"}, CIFAR, 512),
        ("resnet50", {"stem": "cifar"}, (3, 8, 8), 2048),
        ("resnext50", {}, (3, 32, 32), 2048),
    ],
)
def test_every_model_runs_and_is_what_it_says(
    name: str, fields: dict[str, Any], shape: tuple[int, ...], width: int
) -> None:
    model = ModelSpec.registry[name](**fields).build(shape, 5)
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))

    model.check(x, 5)
    model.train()(x).sum().backward()

    assert (model.feature_dim, model.num_classes) == (width, 5)
    assert list(dict(model.everything())) == list(model.module.state_dict())
    assert all(parameter.grad is not None for parameter in model.trainable().values())


ROW = re.compile(r"^\| `(\w+)` \|.*?\| ([\d×]+) \| (\d+) \| ([\d,]+) \| (\d+) \|$", re.MULTILINE)


def test_the_reference_page_lists_every_model_with_its_sizes() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "models.md"
    rows = ROW.findall(page.read_text(encoding="utf-8"))
    ours = {name for name in ModelSpec.registry if _is_ours(name)}

    assert {name for name, *_ in rows} == ours - {"hf"}  # whose sizes are its own
    for name, shape, classes, parameters, features in rows:
        model = empty(name, tuple(map(int, shape.split("×"))), int(classes))
        assert size(model) == int(parameters.replace(",", "")), name
        assert model.feature_dim == int(features), name


def _is_ours(name: str) -> bool:
    # Pages of the documentation that are run as tests may have registered models of their own.
    return str(ModelSpec.registry[name].__module__).startswith("fedtail.models.")


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        (
            SmallCNN(),
            (1, 7, 8),
            r"'small_cnn' takes images .* at least 8x8 pixels, not .*\(1, 7, 8\)",
        ),
        (McMahanCNN(), (784,), r"'mcmahan_cnn' takes images .*not samples of shape \(784,\)"),
        (CNN(), (1, 5, 28), "at least 6x6"),
        (ResNet8(), (32, 32), "channels, height, width"),
        (ResNet50(), (3, 8, 8), "at least 32x32"),
        (MLP(), (), "at least one value"),
        (MLP(), (0, 4), "at least one value"),
        (SignalCNN(), (7,), r"'signal_cnn' takes signals .* at least 8 steps, not .*\(7,\)"),
        (SignalCNN(kernel=4), (8,), "model.kernel = 4 must be odd"),
        (ModelSpec.registry["digits_cnn"](), MNIST, "8x8 pixels, not 28x28; 'small_cnn'"),
    ],
)
def test_a_wrong_shape_is_refused(spec: ModelSpec, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(FedtailError, match=message):
        spec.build(shape, 10)


def test_wrong_fields_are_refused() -> None:
    for fields in ({"width": 6}, {"norm": "layer"}, {"depth": 3}):
        with pytest.raises(FedtailError):
            SmallCNN.model_validate(fields)


def deviation(model: SplitModel, name: str) -> float:
    return float(model.module.get_parameter(name).detach().std())


def test_first_weights() -> None:
    torch.manual_seed(0)
    # CReFF: N(0, 2 / (k²·out)); 9·128 = 1152.
    creff = ResNet8().build(CIFAR, 10)
    assert deviation(creff, "layer2.0.body.conv1.weight") == pytest.approx(
        (2 / 1152) ** 0.5, rel=0.02
    )
    # BalanceFL: Kaiming normal, N(0, 2 / (k²·in)); 9·64 = 576. Its head: 2 / 512.
    balance = BalanceFLResNet8().build(CIFAR, 10)
    assert deviation(balance, "layer2.0.body.conv1.weight") == pytest.approx(
        (2 / 576) ** 0.5, rel=0.02
    )
    assert deviation(balance, "fc.weight") == pytest.approx((2 / 512) ** 0.5, rel=0.05)


def test_experts_are_initialised_like_the_rest() -> None:
    torch.manual_seed(0)
    model = ResNet32Experts().build(CIFAR, 10)

    # N(0, 2 / (k²·in)) with in = 48: the copies are drawn again by the same rule.
    name = "experts.2.layer3.4.body.conv2.weight"
    assert deviation(model, name) == pytest.approx((2 / (9 * 48)) ** 0.5, rel=0.03)


def test_option_a_shortcut_by_hand() -> None:
    # 2 channels to 4, stride 2: one zero channel on either side, pixels 0 and 2 of each row.
    shortcut = ResNet32().build(CIFAR, 10).module.get_submodule("layer2.0.shortcut")
    assert not list(shortcut.parameters())
    out = shortcut(torch.arange(16.0).reshape(1, 1, 4, 4).repeat(1, 16, 1, 1))

    assert out.shape == (1, 32, 2, 2)
    assert torch.equal(out[0, 8], torch.tensor([[0.0, 2.0], [8.0, 10.0]]))
    assert not out[0, :8].any() and not out[0, 24:].any()


def test_shortcuts_of_redgrape_and_creff_have_parameters() -> None:
    for spec, where in ((ResNet56(), "layer1.0.shortcut"), (ResNet8(), "layer2.0.shortcut")):
        assert list(spec.build(CIFAR, 10).module.get_submodule(where).parameters())


def test_the_balancefl_scale_multiplies_the_logits() -> None:
    one, two = BalanceFLResNet8().build((3, 8, 8), 4), BalanceFLResNet8(scale=2).build((3, 8, 8), 4)
    two.load(one.tensors())
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    assert torch.allclose(two.eval()(x), 2 * one.eval()(x))


def test_a_window_of_several_sensors_is_read_along_time() -> None:
    # A kernel of one step that sums the two sensors: on (time, channels) the sums are 1+10, 2+20.
    model = SignalCNN(width=4, kernel=1, norm="none").build((8, 2), 2)
    conv = model.get_submodule("module.conv1")
    assert isinstance(conv, nn.Conv1d) and conv.bias is not None
    nn.init.ones_(conv.weight)
    nn.init.zeros_(conv.bias)
    x = torch.stack([torch.arange(1.0, 9.0), 10 * torch.arange(1.0, 9.0)], dim=1)[None]
    seen = conv(model.get_submodule("module.channels")(x))
    assert seen[0, 0].tolist() == [11.0 * t for t in range(1, 9)]
