"""The traffic counters of whole runs against RedGrape's Table 5: FedAvg, CReFF and RedGrape.

The table gives the most that one client and the server send each other in one round, in millions of
parameters. Here one client holds a sample of every class, two rounds are run, and the bytes of the
second are those that the loop wrote into the record. With P parameters, C classes and W = C (d + 1)
numbers in the head:

    FedAvg    2 P
    CReFF     2 P + 2 C W    as printed; really 2 P + W + C W, since only the new head goes down
    RedGrape  2 (P + W) + 2 C W

Beside parameters travel BatchNorm's buffers, 8 bytes for the number of each class whose gradient is
sent, and scalars of 8 bytes. The table counts none of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import tiny

from fedtail import Arrays, CReFF, FedAvg, Method, RedGrape, run
from fedtail.models import CNN, ModelSpec, ResNet56


class Column(NamedTuple):
    """A data set of Table 5: the model that was run on it, and what is printed, in millions."""

    spec: ModelSpec
    # The parameters of ResNet-56 do not depend on the size of the images: small ones are faster.
    shape: tuple[int, ...]
    classes: int
    parameters: int
    head: int
    fedavg: str
    creff: str
    redgrape: str


COLUMNS = {
    "MNIST-LT": Column(CNN(), (1, 28, 28), 10, 1_199_882, 10 * 129, "2.400", "2.426", "2.428"),
    "CIFAR-10-LT": Column(ResNet56(), (3, 8, 8), 10, 591_322, 10 * 257, "1.183", "1.234", "1.239"),
    "CIFAR-100-LT": Column(
        ResNet56(), (3, 8, 8), 100, 614_452, 100 * 257, "1.229", "6.368", "6.420"
    ),
}


@pytest.fixture(params=COLUMNS)
def column(request: pytest.FixtureRequest) -> Column:
    return COLUMNS[request.param]


def sent(method: Method[Any], column: Column) -> tuple[int, int]:
    """Return the bytes down and up of the second round, without buffers and scalars."""
    chosen = tiny.experiment(method, column.spec, data=one_of_each(column), rounds=2, per_round=1)
    record = run(chosen).history[-1]
    assert record["traffic"] == {"0": [record["bytes_down"], record["bytes_up"]]}
    model = column.spec.build(column.shape, column.classes)
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    scalars = {"redgrape": 6}.get(method.name, 2)
    return record["bytes_down"] - buffers, record["bytes_up"] - buffers - 8 * scalars


def one_of_each(column: Column) -> Arrays:
    y = np.arange(column.classes)
    x = np.random.default_rng(0).integers(0, 255, (len(y), *column.shape), dtype=np.uint8)
    owner = np.zeros_like(y)
    return Arrays(x, y, x[:1], y[:1], client_train=owner, normalisation="none")


def millions(nbytes: int) -> str:
    """Return bytes as the table prints them: millions of parameters of 4 bytes."""
    assert nbytes % 4 == 0
    return f"{nbytes / 4 / 1e6:.3f}"


STEP = tiny.quick(steps=1)


def test_fedavg(column: Column) -> None:
    down, up = sent(FedAvg(local=STEP), column)
    assert down == up == 4 * column.parameters
    assert millions(down + up) == column.fedavg


def test_creff(column: Column) -> None:
    creff = CReFF(features=1, match_steps=1, head_epochs=1, local=STEP)
    down, up = sent(creff, column)
    numbers_of_classes = 8 * column.classes
    gradients = up - numbers_of_classes - 4 * column.parameters
    assert down == 4 * (column.parameters + column.head)
    assert gradients == 4 * column.classes * column.head
    # The printed row follows from the counted parts if the class gradients are charged twice, the
    # second time in place of the head that goes down.
    printed = 2 * 4 * column.parameters + 2 * gradients
    # 6.368904 is printed as 6.368, cut off rather than rounded.
    assert millions(printed) == {"6.368": "6.369"}.get(column.creff, column.creff)


def test_redgrape(column: Column) -> None:
    # The second round, because the first has no prototypes to send.
    down, up = sent(RedGrape(per_class=1, local=STEP), column)
    numbers_of_classes = 8 * column.classes
    assert down == up
    assert down - numbers_of_classes == 4 * (
        column.parameters + column.head + column.classes * column.head
    )
    assert millions(down + up - 2 * numbers_of_classes) == column.redgrape
