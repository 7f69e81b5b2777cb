"""Sources that need no file: digits and synthetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtail.data.sources import Digits, Source, Synthetic
from fedtail.data.sources.digits import read_digits
from fedtail.rng import numpy_generator


def test_digits_are_read_from_the_file_of_scikit_learn_as_it_reads_them() -> None:
    ours, theirs = read_digits(), read_digits("no/such/file")
    for found, expected in zip(ours, theirs, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_digits_are_bytes_with_a_fixed_stratified_split() -> None:
    dataset = Digits().load()
    assert dataset.input_shape == (1, 8, 8)
    assert dataset.train.x.dtype == torch.uint8
    assert (len(dataset.train), len(dataset.test)) == (1438, 359)
    assert dataset.test.y.bincount().tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    images = dataset.train.x[torch.arange(1438)]
    assert int(images.max()) == 255
    assert images.to(torch.float64).div(255).mean().item() == pytest.approx(
        dataset.mean[0], abs=1e-4
    )
    assert images.to(torch.float64).div(255).std().item() == pytest.approx(dataset.std[0], abs=1e-4)
    torch.manual_seed(1)
    assert torch.equal(Digits().load().test.y, dataset.test.y)


def test_synthetic_follows_the_formula_for_one_client() -> None:
    dataset = Synthetic(lam=0.5, mu=2.0, clients=3, samples_per_client=10, seed=7).load()
    rng = numpy_generator(7, "data.synthetic", client=1)
    u, centre = rng.standard_normal(2) * np.array([0.5, 2.0])
    weight, bias = rng.standard_normal((60, 10)) + u, rng.standard_normal(10) + u
    v = rng.standard_normal(60) + centre
    x = v + rng.standard_normal((10, 60)) * np.sqrt(np.arange(1, 61.0) ** -1.2)
    y = (x @ weight + bias).argmax(1)
    # Nine of ten samples of each client train, so client 1 holds samples 9 to 17, and test 1.
    assert dataset.train.y[9:18].tolist() == y[:9].tolist()
    assert dataset.test.y[1] == y[9]
    inputs = dataset.train.x[torch.arange(9, 18)].numpy()
    np.testing.assert_allclose(inputs, x[:9], rtol=1e-6)
    assert dataset.client_train is not None and dataset.client_test is not None
    assert dataset.client_train.tolist() == [0] * 9 + [1] * 9 + [2] * 9
    assert dataset.client_test.tolist() == [0, 1, 2]
    assert dataset.classes == tuple("0123456789")


def test_synthetic_sizes_are_lognormal_and_do_not_depend_on_how_many_clients_there_are() -> None:
    few, more = Synthetic(clients=3).load(), Synthetic(clients=5).load()
    assert few.client_train is not None and more.client_train is not None
    sizes, more_sizes = np.bincount(few.client_train), np.bincount(more.client_train)
    assert sizes.min() >= 45
    assert sizes.tolist() == more_sizes[:3].tolist()
    assert torch.equal(few.train.y, more.train.y[: len(few.train)])


def test_equal_models_without_spread_and_other_seeds() -> None:
    assert not torch.equal(
        Synthetic(clients=2, samples_per_client=30).load().train.y,
        Synthetic(clients=2, samples_per_client=30, seed=1).load().train.y,
    )


@pytest.mark.parametrize("name", sorted(Source.registry))
def test_every_source_says_what_it_is_and_how_to_get_it(name: str) -> None:
    cls = Source.registry[name]
    assert cls.about.what
    assert cls.advice()
    assert all(field.description for field in cls.model_fields.values())


def test_default_models() -> None:
    expected = {
        "digits": "digits_cnn",
        "mnist": "cnn",
        "fashion_mnist": "cnn",
        "femnist": "cnn",
        "cifar10": "resnet8",
        "cifar100": "resnet8",
        "svhn": "resnet8",
        "synthetic": "mlp",
        "imu": "mlp",
        "speech_commands": "balancefl_resnet8",
        "imagenet_lt": "resnet50",
    }
    assert {name: Source.registry[name].default_model for name in expected} == expected
