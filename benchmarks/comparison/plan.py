"""Which methods each protocol asks for, and what of it no result file has yet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.comparison.gather import DRAWS, protocol_of
from fedtail.methods import Method
from fedtail.study.spec import split_spec

PROTOCOLS = Path(__file__).parents[1] / "protocols"
TABLE = (
    "fedavg",
    "bsm",
    "bsm,prior=global",
    "bsm,prior=proxy",
    "closed-form,head=ncm",
    "closed-form,head=ridge",
    "closed-form,head=lda",
    "fedlc",
    "creff",
    "balancefl",
    "gbme",
    "redgrape",
    "ccvr",
    "slac",
)
"""The table on frozen features: the papers' systems, and what needs no training."""
SHORTLIST = (
    *("fedavg", "slac", "bsm", "lade", "balancefl", "creff", "redgrape", "gbme", "fedlc", "ccvr"),
    *("rucr", "fedloge", "fedetf", "gbme-p", "centralised"),
)
TRIALS = {"f": 8, "p": 8, "s": 4, "c": 0, "r": 8, "n": 4}
"""Of each method; none at all: the rate of the file and what else a method does by default."""
LEFT_OUT = {"clip2fl", "probe"}
"""Not compared: what a pretrained teacher knows of classes, others must learn; a probe is none."""
NEED_IMAGES = {"fedyoyo", "paco"}
"""They train on two views of an image: nothing for features."""
ALL_METHODS = ("f_cifar10_if100_dir0.1", "f_cifar10_if100_dir0.5", "s_fashion_mnist_dir0.5")
"""The cells of F and S that have them all; the README of the protocols says why no others."""
ANEW = "s_", "n_", *ALL_METHODS
"""Cells that begin anew with trials that are spread evenly; the README says why."""
GAPS = {"bsm,prior=global", "ccvr", "centralised"}
"""Methods that begin anew in the other cells, too: a factor of ten of the rates was not tried."""
ORDER = "rpnscf"
"""What is begun first: real clients."""


def cells() -> list[str]:
    """Return the names of all protocol files, in the order in which they are begun."""
    names = sorted(path.stem for path in PROTOCOLS.glob("*.toml"))
    return sorted(names, key=lambda name: ORDER.index(protocol_of(name)))


def planned(cell: str) -> tuple[str, ...]:
    """Return the methods of a cell, as they are typed; first those that have the most cells."""
    features = protocol_of(cell) in "fp"
    first = TABLE if features else SHORTLIST
    if cell not in ALL_METHODS:
        return first
    named = {split_spec(method)[0] for method in first}
    others = set(Method.registry) - LEFT_OUT - named - (NEED_IMAGES if features else set())
    return (*first, *sorted(others))


def trials_of(cell: str, method: str) -> int:
    """Return how many trials a method has in a cell: on S only those of the shortlist have some."""
    letter = protocol_of(cell)
    return 0 if letter == "s" and method not in SHORTLIST else TRIALS[letter]


def missing(results: Path) -> list[tuple[str, str]]:
    """Return what is planned and has no result, or one to be made again; what few cells have, last.

    Parameters
    ----------
    results
        The folder with a file for each cell.
    """
    left = []
    for cell in cells():
        found = known(results / f"{cell}.json")
        asked = dict.fromkeys((*planned(cell), *found))  # some were run that no plan has
        left += [(cell, method) for method in asked if method not in current(cell, found)]
    return sorted(left, key=lambda pair: pair[1] not in (*SHORTLIST, *TABLE))


def current(cell: str, found: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the methods whose results in a cell are not to be made again."""
    return {method for method, entry in found.items() if not is_old(cell, method, entry)}


def is_old(cell: str, method: str, entry: Mapping[str, Any]) -> bool:
    """Whether a result was found with random trials where it is to be made with even ones."""
    anew = cell.startswith(ANEW) or method in GAPS
    return trials_of(cell, method) > 0 and anew and entry.get("draws") != DRAWS


def known(path: Path) -> dict[str, dict[str, Any]]:
    """Return what the result file of a cell has, by method; nothing if there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
