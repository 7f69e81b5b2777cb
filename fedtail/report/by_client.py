"""What the clients of a run hold, did and got: the panel by client."""

from __future__ import annotations

from collections.abc import Mapping

from fedtail.methods import Method
from fedtail.study.runs import Plain, Run

MOST_ROWS = 200
"""Rows of the panel; of more clients those with the lowest accuracy, or else the first."""


def by_client(run: Run) -> Plain | None:
    """Return a row a client, and how far their accuracies lie apart; nothing without clients.

    A row is the name, the accuracy, training samples, classes, rounds that it took part in, rounds
    that it was left out of, and bytes both ways; `None` is what the folder does not say.
    """
    counts = (run.split or {}).get("counts") or []
    tested = (run.tested or {}).get("clients_test") or {}
    accuracy: Mapping[str, float] = tested.get("accuracy") or {}
    names = [str(name) for name in (run.split or {}).get("clients") or range(len(counts))]
    # Clients that are only tested, and those of a split too large to be written, have no counts.
    known = list(dict.fromkeys([*names, *accuracy]))
    took, dropped, traffic = _work(run)
    # The one client of a pooled method is a place that has the data of all.
    pooled = run.method in Method.registry and Method.registry[run.method].pooled
    rows = []
    for number, name in enumerate(known):
        held = counts[number] if number < len(counts) else None
        trains = number < len(names) and not pooled
        rows.append(
            [
                name,
                accuracy.get(name),
                None if held is None else sum(held),
                None if held is None else sum(n > 0 for n in held),
                took.get(number, 0) if trains else None,
                dropped.get(number, 0) if trains else None,
                traffic.get(number, 0) if trains else None,
            ]
        )
    if not rows:
        return None
    if accuracy:
        rows.sort(key=lambda row: (row[1] is None, row[1]))
    return {
        "seed": run.seed,
        "clients": len(rows),
        "rows": rows[:MOST_ROWS],
        "worst": tested.get("worst"),
        "spread": tested.get("spread"),
        "personal": ((run.tested or {}).get("personal") or {}).get("accuracy"),
    }


def _work(run: Run) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    """Return of each client the rounds it took part in, those it was left out of, its bytes."""
    took: dict[int, int] = {}
    dropped: dict[int, int] = {}
    traffic: dict[int, int] = {}
    for record in run.records:
        for client in record.get("clients") or []:
            took[client] = took.get(client, 0) + 1
        for client in {e["client"] for e in record.get("dropped") or [] if "client" in e}:
            dropped[client] = dropped.get(client, 0) + 1
        for client, both in (record.get("traffic") or {}).items():
            traffic[int(client)] = traffic.get(int(client), 0) + sum(both)
    return took, dropped, traffic
