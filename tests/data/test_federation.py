"""A federation: one array of positions, gathered batch by batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtail.data.augment import Augment
from fedtail.data.dataset import Dataset, Samples
from fedtail.data.federation import Federation

# Five images of one pixel and two channels, in bytes.
IMAGES = torch.tensor(
    [[0, 255], [51, 204], [102, 153], [153, 102], [255, 0]], dtype=torch.uint8
).reshape(5, 2, 1, 1)
LABELS = torch.tensor([0, 2, 2, 0, 2])


def images(parts: list[list[int]], augment: Augment | None = None) -> Federation:
    samples = Samples(IMAGES, LABELS)
    dataset = Dataset(samples, samples, ("a", "b", "c"), mean=(0.5, 0.0), std=(0.5, 2.0))
    return Federation(dataset, [np.array(p, np.int64) for p in parts], augment)


def test_who_holds_what() -> None:
    made = images([[4, 1], [], [0, 2, 3]])
    assert len(made) == 3
    assert [len(made.client(k)) for k in range(3)] == [2, 0, 3]
    assert made.client(0).labels.tolist() == [2, 2]
    assert made.client(2).labels.tolist() == [0, 2, 0]


def test_counts_have_a_place_for_every_class() -> None:
    made = images([[4, 1], [], [0, 2, 3]])
    assert [made.counts(k).tolist() for k in range(3)] == [[0, 0, 2], [0, 0, 0], [2, 0, 1]]
    assert made.class_counts().tolist() == [2, 0, 3]


def test_samples_that_nobody_holds_do_not_count() -> None:
    assert images([[0], [1]]).class_counts().tolist() == [1, 0, 1]


def test_a_batch_is_normalised_channel_by_channel() -> None:
    # Bytes to 0..1, then (x - 0.5) / 0.5 in the first channel and x / 2 in the second:
    # image 4 is (1, 0): 1 and 0; image 1 is (0.2, 0.8): -0.6 and 0.4.
    x, y = images([[4, 1]]).client(0).batch(torch.tensor([1, 0]))
    assert x.shape == (2, 2, 1, 1)
    assert x.flatten().tolist() == pytest.approx([-0.6, 0.4, 1.0, 0.0])
    assert y.tolist() == [2, 2]


def test_the_shared_data_is_not_changed() -> None:
    before = IMAGES.clone()
    made = images([[0, 1, 2, 3, 4]], Augment(flip=True))
    x, _ = made.client(0).batch(torch.arange(5), torch.Generator().manual_seed(0))
    x.zero_()
    assert torch.equal(IMAGES, before)
    vectors = Samples(torch.ones(3, 2), torch.zeros(3, dtype=torch.int64))
    plain = Federation(Dataset(vectors, vectors, ("a",)), [np.arange(3)])
    x, _ = plain.client(0).batch(torch.arange(3))
    x.zero_()
    assert float(vectors.x[torch.arange(3)].sum()) == 6


def test_augmented_only_with_a_generator() -> None:
    made = images([[0, 1, 2, 3, 4]], Augment(cutout=1))
    index = torch.arange(5)
    plain, _ = made.client(0).batch(index)
    again, _ = made.client(0).batch(index)
    changed, _ = made.client(0).batch(index, torch.Generator().manual_seed(0))
    assert torch.equal(plain, again)
    assert torch.equal(changed, torch.zeros_like(changed))


def test_test_batches_cover_the_set_once() -> None:
    made = images([[0]])
    parts = [made.test_batch(start, start + 2) for start in (0, 2, 4)]
    assert [len(y) for _, y in parts] == [2, 2, 1]
    assert torch.cat([y for _, y in parts]).tolist() == LABELS.tolist()


def test_data_of_the_server() -> None:
    made = images([[0]])
    assert made.server_data(np.empty(0, np.int64)) is None
    held = made.server_data(np.array([4, 1]))
    assert held is not None
    assert held.y.tolist() == [2, 2]
    assert held.x.flatten().tolist() == pytest.approx([1.0, 0.0, -0.6, 0.4])


def test_data_without_constants_is_only_scaled() -> None:
    samples = Samples(IMAGES, LABELS)
    made = Federation(Dataset(samples, samples, ("a", "b", "c")), [np.array([4])])
    assert made.client(0).batch(torch.tensor([0]))[0].flatten().tolist() == [1.0, 0.0]


def test_many_clients_cost_one_number_a_sample() -> None:
    # 20,000 clients of one sample each: two arrays, no object a client.
    samples = Samples(torch.zeros(20_000, 1), torch.zeros(20_000, dtype=torch.int64))
    made = Federation(Dataset(samples, samples, ("a",)), np.split(np.arange(20_000), 20_000))
    assert len(made) == 20_000
    assert (made.order.numel(), made.offsets.numel()) == (20_000, 20_001)
    assert made.client(19_999).positions.tolist() == [19_999]


def test_no_client_at_all() -> None:
    assert len(images([])) == 0
    assert images([]).class_counts().tolist() == [0, 0, 0]


def test_few_inputs_are_normalised_once_with_the_bits_of_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = torch.tensor([1, 0])
    few = images([[4, 1]]).client(0)
    monkeypatch.setattr("fedtail.data.federation.FEW", 9)  # there are ten
    many = images([[4, 1]]).client(0)
    assert few.ready is not None and many.ready is None
    assert torch.equal(few.batch(index)[0], many.batch(index)[0])


def test_new_constants_normalise_anew() -> None:
    made, index = images([[4, 1]]), torch.tensor([0])
    before = made.client(0).batch(index)[0]
    made.standardise(torch.zeros(2), torch.ones(2))
    # The fifth image is 255, 0 in bytes.
    assert made.client(0).batch(index)[0].flatten().tolist() == [1.0, 0.0]
    told = {"mean": torch.tensor([0.5, 0.0]), "std": torch.tensor([0.5, 2.0])}
    assert torch.equal(made.client(0, told).batch(index)[0], before)


@pytest.mark.parametrize("augment", [Augment(), Augment(flip=True), Augment(cutout=1)])
def test_whether_batches_are_augmented(augment: Augment) -> None:
    assert images([[0]], augment).client(0).is_augmented == augment.on
