"""Features and norms: the right numbers of the right model, and the same picture every time."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from command_line import fedtail, one_sentence, write_npz
from feature_views import make_view
from run_folders import SPLIT, record, write_run
from safetensors.torch import load_file
from torch import Tensor, nn

from fedtail import FedtailError, Method, run
from fedtail.models import CosineHead, SplitModel, experts
from fedtail.models.ensemble import Ensemble
from fedtail.report import (
    FeatureView,
    feature_view,
    features_csv,
    first_finished,
    make_content,
    make_lines,
    norms_csv,
    read_run,
    read_runs,
)
from fedtail.report.features import choose_samples, classifier_norms, look, sides, t_sne


def set_weight(layer: nn.Module, rows: list[list[float]]) -> None:
    with torch.no_grad():
        assert isinstance(layer.weight, Tensor)
        layer.weight.copy_(torch.tensor(rows))


# Norms


def test_norms_are_the_lengths_of_the_class_vectors() -> None:
    head = nn.Linear(2, 3)
    set_weight(head, [[3, 4], [0, 2], [0, 0]])
    # The bias is no part of the vector: ‖(3, 4)‖ = 5, ‖(0, 2)‖ = 2.
    assert classifier_norms(SplitModel(nn.Sequential(head))).tolist() == [[5, 2, 0]]


def test_a_cosine_head_has_its_vectors_in_columns() -> None:
    head = CosineHead(2, 3)
    set_weight(head, [[3, 0, 1], [4, 2, 0]])
    assert classifier_norms(SplitModel(nn.Sequential(head))).tolist() == [[5, 2, 1]]


def test_every_expert_and_every_member_has_a_row() -> None:
    chain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    split = experts(chain, "1", 3)
    for factor, head in enumerate(split.heads):
        set_weight(head, [[3 * factor, 4 * factor], [0, 1]])
    assert classifier_norms(split).tolist() == [[0, 1], [5, 1], [10, 1]]
    both = Ensemble(SplitModel(chain), 2)
    for factor, member in enumerate(both.members):
        set_weight(member.classifier, [[0, 7], [0, factor]])
    assert classifier_norms(both).tolist() == [[7, 0], [7, 1]]


def test_a_classifier_that_is_not_linear_is_named() -> None:
    body = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    with pytest.raises(FedtailError, match="its classifier is a Sequential, not linear"):
        classifier_norms(SplitModel(body, "1"))


# Features


def test_features_are_what_enters_the_classifier() -> None:
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2))
    set_weight(module[0], [[1, 0], [1, 2]])
    model = SplitModel(module)
    # (1, -1) gives (1, 1 - 2) = (1, -1), after the ReLU (1, 0); (0, 3) gives (0, 6).
    held = tiny.federation([[1, -1], [5, 5], [0, 3]], [0, 1, 1], [[0, 1, 2]])
    features, logits = look(model, held, np.array([0, 2]))
    assert features.tolist() == [[1, 0], [0, 6]]
    assert torch.equal(model.classifier(features), logits)


def test_samples_are_as_equal_as_the_test_set_allows() -> None:
    labels = np.repeat([0, 1, 2], [90, 6, 4])

    def held(samples: int) -> list[int]:
        found: list[int] = np.bincount(labels[choose_samples(labels, samples, 0)]).tolist()
        return found

    assert held(12) == [4, 4, 4]
    # Turns 1 to 4 take all three classes, turn 5 classes 0 and 1, turn 6 class 0.
    assert held(15) == [6, 5, 4]
    assert held(1000) == [90, 6, 4]


def test_samples_are_drawn_by_the_seed() -> None:
    labels = np.repeat([0, 1], 500)
    first, again, other = (choose_samples(labels, 20, seed) for seed in (3, 3, 4))
    assert first.tolist() == again.tolist() == sorted(first.tolist())
    assert first.tolist() != other.tolist()
    assert len(set(first.tolist())) == 20


def blobs() -> np.ndarray:
    """Return twelve points each round two places that are far from each other."""
    noise = np.random.default_rng(0).normal(size=(24, 3))
    places: np.ndarray = noise + np.repeat([[0.0] * 3, [50.0] * 3], 12, axis=0)
    return places.astype(np.float32)


def test_the_map_keeps_neighbours_and_is_the_same_again() -> None:
    points = t_sne(blobs(), seed=0)
    assert points.shape == (24, 2)
    assert np.array_equal(points, t_sne(blobs(), seed=0))
    assert np.array_equal(points, np.round(points, 2))
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    side = np.arange(24) // 12
    assert (side[distance.argmin(axis=1)] == side).all()


def test_the_map_of_awkward_features() -> None:
    assert t_sne(np.ones((6, 4), np.float32), 0).tolist() == [[0, 0]] * 6
    assert np.isfinite(t_sne(np.arange(6, dtype=np.float32)[:, None], 0)).all()  # one feature
    with pytest.raises(FedtailError, match="not finite: the model has diverged"):
        t_sne(np.full((6, 2), np.nan, np.float32), 0)
    with pytest.raises(FedtailError, match="its test set has 4 samples; a map needs 5"):
        t_sne(np.zeros((4, 2), np.float32), 0)


# Marks


def test_majority_minority_and_missing() -> None:
    # Held are 6, 2, 1 and 3: mean 3, which is not below itself.
    assert sides([6, 0, 2, 1, 3]) == ["majority", "missing", "minority", "minority", "majority"]
    assert sides([0, 5]) == ["missing", "majority"]
    assert sides([0, 0]) == ["missing", "missing"]


def test_marks_of_all_and_of_one_client() -> None:
    view = make_view()
    assert view.marks() == ["few", "many", "medium"]
    # 2, 6 and 4 samples, mean 4; then 0, 4 and 1, mean 2.5.
    assert view.marks(0) == ["minority", "majority", "majority"]
    assert view.marks(1) == ["missing", "majority", "minority"]
    with pytest.raises(FedtailError, match=r"client 2 is refused: 'runs/a' has the clients 0 to 1"):
        view.marks(2)


# What is written


def test_the_content_of_a_view(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [record(1, 0.5)])
    write_run(tmp_path / "b", [record(1, 0.5)], method={"name": "creff"})
    made = make_content(read_runs([tmp_path]), {"creff": make_view()}, client=1)
    (shown,) = made["features"]
    assert shown["line"] == 1
    assert shown["counts"] == [2, 10, 5]
    assert (shown["labels"], shown["predicted"]) == ([0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 1])
    assert (shown["x"], shown["y"]) == ([0, 1, 9, 10, 0, 9], [0, 0, 9, 9, 9, 0])
    # Positions in many, medium, few and in majority, minority, missing.
    assert shown["groups"] == "201"
    assert shown["sides"] == {"0": "100", "1": "201"}
    assert shown["norms"] == [[1, 3, 2]]
    assert made["marks"]["client"] == 1
    assert make_content(read_runs([tmp_path]))["features"] == []


def test_of_very_many_clients_the_first_and_the_chosen_are_kept(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [])
    view = make_view(counts=np.tile([1, 1, 0], (10_000, 1)))
    (shown,) = make_content(read_runs([tmp_path]), {"fedavg": view}, client=9_000)["features"]
    assert len(shown["sides"]) == 20_000 // 3 + 1
    assert shown["sides"]["9000"] == "002"


def test_the_tables_of_a_view() -> None:
    view = make_view(norms=np.array([[1.0, 3.0, 2.0], [4.0, 5.0, 6.0]]))
    rows = list(csv.DictReader(features_csv({"fedavg": view}).splitlines()))
    assert len(rows) == 6
    assert rows[-1] == {
        "method": "fedavg",
        "seed": "0",
        "sample": "8",
        "class": "<b>owl</b>",
        "mark": "medium",
        "predicted": "dog",
        "x": "9.0",
        "y": "0.0",
    }
    norms = list(csv.DictReader(norms_csv({"fedavg": view}, client=1).splitlines()))
    assert [(row["head"], row["class"], row["mark"], row["norm"]) for row in norms[:3]] == [
        ("0", "dog", "majority", "3.0"),
        ("0", "<b>owl</b>", "minority", "2.0"),
        ("0", "cat", "missing", "1.0"),
    ]
    assert [row["samples"] for row in norms[3:]] == ["10", "5", "2"]


def test_the_first_seed_with_a_model_is_looked_at(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [], seed=0, finished=False)
    write_run(tmp_path / "b", [], seed=1)
    write_run(tmp_path / "c", [], seed=2, method={"name": "creff"}, finished=False)
    fedavg, creff = make_lines(read_runs([tmp_path]))
    chosen = first_finished(fedavg)
    assert chosen is not None
    assert chosen.seed == 1
    assert first_finished(creff) is None


# A real run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with data and a finished run, as a user of the command line has them."""
    here = tmp_path_factory.mktemp("features")
    data = write_npz(here / "mine.npz")
    words = ["--data", data, "--clients", "3", "--rounds", "2", "--model", "mlp"]
    done = fedtail("run", *words, "model.hidden=[6]", "--out", str(here / "run"))
    assert done.code == 0, done
    yield here


@pytest.fixture(scope="module")
def view(folder: Path) -> FeatureView:
    return feature_view(read_run(folder / "run"))


def test_the_view_is_of_the_shipped_model_on_the_test_set(folder: Path, view: FeatureView) -> None:
    found = read_run(folder / "run")
    assert view.positions.tolist() == list(range(8))  # all there are
    assert view.labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert found.tested is not None
    assert np.mean(view.predicted == view.labels) == pytest.approx(found.tested["accuracy"])
    assert found.split is not None
    assert view.counts.tolist() == found.split["counts"]
    tensors = load_file(folder / "run" / "model.safetensors")
    (weight,) = [t for name, t in tensors.items() if t.shape == (4, 6)]
    assert view.norms[0] == pytest.approx(weight.pow(2).sum(dim=1).sqrt().numpy(), rel=1e-5)


def test_the_same_folder_gives_the_same_picture(folder: Path, view: FeatureView) -> None:
    before = tiny.global_streams()
    again = feature_view(read_run(folder / "run"))
    assert np.array_equal(again.points, view.points)
    assert again.points.any()
    assert tiny.global_streams() == before
    assert len(feature_view(read_run(folder / "run"), samples=5).positions) == 5


def test_the_command_shows_features(folder: Path, tmp_path: Path) -> None:
    out, table = tmp_path / "r.html", tmp_path / "r.csv"
    words = ["report", str(folder / "run"), "--out", str(out), "--csv", str(table), "--features"]
    done = fedtail(*words, "--samples", "6", "--client", "2")
    assert (done.code, done.err) == (0, "")
    names = ("r.html", "r.csv", "r-features.csv", "r-norms.csv")
    assert done.out.splitlines() == [
        f"features of slac: {folder / 'run'}",
        *(f"written: {tmp_path / name}" for name in names),
    ]
    assert len((tmp_path / "r-features.csv").read_text().splitlines()) == 7
    assert '"marks":{"groups":["many","medium","few"]' in out.read_text(encoding="utf-8")


def test_other_data_than_the_run_had_is_noticed(folder: Path, tmp_path: Path) -> None:
    copied = tmp_path / "run"
    (folder / "run").rename(copied)  # and back: the description names the data by its path
    kept = (folder / "mine.npz").read_bytes()
    try:
        write_npz(folder / "mine.npz", y_train=np.arange(40) // 10)
        said = one_sentence(fedtail("report", str(copied), "--features"))
        # Its clients are natural: other labels do not change the split.
        assert said.startswith(f"no features of '{copied}': ")
        assert "holds a run with another training set" in said
        (folder / "mine.npz").unlink()
        assert "mine.npz" in one_sentence(fedtail("report", str(copied), "--features"))
    finally:
        (folder / "mine.npz").write_bytes(kept)
        copied.rename(folder / "run")


def test_wrong_input_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    done = str(folder / "run")
    out = ["--out", str(tmp_path / "r.html")]
    write_run(tmp_path / "young", [], finished=False)
    for words, sentence in {
        (done, "--samples", "9"): "--samples is of --features, which is not given",
        (done, "--client", "0"): "--client is of --features, which is not given",
        (done, "--features", "--serve"): (
            "--features is of runs that are finished: leave out --serve"
        ),
        (done, "--features", "--samples", "4"): "4 samples make no map: give at least 5",
        (done, "--features", "--client", "3"): (
            f"client 3 is refused: '{done}' has the clients 0 to 2"
        ),
        (str(tmp_path / "young"), "--features"): (
            "--features needs a finished run: none of these has a model yet"
        ),
    }.items():
        assert one_sentence(fedtail("report", *words, *out)) == sentence
    assert not (tmp_path / "r.html").exists()


def test_a_model_file_that_is_none_is_named(folder: Path, tmp_path: Path) -> None:
    model = folder / "run" / "model.safetensors"
    kept = model.read_bytes()
    try:
        model.write_bytes(kept[: len(kept) // 2])
        said = one_sentence(fedtail("report", str(folder / "run"), "--features"))
        assert said.startswith(f"no features of '{folder / 'run'}': ")
        assert "model.safetensors" in said
    finally:
        model.write_bytes(kept)


def test_what_was_made_in_python_is_looked_at_there(tmp_path: Path) -> None:
    experiment = tiny.experiment(rounds=1)
    run(experiment, out=tmp_path / "run")
    said = one_sentence(fedtail("report", str(tmp_path / "run"), "--features"))
    assert said == (
        f"no features of '{tmp_path / 'run'}': its data was made in Python; look at it there, with"
        " fedtail.report.feature_view(run, experiment)"
    )
    made = feature_view(read_run(tmp_path / "run"), experiment)
    assert made.counts.tolist() == [list(row) for row in tiny.COUNTS]
    assert made.marks(1) == ["majority", "missing", "missing", "missing"]


@pytest.mark.parametrize(
    ("method", "heads"),
    [({"name": "gbme"}, 3), ({"name": "ifca", "test": "ensemble"}, 2), ({"name": "redgrape"}, 1)],
    ids=["experts", "an ensemble", "a second head"],
)
def test_models_that_methods_make(method: dict[str, str], heads: int, tmp_path: Path) -> None:
    experiment = tiny.experiment(Method.model_validate(method), rounds=1)
    result = run(experiment, out=tmp_path / "run")
    made = feature_view(read_run(tmp_path / "run"), experiment)
    assert made.norms.shape == (heads, tiny.CLASSES)
    assert np.mean(made.predicted == made.labels) == pytest.approx(result.metrics["accuracy"])


def test_unfinished_methods_are_left_out(folder: Path, tmp_path: Path) -> None:
    young = write_run(tmp_path / "young", [], method={"name": "creff"}, finished=False, split=SPLIT)
    out = tmp_path / "r.html"
    done = fedtail("report", str(folder / "run"), str(young), "--features", "--out", str(out))
    assert done.code == 0
    assert any(
        line.startswith("no features of creff") and line.endswith("no run of it is finished")
        for line in done.out.splitlines()
    )
    assert json.dumps("creff")[1:-1] in out.read_text(encoding="utf-8")
    with pytest.raises(FedtailError, match="has no model yet"):
        feature_view(read_run(young))
