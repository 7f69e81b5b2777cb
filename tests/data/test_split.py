"""Splits as recipes: made, written, rebuilt, measured and drawn."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fedtail.data.longtail import Exponential, NoTail, Tail
from fedtail.data.partitions import IID, Dirichlet, Natural, Partition
from fedtail.data.plot import draw_split, terminal
from fedtail.data.split import Split, make_split
from fedtail.data.statistics import class_table, statistics
from fedtail.errors import FedtailError
from fedtail.rng import numpy_generator

Y = numpy_generator(0, "labels").permutation(np.repeat(np.arange(4), 100))
OWNER = np.arange(400) % 13


def split_of(
    tail: Tail | None = None,
    partition: Partition | None = None,
    clients: int | None = 8,
    seed: int = 0,
    server: int = 0,
) -> Split:
    return make_split(
        Y,
        5,
        tail or Exponential(imbalance=10),
        partition or Dirichlet(alpha=0.3),
        clients,
        seed,
        owner=OWNER,
        server_per_class=server,
    )


def shown(renderable: object) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_positions_point_into_the_original_labels() -> None:
    split = split_of()
    # 100 * 10^(-c/4) for c = 0..3; the fifth class has no samples.
    assert np.bincount(Y[split.kept], minlength=5).tolist() == [100, 56, 31, 17, 0]
    assert np.array_equal(np.sort(np.concatenate(split.parts)), split.kept)
    assert split.counts.shape == (8, 5)
    assert split.counts.sum(axis=0).tolist() == [100, 56, 31, 17, 0]


def test_statistics_by_hand() -> None:
    # The global mix is 1/2, 1/3, 1/6. Client 0 has 1, 0, 0: (1/2 + 1/3 + 1/6) / 2 = 1/2.
    # Client 1 has 1/4, 1/2, 1/4: (1/4 + 1/6 + 1/12) / 2 = 1/4.
    y = np.array([0, 0, 0, 1, 1, 2])
    parts = [np.array([0, 1]), np.array([2, 3, 4, 5])]
    figures = statistics(y, parts, 4)
    assert figures.sizes.tolist() == [2, 4]
    assert figures.classes.tolist() == [1, 3]
    assert figures.total_variation == pytest.approx([1 / 2, 1 / 4])
    assert class_table(y, parts, 4).tolist() == [[2, 0, 0, 0], [1, 2, 1, 0]]


def test_digest_depends_on_borders_and_seed() -> None:
    split = split_of()
    assert split.digest == split_of().digest
    assert split.digest != split_of(seed=1).digest
    joined = Split(
        split.recipe, split.labels, 5, split.kept, [np.concatenate(split.parts)], split.server
    )
    assert split.digest != joined.digest


@pytest.mark.parametrize("name", [*Partition.registry])
def test_json_rebuilds_the_same_split(name: str) -> None:
    split = split_of(partition=Partition.model_validate({"name": name}), server=3)
    again = Split.from_json(split.to_json(), Y, 5, OWNER)
    assert again.recipe == split.recipe
    assert np.array_equal(again.server, split.server)
    assert all(np.array_equal(a, b) for a, b in zip(again.parts, split.parts, strict=True))


def test_json_is_for_people_too() -> None:
    content = json.loads(split_of().to_json())
    assert content["format"] == 1
    assert content["recipe"]["partition"] == {"name": "dirichlet", "alpha": 0.3, "min_size": 10}
    assert content["class_counts"] == [100, 56, 31, 17, 0]
    assert np.array(content["counts"]).shape == (8, 5)
    assert content["statistics"]["clients"] == 8


def test_json_of_other_labels_or_another_format_is_refused() -> None:
    text = split_of().to_json()
    with pytest.raises(FedtailError, match="digest differs"):
        Split.from_json(text, Y[::-1].copy(), 5, OWNER)
    with pytest.raises(FedtailError, match="has format 2"):
        Split.from_json(text.replace('"format": 1', '"format": 2'), Y, 5)
    with pytest.raises(FedtailError, match="not JSON"):
        Split.from_json("{", Y, 5)
    with pytest.raises(FedtailError, match="needs 'format'"):
        Split.from_json("[]", Y, 5)
    with pytest.raises(FedtailError, match=r"recipe.*alpha"):
        Split.from_json(text.replace('"alpha": 0.3', '"alpha": -1'), Y, 5)


def test_natural_clients_without_a_number() -> None:
    split = split_of(tail=NoTail(), partition=Natural(), clients=None)
    assert len(split) == 13
    assert all(len(set(OWNER[part])) == 1 for part in split.parts)


@pytest.mark.parametrize("ids", [OWNER * 7 - 3, OWNER + 10**6, OWNER * 2])
def test_natural_clients_may_have_any_numbers(ids: np.ndarray) -> None:
    # Counted or sorted, clients come in the order of their numbers and hold the same samples.
    plain = split_of(tail=NoTail(), partition=Natural(), clients=None)
    split = make_split(Y, 5, NoTail(), Natural(), None, 0, owner=ids)
    assert all(np.array_equal(a, b) for a, b in zip(split.parts, plain.parts, strict=True))
    assert split.owners.tolist() == sorted(set(ids.tolist()))


def test_a_large_split_is_a_small_file(monkeypatch: pytest.MonkeyPatch) -> None:
    split = split_of(tail=NoTail(), partition=Natural(), clients=None)
    names = [f"writer {k}" for k in range(13)]
    assert json.loads(split.to_json(names))["clients"] == names
    monkeypatch.setattr("fedtail.data.split.TABLE_CELLS", 5 * 13 - 1)
    content = json.loads(split.to_json(names))
    assert (content["clients"], content["counts"]) == (None, None)
    assert content["statistics"]["clients"] == 13


def test_wrong_input_is_named() -> None:
    with pytest.raises(FedtailError, match="'dirichlet' needs the number of clients"):
        split_of(clients=None)
    with pytest.raises(FedtailError, match="'clients' = 0 is refused"):
        split_of(clients=0)
    with pytest.raises(FedtailError, match="400 labels but 3 client numbers"):
        make_split(Y, 5, NoTail(), IID(), 2, 0, owner=np.arange(3))
    with pytest.raises(FedtailError, match="label 3 is beyond the 2 classes"):
        make_split(Y, 2, NoTail(), IID(), 2, 0)


def test_server_takes_what_the_tail_dropped_first() -> None:
    plain, split = split_of(), split_of(server=20)
    # Class 0 lost nothing to the tail, so 20 of its 100 are held out; the others lost over 20 each.
    assert np.bincount(Y[split.server], minlength=5).tolist() == [20, 20, 20, 20, 0]
    assert np.bincount(Y[split.kept], minlength=5).tolist() == [80, 56, 31, 17, 0]
    assert not np.intersect1d(split.server, np.concatenate(split.parts)).size
    assert set(split.kept) <= set(plain.kept)


def test_server_leaves_the_clients_half_of_a_class() -> None:
    split = split_of(tail=NoTail(), server=1000)
    assert np.bincount(Y[split.server], minlength=5).tolist() == [50, 50, 50, 50, 0]


def test_summary_and_tables_show_the_counts() -> None:
    split = split_of(server=2)
    assert split.summary()[0] == "8 clients, 202 samples, 4 of 5 classes, imbalance 5.8"
    text = shown(split.table(["ant", "bee", "cat", "dog", "elk"]))
    assert "ant" in text
    assert "server" in text
    assert "98" in text
    assert len(shown(terminal(split)).splitlines()) == 9


def test_long_and_wide_tables_are_condensed() -> None:
    y = np.tile(np.arange(100), 10)
    split = make_split(y, 100, NoTail(), IID(), 60, 0)
    text = shown(split.table())
    assert "90-99" in text
    assert "median" in text
    assert "and 35 more clients" in shown(terminal(split))


@pytest.mark.parametrize("clients", [1, 60])
def test_draw_writes_a_picture(tmp_path: Path, clients: int) -> None:
    split = split_of(partition=IID(), clients=clients)
    draw_split(split, tmp_path / "split.png", ["ant", "bee", "cat", "dog", "elk"])
    with Image.open(tmp_path / "split.png") as image:
        assert image.format == "PNG"
        assert min(image.size) > 300


def test_a_usual_split_takes_no_time() -> None:
    y = np.repeat(np.arange(10), 5000)
    begin = time.process_time()
    split = make_split(y, 10, NoTail(), Dirichlet(alpha=0.1), 100, 0)
    assert len(split.digest) == 64
    # Seconds of this process, whatever else the machine does. About 0.02.
    assert time.process_time() - begin < 1


def test_other_labels_are_no_same_split_where_positions_do_not_depend_on_them() -> None:
    labels = np.arange(40) % 4
    text = make_split(labels, 4, NoTail(), IID(), 5, seed=0).to_json()
    assert Split.from_json(text, labels, 4).digest in text
    with pytest.raises(FedtailError, match="cannot be rebuilt: its counts differ"):
        Split.from_json(text, (labels + 1) % 4, 4)


def test_one_client_is_no_less_than_no_distance_from_all() -> None:
    sizes = [142, 1, 1, 1, 1, 1, 1, 1, 1, 1]  # their shares add up to a little more than 1
    labels = np.repeat(np.arange(10), sizes)
    split = make_split(labels, 10, NoTail(), IID(), 1, seed=0)
    assert "global mix: 0.000" in split.summary()[-1]


def test_ranges_are_sums_of_counts() -> None:
    split, classes, clients = split_of(), np.array([0, 2, 5]), np.array([0, 3, 4, 8])
    by_class = np.add.reduceat(split.counts, classes[:-1], axis=1)
    assert np.array_equal(split.ranges(classes), by_class)
    by_both = np.add.reduceat(by_class, clients[:-1], axis=0)
    assert np.array_equal(split.ranges(classes, clients), by_both)


def test_many_clients_and_classes_are_shown_without_a_cell_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtail.data.plot.MOST_DRAWN", 50)
    split = make_split(np.tile(np.arange(100), 10), 100, NoTail(), IID(), 60, 0)
    shown(split.table())
    shown(terminal(split))
    draw_split(split, tmp_path / "split.svg")
    assert "counts" not in vars(split)
    text = (tmp_path / "split.svg").read_text()
    assert "samples of up to 2 clients and 2 classes" in text
