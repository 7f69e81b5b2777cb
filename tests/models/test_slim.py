"""Blocks at a part of their width, and the singular values that compare them."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from fedtail import FedtailError
from fedtail.models import ModelSpec, SplitModel, experts
from fedtail.models.lora import merged_model, with_lora
from fedtail.models.slim import Slim, last_block, top_singular_value, transmitting_matrix


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_linear_layer_by_hand() -> None:
    # Half of two rows and two columns: 1 · 5; the bias of row 0 is 10.
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        layer.bias.copy_(torch.tensor([10.0, 20.0]))
    assert Slim(layer, 0.5)(torch.tensor([[5.0, 7.0]])).tolist() == [[15.0]]


def test_a_convolution_is_cut_to_its_first_channels() -> None:
    conv = nn.Conv2d(4, 8, 3, padding=1)
    x = drawn(2, 4, 5, 5)
    weight, bias = conv.weight[:2, :1], conv.bias
    assert bias is not None
    expected = nn.functional.conv2d(x[:, :1], weight, bias[:2], padding=1)
    torch.testing.assert_close(Slim(conv, 0.25)(x), expected)


def test_a_part_of_a_layer_with_lora_is_that_part_of_the_merged_one() -> None:
    body = nn.Sequential(OrderedDict(conv=nn.Conv2d(4, 8, 3, padding=1), pool=nn.Flatten()))
    model = with_lora(SplitModel(nn.Sequential(body, nn.Linear(200, 2))), "lora:r=2")
    with torch.no_grad():
        for name, tensor in model.live():
            tensor.copy_(drawn(*tensor.shape, seed=len(name)))
    plain = merged_model(model).module
    found, expected = (
        Slim(net.get_submodule("0.conv"), 0.25)(drawn(2, 4, 5, 5)) for net in (model.module, plain)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("resnet8", (3, 8, 8)),
        ("resnet32", (3, 8, 8)),
        ("resnet56", (3, 8, 8)),
        ("resnet18", (3, 32, 32)),
        ("balancefl_resnet8", (3, 8, 8)),
        ("small_cnn", (3, 8, 8)),
        ("digits_cnn", (1, 8, 8)),
        ("mlp", (4,)),
    ],
)
def test_the_last_block_of_every_network_can_be_slimmed(name: str, shape: tuple[int, ...]) -> None:
    # Prepare
    model = ModelSpec.registry[name]().build(shape, 3)
    model.train()
    block = model.module.get_submodule(last_block(model))
    slim = Slim(block, 0.25)
    seen: list[Tensor] = []
    hook = block.register_forward_pre_hook(lambda layer, args: seen.append(args[0].detach()))
    full = []
    end = block.register_forward_hook(lambda layer, args, out: full.append(out))
    model(drawn(2, *shape))
    hook.remove()
    end.remove()
    before = model.tensors()

    # Execute
    out = slim(seen[0])
    torch.autograd.backward(out.sum())

    # Assert: a quarter of the channels, the same places; statistics and counters did not move.
    assert out.shape[1] == round(full[0].shape[1] / 4)
    assert out.shape[2:] == full[0].shape[2:]
    assert all(torch.equal(before[n], t) for n, t in model.tensors().items())
    # The first quarter of each weight learns, the rest does not.
    weight = next(p for p in block.parameters() if p.ndim > 1)
    assert weight.grad is not None
    kept = round(weight.shape[0] / 4)
    assert bool(weight.grad[:kept].any())
    assert not bool(weight.grad[kept:].any())


def test_at_full_width_it_is_the_block() -> None:
    model = ModelSpec.registry["resnet32"]().build((3, 8, 8), 3)
    block = model.module.get_submodule("layer3")
    x = drawn(2, 32, 4, 4).abs()
    model.train()
    narrow = Slim(block, 1.0)(x)
    torch.testing.assert_close(narrow, block(x))


def test_the_last_block_of_a_residual_network_is_its_last_stage() -> None:
    assert last_block(ModelSpec.registry["resnet8"]().build((3, 8, 8), 3)) == "layer3"
    assert last_block(ModelSpec.registry["resnet18"]().build((3, 32, 32), 3)) == "layer4"
    assert last_block(ModelSpec.registry["mlp"]().build((4,), 3)) == "fc2"


def test_a_model_without_a_block_is_refused() -> None:
    with pytest.raises(FedtailError, match="no block with weights before its classifier 'fc'"):
        last_block(ModelSpec.registry["mlp"](hidden=()).build((4,), 3))


def test_layers_that_cannot_be_cut_are_refused_by_name() -> None:
    grouped = nn.Sequential(OrderedDict(mix=nn.Conv2d(4, 4, 3, groups=2)))
    with pytest.raises(FedtailError, match="'mix', a Conv2d, cannot be slimmed"):
        Slim(grouped, 0.5)
    with pytest.raises(FedtailError, match="'0', a GroupNorm, cannot be slimmed"):
        Slim(nn.Sequential(nn.GroupNorm(2, 4)), 0.5)


def test_a_list_of_experts_is_refused() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model = experts(SplitModel(net), "1", 2)
    with pytest.raises(FedtailError, match="only a list of its parts"):
        Slim(model.module.get_submodule(last_block(model)), 0.5)


# Transmitting matrices


def test_a_transmitting_matrix_by_hand() -> None:
    # Two channels in, one out, two places: (1 · 5 + 2 · 7) / 2 and (3 · 5 + 4 · 7) / 2.
    before = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    after = torch.tensor([[[5.0, 7.0]]])
    assert transmitting_matrix(before, after).tolist() == [[[9.5], [21.5]]]


def test_features_without_places_have_one() -> None:
    # σ of the rank-one matrix x yᵀ is ‖x‖ ‖y‖: (3, 4) and (5, 12).
    matrix = transmitting_matrix(torch.tensor([[3.0, 4.0]]), torch.tensor([[5.0, 12.0]]))
    assert matrix.tolist() == [[[15.0, 36.0], [20.0, 48.0]]]
    assert top_singular_value(matrix).tolist() == pytest.approx([65.0])


@pytest.mark.parametrize("places", [(4,), (4, 4), (2, 4, 4)])
def test_a_larger_input_is_averaged_down(places: tuple[int, ...]) -> None:
    small = tuple(p // 2 for p in places)
    before, after = torch.ones(2, 3, *places), torch.ones(2, 5, *small)
    assert torch.equal(transmitting_matrix(before, after), torch.ones(2, 3, 5))


def test_a_block_that_flattens_is_refused() -> None:
    with pytest.raises(FedtailError, match="has no transmitting matrix"):
        transmitting_matrix(torch.ones(1, 2, 3, 3), torch.ones(1, 4))


# Singular values


def test_power_iteration_against_the_decomposition() -> None:
    # Positive entries, as after ReLU: the largest singular value stands out.
    matrices = drawn(6, 5, 7).abs()
    expected = torch.linalg.svdvals(matrices)[:, 0]
    torch.testing.assert_close(top_singular_value(matrices, 10), expected, rtol=1e-5, atol=0)


def test_ten_iterations_are_near_without_a_gap_too() -> None:
    # Signs mixed: u converges with (σ_2/σ_1)^20, the value with its square, from below.
    matrices = drawn(6, 5, 7, seed=1)
    expected = torch.linalg.svdvals(matrices)[:, 0]
    found = top_singular_value(matrices, 10)
    assert bool((found <= expected * (1 + 1e-5)).all())
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0)
    torch.testing.assert_close(top_singular_value(matrices, 500), expected, rtol=1e-4, atol=0)


def test_the_gradient_is_that_of_the_singular_value() -> None:
    ours = drawn(2, 4, 3).abs().requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    torch.autograd.backward(top_singular_value(ours, 50).sum())
    torch.autograd.backward(torch.linalg.svdvals(theirs)[:, 0].sum())
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_nothing_has_the_singular_value_zero_and_no_gradient() -> None:
    # Dead features: to divide by their norm would give NaN.
    matrices = torch.zeros(2, 4, 3, requires_grad=True)
    value = top_singular_value(matrices)
    torch.autograd.backward(value.sum())
    assert value.tolist() == [0.0, 0.0]
    assert matrices.grad is not None
    assert not bool(matrices.grad.any())
