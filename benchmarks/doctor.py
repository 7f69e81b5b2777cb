"""Whether what the doctor recommends is among the best two of those that were measured.

    FEDTAIL_DATA=FOLDER python -m benchmarks.doctor
    python -m benchmarks.doctor --ranks

A cell is a result file of a comparison, and the experiment that it was made with. The doctor is
asked once, on seed 0. Of its ordered list the first method that the cell has is held against the
others, by balanced accuracy, mean over seeds. References that need all data in one place, or
samples on the server, are left out. `--ranks` asks nothing again; both write the docs page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.comparison.overview import filled, needs_server_data
from benchmarks.results_file import RESULTS, save
from fedtail import Diagnosis, Method, doctor
from fedtail.described import load_experiment, make_experiment
from fedtail.errors import FedtailError
from fedtail.study.spec import apply_method

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "how-to" / "doctor.md"
MARKS = "<!-- made by `python -m benchmarks.doctor --ranks` -->\n", "<!-- end -->"
FEWEST = 4
"""With fewer methods in a cell, to be among the best two says little."""
IN_VIEW = {
    *("mnist", "fashion_mnist", "cifar10", "cifar10_all", "mitbih", "mitbih_all"),
    *(f"f_cifar{n}_if{i}_dir{a}" for n in (10, 100) for i in (50, 100) for a in (0.1, 0.5)),
    *("p_speech", "p_fortunes", "r_hapt", "r_mitbih", "r_speech", "c_cifar10", "fedlc_skew"),
    *("s_fashion_mnist_dir0.1", "s_fashion_mnist_dir0.5", "n_fashion_mnist", "digits_skew"),
}
"""Cells that were known when the rules were last changed."""
REAL = (
    *("mnist", "fashion_mnist", "cifar10", "cifar10_all", "mitbih", "mitbih_all"),
    *("fedlc_skew", "digits_skew"),
)


class Cell(NamedTuple):
    """Measured methods, and what they were measured on.

    Attributes
    ----------
    plain
        The experiment, as plain data.
    scores
        Balanced accuracy in percent by method, as typed.
    """

    name: str
    plain: Mapping[str, Any]
    scores: Mapping[str, float]


def cells(comparison: Path) -> Iterator[Cell]:
    """Give the cells of the comparison, of the real data, and of the choices of defaults."""
    for path in sorted(comparison.glob("*.json")):
        found = json.loads(path.read_text())
        scores = {
            method: 100 * fmean(entry["kept"]["balanced_accuracy"])
            for method, entry in found.items()
            if not needs_server_data(method) and not method.startswith("centralised")
        }
        yield Cell(path.stem, load_experiment(HERE / "protocols" / f"{path.stem}.toml"), scores)
    for name in REAL:
        lines = json.loads((RESULTS / "real" / f"{name}.json").read_text())["methods"]
        scores = {
            line["method"]: 100 * line["scores"]["balanced_accuracy"]["mean"]
            for line in lines
            if not line["server_data"] and not line["method"].startswith("centralised")
        }
        toml = HERE / "real" / f"{name.removesuffix('_all')}.toml"
        yield Cell(name, load_experiment(toml), scores)
    for question in ("balancefl", "fedlc", "redgrape", "gbme"):
        path = RESULTS / "choices" / f"{question}_digits.json"
        if path.exists():
            numbers = json.loads(path.read_text())["numbers"]
            variants = numbers["variants"].values()
            best: dict[str, float] = {}
            for each in variants:
                name = each["method"]["name"]
                best[name] = max(best.get(name, 0.0), each["accuracy"]["mean"])
            yield Cell(f"digits, {question}", numbers["protocol"], best)


def canonical(words: str) -> Method[Any]:
    """Return the method that words make, whatever else they say: defaults need not be named."""
    plain: dict[str, Any] = {"method": {}}
    apply_method(plain, words)
    method = {key: value for key, value in plain["method"].items() if key != "local"}
    return Method.model_validate(method)


def place(methods: Sequence[str], scores: Mapping[str, float]) -> tuple[str, int] | None:
    """Return which of the recommended methods was measured first, and its rank; 1 is best."""
    known: dict[str, Method[Any]] = {}
    for words in scores:
        try:
            known[words] = canonical(words)
        except FedtailError:  # a field that has another name today
            continue
    for wanted in methods:
        meant = canonical(wanted)
        for words, method in known.items():
            if method == meant:
                return words, 1 + sum(score > scores[words] for score in scores.values())
    return None


def judged(cell: Cell, found: Diagnosis) -> dict[str, Any]:
    """Return what was recommended in a cell, and how it did there."""
    signals = {key: signal.estimate.value for key, signal in found.signals.items()}
    return {
        "rule": found.rule,
        "recommended": list(found.methods),
        **ranked(cell, found.methods),
        "doubts": dict(found.doubts),
        "signals": {k: None if v is None else round(v, 4) for k, v in signals.items()},
    }


def ranked(cell: Cell, methods: Sequence[str]) -> dict[str, Any]:
    """Return how the first of the recommended methods that was measured did in a cell."""
    found = place(methods, cell.scores)
    best = sorted(cell.scores, key=lambda words: -cell.scores[words])[:2]
    return {
        "methods": len(cell.scores),
        "measured": None if found is None else found[0],
        "rank": None if found is None else found[1],
        "score": None if found is None else round(cell.scores[found[0]], 2),
        "best": {words: round(cell.scores[words], 2) for words in best},
        "fedavg": round(cell.scores["fedavg"], 2) if "fedavg" in cell.scores else None,
    }


def summary(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return how often the recommendation was among the best two, and how often chance would be."""
    known = {n: c for n, c in found.items() if c["methods"] >= FEWEST and c["rank"] is not None}
    first = {
        n: c for n, c in known.items() if canonical(c["recommended"][0]) == canonical(c["measured"])
    }
    return {
        **hits(known),
        "by_chance": fmean(2 / c["methods"] for c in known.values()) if known else None,
        "first_choice_measured": hits(first),
        "not_in_view": hits({n: c for n, c in known.items() if n not in IN_VIEW}),
        "not_in_view_first_choice": hits({n: c for n, c in first.items() if n not in IN_VIEW}),
        "not_measured": [n for n, c in found.items() if c["rank"] is None],
        "too_few_methods": [n for n, c in found.items() if c["methods"] < FEWEST],
    }


def hits(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return in how many cells the method was among the best two."""
    good = sum(cell["rank"] <= 2 for cell in found.values())
    return {"cells": len(found), "hits": good, "hit_rate": good / len(found) if found else None}


def text(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what the docs page shows: how often it was right, and each cell."""
    told = summary(found)
    first, new = told["first_choice_measured"], told["not_in_view"]
    return (
        f"**{told['hits']} of {told['cells']}** cells with four methods or more (by chance "
        f"{100 * told['by_chance']:.0f} %); where its first choice was measured, {first['hits']} "
        f"of {first['cells']}; of cells that came up after the rules were last changed, "
        f"{new['hits'] or 'none'} of {new['cells'] or 'none'}.\n\n{table(found)}"
    )


def ranked_today(
    found: Mapping[str, Mapping[str, Any]], comparison: Path
) -> dict[str, dict[str, Any]]:
    """Return what was said in each cell, ranked by the scores that are there."""
    known = [cell for cell in cells(comparison) if cell.name in found]
    order = {name: number for number, name in enumerate(found)}
    return {
        cell.name: {**found[cell.name], **ranked(cell, found[cell.name]["recommended"])}
        for cell in sorted(known, key=lambda cell: order[cell.name])
    }


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the cells as the docs page shows them."""
    lines = ["| cell | methods | rule | recommended, as measured | rank | its score | best two |"]
    lines += ["|---" * 7 + "|"]
    for name, cell in found.items():
        best = ", ".join(f"`{words}` {score:.1f}" for words, score in cell["best"].items())
        told = "none of its list" if cell["measured"] is None else f"`{cell['measured']}`"
        score = "" if cell["score"] is None else f"{cell['score']:.1f}"
        lines += [
            f"| {name} | {cell['methods']} | {cell['rule']} | {told} | {cell['rank'] or ''} "
            f"| {score} | {best} |"
        ]
    return "\n".join(lines)


def main() -> None:
    """Ask the doctor in every cell, and save what it said."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--comparison", type=Path, default=RESULTS / "comparison")
    parser.add_argument(
        "--only", action="append", help="a cell, others stay as they are; repeat the flag"
    )
    parser.add_argument(
        "--ranks", action="store_true", help="ask nothing: what was said before, by scores of today"
    )
    arguments = parser.parse_args()
    path = RESULTS / "doctor.json"
    found: dict[str, Any] = (
        json.loads(path.read_text())["numbers"]["cells"] if path.exists() else {}
    )
    asked: dict[str, Diagnosis] = {}
    for cell in [] if arguments.ranks else cells(arguments.comparison):
        if arguments.only and cell.name not in arguments.only:
            continue
        key = json.dumps(cell.plain, sort_keys=True)
        try:
            if key not in asked:
                asked[key] = doctor(make_experiment({**cell.plain, "workers": 0}))
        except FedtailError as error:  # data that is not here
            print(f"{cell.name}: {error}", flush=True)
            continue
        found[cell.name] = judged(cell, asked[key])
        print(cell.name, {k: found[cell.name][k] for k in ("measured", "rank")}, flush=True)
    today = ranked_today(found, arguments.comparison)
    if asked or today != found:
        save("doctor", {"summary": summary(today), "cells": today})
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(filled(page, text(today), MARKS), encoding="utf-8")


if __name__ == "__main__":
    main()
