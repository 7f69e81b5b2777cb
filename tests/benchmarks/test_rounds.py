"""Which round each rule ships, by hand."""

from __future__ import annotations

from benchmarks.rounds import shipped


def test_which_round_each_rule_ships() -> None:
    held, test = [0.2, 0.9, 0.1, 0.5, 0.5, 0.4], [0.1, 0.2, 0.3, 0.4, 0.5, 0.45]
    records = [
        {"round": n, "balanced_accuracy": t, "validation": {"balanced_accuracy": v}}
        for n, (v, t) in enumerate(zip(held, test, strict=True), 1)
    ]
    # Means of three in a row: 0.4, 0.5, 0.37 and 0.47; the best ends at the fourth.
    assert shipped([*records, {"round": 7, "balanced_accuracy": None}]) == {
        "best": 0.2,
        "best of three in a row": 0.4,
        "last": 0.45,
        "there was": 0.5,
    }
