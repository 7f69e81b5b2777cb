"""What the page holds: the right numbers, nothing that runs, no other host, and not too much."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from feature_views import make_view
from run_folders import SPLIT, record, write_run

from fedtail import FedtailError, run
from fedtail.report import make_content, make_page, make_server, read_runs, write_report
from fedtail.report.content import MOST_POINTS, thinned


def content(*folders: Path) -> dict[str, Any]:
    return make_content(read_runs(folders))


def data_of(page: str) -> Any:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(text)


def test_a_line_of_the_content(tmp_path: Path) -> None:
    scores = {"many": 0.9, "few": 0.125, "per_class": [0.125, 0.9, 0.4]}
    write_run(tmp_path / "a", [record(1, 0.5), record(2, 0.75, **scores)])
    made = content(tmp_path)
    (line,) = made["lines"]
    assert line["rounds"] == [1, 2]
    assert line["curves"]["accuracy"] == {"mean": [0.5, 0.75], "std": [None, None]}
    assert line["curves"]["few"]["mean"] == [None, 0.125]
    assert line["scores"]["many"] == [0.9, None]
    assert line["scores"]["medium"] == [None, None]  # the records have none, and that is fine
    assert (line["bytes"], line["seconds"]) == ([150, 300], [2, 4])
    assert line["per_class"]["mean"] == [0.125, 0.9, 0.4]
    # 2, 10 and 5 samples; many have more than 8, few fewer than 3.
    assert line["counts"] == [2, 10, 5]
    assert line["groups"] == {"many": [1], "medium": [2], "few": [0]}
    assert made["classes"] == ["0", "1", "2"]
    assert made["runs"] == [
        {"folder": "a", "line": 0, "seed": 0, "done": 2, "rounds": 3, "finished": True}
    ]


def test_the_head_of_the_content(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "data": {"name": "npz", "path": "a.npz", "drop": []},
        "tail": {"name": "exponential", "imbalance": 20.0, "own_size": False},
        "partition": {"name": "dirichlet", "alpha": 0.3},
        "model": {"name": "mlp"},
        "per_round": 1,
    }
    for seed in (0, 1):
        split = {**SPLIT, "digest": f"d{seed}"}
        write_run(tmp_path / str(seed), [], seed=seed, split=split, **sections)
    made = content(tmp_path)
    assert [(fact["title"], fact["value"]) for fact in made["facts"]] == [
        ("Data", "npz a.npz, 3 classes, 17 training samples, 10 to 2 a class"),
        ("Long tail", "exponential, imbalance 20"),
        ("Split", "dirichlet, alpha 0.3"),
        ("Clients", "2, 1 in a round"),
        ("Model", "mlp"),
        ("Rounds", "3"),
        ("Seeds", "0, 1"),
    ]
    assert made["cautions"] == []


def test_runs_on_other_data_are_told(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [], tail={"name": "none"})
    write_run(tmp_path / "b", [], tail={"name": "step", "imbalance": 10})
    (caution,) = content(tmp_path)["cautions"]
    assert caution.startswith("These runs are not on the same data: tail differs.")
    assert content(tmp_path)["facts"][1]["value"] == "none · step, imbalance 10"


def test_a_split_that_changed_under_the_same_settings_is_told(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [])
    write_run(tmp_path / "b", [], method={"name": "creff"}, split={**SPLIT, "digest": "d9"})
    (caution,) = content(tmp_path)["cautions"]
    assert caution.startswith("The settings are the same, but the split of seed 0 is not")


def test_classes_are_called_by_the_names_of_their_own_data(tmp_path: Path) -> None:
    table = {"classes": ["cat", "dog", "owl"], "confusion": [[1, 0, 0]] * 3}
    write_run(tmp_path / "a", [], confusion=table)
    write_run(tmp_path / "b", [], method={"name": "creff"}, finished=False)  # has no names yet
    other = {**table, "classes": ["car", "bus", "van"]}
    write_run(tmp_path / "c", [], data={"name": "npz"}, confusion=other)
    made = content(tmp_path)
    assert made["classes"] == ["cat", "dog", "owl"]
    assert [line["classes"] for line in made["lines"]] == [None, None, ["car", "bus", "van"]]


def test_rows_of_clients(tmp_path: Path) -> None:
    records = [
        record(1, None, clients=[0], dropped=[], traffic={"0": [1, 2]}),
        record(2, 0.5, clients=[0, 1], dropped=[{"client": 1, "reason": "x"}] * 2, traffic={}),
    ]
    write_run(tmp_path / "a", records)
    (panel,) = content(tmp_path)["clients"]
    # name, accuracy, samples, classes, rounds, left out of, bytes
    assert panel["rows"] == [["0", None, 12, 3, 2, 0, 3], ["1", None, 5, 2, 1, 1, 0]]
    assert (panel["line"], panel["seed"], panel["clients"]) == (0, 0, 2)


def test_the_one_place_that_has_all_data_is_no_client(tmp_path: Path) -> None:
    records = [record(1, 0.5, clients=[0], dropped=[], traffic={"0": [1, 2]})]
    write_run(tmp_path / "a", records, method={"name": "centralised"})
    (panel,) = content(tmp_path)["clients"]
    assert panel["rows"] == [["0", None, 12, 3, *[None] * 3], ["1", None, 5, 2, *[None] * 3]]


def test_a_client_that_only_tests_has_a_row(tmp_path: Path) -> None:
    tested = {"worst": "c", "spread": [0.1] * 5, "accuracy": {"c": 0.1, "a": 0.9}}
    split = {**SPLIT, "clients": ["a", "b"]}
    write_run(tmp_path / "a", [record(1, 0.5, clients_test=tested)], split=split)
    (panel,) = content(tmp_path)["clients"]
    assert [row[:3] for row in panel["rows"]] == [["c", 0.1, None], ["a", 0.9, 12], ["b", None, 5]]
    assert panel["worst"] == "c"


def test_validation_over_rounds(tmp_path: Path) -> None:
    for seed, shift in ((0, 0.0), (1, 0.25)):
        records = [
            record(1, 0.5, validation={"accuracy": 0.25 + shift, "loss": 2.0}),
            record(2, 0.5),
            record(3, None, validation={"accuracy": 0.5 + shift}),
        ]
        write_run(tmp_path / str(seed), records, seed=seed)
    found = content(tmp_path)["lines"][0]["validation"]
    assert found["rounds"] == [1, 3]
    assert found["curves"]["accuracy"]["mean"] == [0.375, 0.625]
    assert found["curves"]["loss"]["mean"] == [2.0, None]


def test_groups_that_nobody_here_knows_are_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [record(1, 0.5)], groups={"name": "mine"})
    assert content(tmp_path)["lines"][0]["groups"] == {}


def test_a_split_that_seeds_share_is_there_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [], method={"name": "creff"})
    write_run(tmp_path / "b", [])
    write_run(tmp_path / "c", [], seed=1, split={**SPLIT, "digest": "d1"})
    first, second = content(tmp_path)["splits"]
    assert (first["seed"], first["lines"]) == (0, ["creff", "fedavg"])
    assert (second["seed"], second["lines"]) == (1, ["fedavg"])
    assert first["counts"] == [[2, 6, 4], [0, 4, 1]]


def test_of_a_large_split_the_first_clients_are_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [], split={**SPLIT, "counts": [[1] * 1000] * 50})
    (split,) = content(tmp_path)["splits"]
    assert (split["clients"], len(split["counts"])) == (50, 20)  # 20 x 1000 cells


def test_confusions_are_added_over_seeds(tmp_path: Path) -> None:
    for seed in (0, 1):
        table = {"classes": ["cat", "dog"], "confusion": [[3, seed], [1, 2]]}
        write_run(tmp_path / str(seed), [], seed=seed, confusion=table)
    made = content(tmp_path)
    assert made["lines"][0]["confusion"] == {"seeds": 2, "counts": [[6, 1], [2, 4]]}
    assert made["classes"] == ["cat", "dog"]


@pytest.mark.parametrize("table", [{"confusion": [[1], [2, 3]]}, {"confusion": "x"}, {}])
def test_a_confusion_that_is_none_is_named(tmp_path: Path, table: dict[str, Any]) -> None:
    write_run(tmp_path / "a", [], confusion=table)
    with pytest.raises(FedtailError, match=r"confusion.json.* is not a table of counts"):
        content(tmp_path)


def test_settings_are_what_differs_and_what_does_not(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [], method={"tau": 1.0, "lr": 0.1})
    write_run(tmp_path / "b", [], method={"name": "creff", "lr": 0.1})
    made = content(tmp_path)
    assert made["differences"] == [
        {"key": "method.name", "values": ["fedavg", "creff"]},
        {"key": "method.tau", "values": [1.0, None]},
    ]
    assert made["shared"]["method.lr"] == 0.1
    assert "seed" not in made["shared"]
    assert made["environments"] == [
        {"runs": 2, "values": {"python": "3.11.7"}, "commands": ["fedtail run --seed 0"]}
    ]


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    assert thinned(0) == []
    assert thinned(3) == [0, 1, 2]
    kept = thinned(2 * MOST_POINTS + 2)
    assert kept[:3] == [0, 3, 6]
    assert kept[-1] == 2 * MOST_POINTS + 1
    assert len(kept) <= MOST_POINTS + 1


def test_names_cannot_become_markup(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><!-- & %%SCRIPT%% \u2028"
    table = {"classes": [evil, "b", "c"], "confusion": [[1, 0, 0]] * 3}
    write_run(tmp_path / "a", [record(1, 0.5)], method={"name": evil}, confusion=table)
    page = make_page(content(tmp_path))
    assert "alert(1)</" not in page
    assert page.count("</script>") == 2
    assert page.count("<script") == 2
    made = data_of(page)
    assert made["lines"][0]["label"] == evil
    assert made["classes"][0] == evil


def test_the_script_makes_no_markup_of_text() -> None:
    page = make_page(make_content([]))
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in page


def test_the_page_asks_no_other_host() -> None:
    page = make_page(make_content([]))
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}
    assert "connect-src 'none'" in page
    assert "connect-src 'self'" in make_page(make_content([]), live=True)


def test_numbers_that_are_none_are_null(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [])
    (folder / "metrics.jsonl").write_text('{"round": 1, "accuracy": 0.5, "loss": NaN}\n')
    line = data_of(make_page(content(tmp_path)))["lines"][0]
    assert line["curves"]["loss"]["mean"] == [None]


def test_ten_long_runs_stay_under_five_megabytes(tmp_path: Path) -> None:
    rng = random.Random(0)
    keys = ("balanced_accuracy", "many", "medium", "few", "tail", "worst_class", "loss", "ece")
    rows = [[rng.randrange(5000) for _ in range(100)] for _ in range(100)]
    places = np.random.default_rng(0)
    views = {}
    for number in range(10):
        records = [
            record(at, rng.random(), **{key: rng.random() for key in keys}) for at in range(1, 201)
        ]
        records[-1]["per_class"] = [rng.random() for _ in range(100)]
        split = {"digest": str(number), "class_counts": rows[0], "counts": rows}
        names = [f"class {c}" for c in range(100)]
        table = {"classes": names, "confusion": rows}
        method = {"name": f"method{number}"}
        write_run(tmp_path / str(number), records, method=method, split=split, confusion=table)
        views[f"method{number}"] = make_view(
            classes=tuple(names),
            counts=np.array(rows),
            groups={"many": tuple(range(100))},
            labels=places.integers(0, 100, 1000),
            predicted=places.integers(0, 100, 1000),
            points=places.normal(0, 20, (1000, 2)).round(2),
            norms=places.random((3, 100)),
        )
    write_report(tmp_path / "report.html", [tmp_path], views)
    plain = len(make_page(content(tmp_path)).encode())
    shown = (tmp_path / "report.html").stat().st_size
    assert plain < shown < 5_000_000
    assert shown - plain < 500_000  # 10 methods, 1000 samples of 100 classes, 100 clients


def test_a_run_leaves_its_report_and_its_confusion(tmp_path: Path) -> None:
    result = run(tiny.experiment(rounds=1), out=tmp_path / "run")
    made = data_of((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    assert made["lines"][0]["scores"]["accuracy"][0] == pytest.approx(
        result.metrics["accuracy"], abs=1e-5
    )
    table = json.loads((tmp_path / "run" / "confusion.json").read_text())["confusion"]
    right, samples = sum(table[c][c] for c in range(4)), sum(map(sum, table))
    assert samples == 12
    assert right / samples == pytest.approx(result.metrics["accuracy"])
    # The report of a run that is over says so, though it is written at its very end.
    assert made["runs"][0]["finished"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[HTTPConnection]:
    with make_server([tmp_path], 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
        yield connection
        connection.close()
        server.shutdown()
        thread.join()


def get(connection: HTTPConnection, path: str, **headers: str) -> tuple[int, str]:
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_server_reads_the_folders_anew(served: HTTPConnection, tmp_path: Path) -> None:
    status, text = get(served, "/data.json")
    assert (status, json.loads(text)["lines"]) == (200, [])
    assert "holds no run" in json.loads(text)["error"]
    folder = write_run(tmp_path / "a", [record(1, 0.5)], finished=False)
    status, page = get(served, "/")
    assert status == 200
    assert 'data-live="true"' in page
    assert data_of(page)["lines"][0]["rounds"] == [1]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record(2, 0.6)) + "\n")
    status, text = get(served, "/data.json?now")
    assert json.loads(text)["lines"][0]["rounds"] == [1, 2]


def test_the_server_answers_this_machine_only(served: HTTPConnection) -> None:
    assert get(served, "/", Host="evil.example")[0] == 403
    assert get(served, "/../experiment.toml")[0] == 404
    assert served.host == "127.0.0.1"


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with make_server([tmp_path], 0) as server, pytest.raises(FedtailError, match="cannot serve on"):
        make_server([tmp_path], server.server_port)
    with pytest.raises(FedtailError, match="cannot serve on port 99999: give 0 to 65535"):
        make_server([tmp_path], 99999)
