"""The page about other libraries is what the committed file says."""

from __future__ import annotations

import copy
import sys

import pytest
from matplotlib.patches import Rectangle

from benchmarks.peers import page
from benchmarks.peers.adapters import Bare, Fedtail, Peer, Together, torchvision_shim
from benchmarks.peers.workloads import WORKLOADS


def test_the_page_is_what_the_file_says() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.text(page.numbers())


def test_the_picture_shows_every_number() -> None:
    found = page.numbers()["numbers"]
    (axes,) = page.draw(found).axes
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    heights = sorted(round(bar.get_height(), 9) for bar in bars)
    rates = [
        cell["samples_per_cpu_second"] / w["peers"]["bare"]["samples_per_cpu_second"]
        for w in found["workloads"].values()
        for cell in w["peers"].values()
    ]
    assert heights == sorted(round(rate, 9) for rate in rates)
    assert page.PICTURE.is_file()


def test_a_loss_is_said() -> None:
    found = copy.deepcopy(page.numbers()["numbers"])
    workload = found["workloads"]["resnet8"]
    workload["peers"]["fluke"]["samples_per_cpu_second"] = (
        10 * page.own(workload)["samples_per_cpu_second"]
    )
    text = page.text({"numbers": found, "environment": page.numbers()["environment"]})
    assert "fluke on ResNet-8, width 16" in text
    assert "**10.00**" in text


@pytest.mark.parametrize("name", WORKLOADS)
def test_everybody_has_the_same_network_and_samples(name: str) -> None:
    workload = WORKLOADS[name]
    size = sum(p.numel() for p in workload.build().parameters())
    assert size == workload.parameters
    peers: list[Peer] = [Bare(workload), Fedtail(workload)]
    assert {sum(p.numel() for p in peer.network.parameters()) for peer in peers} == {size}
    found = page.numbers()["numbers"]["workloads"][name]
    assert (found["parameters"], found["batch"]) == (size, workload.batch)


@pytest.mark.parametrize("name", WORKLOADS)
def test_clients_together_train_what_they_train_alone(name: str) -> None:
    # Else the faster of the two rows would be faster at something else. Batched products add in
    # another order: 1e-5 is far below what two rounds move the weights by (5e-4 at the least).
    alone, together = Fedtail(WORKLOADS[name]), Together(WORKLOADS[name])
    start = {n: t.clone() for n, t in alone.state.model.items() if t.is_floating_point()}
    for peer in (alone, alone, together, together):
        peer.round()
    one, other = alone.state.model, together.state.model
    assert max(float((one[n] - t).abs().max()) for n, t in start.items()) > 1e-4
    assert max(float((one[n] - other[n]).abs().max()) for n in start) < 1e-5


def test_a_round_takes_time_and_trains() -> None:
    peer = Bare(WORKLOADS["logistic"])
    before = next(peer.network.parameters()).detach().clone()
    cpu, wall = peer.round()
    assert cpu > 0 and wall > 0
    assert not before.equal(next(peer.network.parameters()))


def test_the_empty_torchvision_is_gone_afterwards() -> None:
    assert "torchvision" not in sys.modules
    with torchvision_shim():
        import torchvision  # type: ignore[import-not-found]  # it is not installed: a shim

        class Set(torchvision.datasets.CIFAR10):  # type: ignore[misc]  # nor has types
            """What FedLab's data sets do when they are imported."""

    assert "torchvision" not in sys.modules
