"""The audit finds what is planted, and not what is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from command_line import fedtail

from fedtail import Arrays, CReFF, Experiment, FedAvg, FedtailError, Method, Natural, run
from fedtail.folder import RunFolder
from fedtail.privacy.audit import Audit, audit
from fedtail.privacy.views import (
    CLIPPED,
    NOISY,
    NOTHING,
    SUM_CLIPPED,
    SUM_NOISY,
    SUM_ONLY,
    with_rows,
)
from fedtail.setting import prepare

CLIENTS, EACH = 12, 10


def one_class_each() -> Arrays:
    """Client k has only class k mod 4."""
    data = tiny.arrays()
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(CLIENTS) % tiny.CLASSES, EACH)
    x = rng.integers(0, 100, (len(y), *tiny.IMAGE))
    x[np.arange(len(y)), y % 3] += 100
    owner = np.repeat(np.arange(CLIENTS), EACH)
    return Arrays(**{**data, "x_train": x.astype(np.uint8), "y_train": y, "client_train": owner})


def audited(method: Method[Any], path: Path, epsilon: float = 8.0, **fields: Any) -> Audit:
    experiment = Experiment(
        method=method,
        data=one_class_each(),
        model=tiny.plain_model,
        partition=Natural(),
        rounds=1,
        device="cpu",
        **fields,
    )
    run(experiment, out=path)
    return audit(RunFolder(path), prepare(experiment), epsilon, shadows=4)


def test_a_client_with_one_class_is_found_out_without_protection(tmp_path: Path) -> None:
    found = audited(FedAvg(local=tiny.quick()), tmp_path / "run", epsilon=0.01)
    views = {view.protection: view for view in found.views}
    assert set(views) == {NOTHING, SUM_ONLY, CLIPPED, NOISY, SUM_CLIPPED, SUM_NOISY}
    labels = {name: view.labels for name, view in views.items()}
    open_, sums, clipped, noisy = (labels[n] for n in (NOTHING, SUM_ONLY, CLIPPED, NOISY))
    assert open_ is not None and sums is not None and clipped is not None and noisy is not None
    assert open_.largest == 1.0
    assert open_.distance < 0.1 < open_.blind
    # Of a sum the server can say the same of everybody: right for one class in four.
    assert sums.largest == 0.25
    assert sums.distance > 0.5
    # A server that is trusted to add the noise sees what it adds it to.
    assert clipped.largest == 1.0
    # Without class gradients the classifier tells the classes.
    held = {name: view.presence for name, view in views.items()}
    assert held[NOTHING] == 1.0 and held[CLIPPED] == 1.0
    assert held[SUM_ONLY] == pytest.approx(0.5, abs=0.2)
    # Strong noise hides it: chance is 3 of 12.
    assert noisy.largest <= 0.6
    assert noisy.distance > 0.4


def test_class_gradients_name_the_classes_by_construction(tmp_path: Path) -> None:
    method = CReFF(local=tiny.quick(), features=5, match_steps=5, head_epochs=5)
    found = audited(method, tmp_path / "run", epsilon=0.01)
    seen = {view.protection: view.presence for view in found.views}
    assert seen[NOTHING] == 1.0
    assert seen[SUM_ONLY] == pytest.approx(0.5, abs=0.2)
    noisy = seen[NOISY]
    assert noisy is not None and noisy < 0.75
    assert found.features is not None
    assert -1 <= found.features.noise <= 1


def test_a_method_that_cannot_be_protected_says_why(tmp_path: Path) -> None:
    method: Method[Any] = Method.model_validate("climb")
    found = audited(method, tmp_path / "run")
    assert [view.protection for view in found.views] == [NOTHING]
    assert "losses" in found.refused


def test_class_shares_that_are_sent_are_read(tmp_path: Path) -> None:
    method: Method[Any] = Method.model_validate("slac")
    views = {view.protection: view for view in audited(method, tmp_path / "run").views}
    told = views[NOTHING].labels
    assert told is not None
    assert told.largest == 1.0
    assert told.distance < 1e-6
    assert views[NOTHING].presence == 1.0
    # A sum of shares is that of all clients.
    summed = views[SUM_ONLY].labels
    assert summed is not None and summed.distance == pytest.approx(summed.blind, abs=1e-6)


def test_class_shares_are_read_of_single_updates_too(tmp_path: Path) -> None:
    # Statistics of one client need single updates: then there is only the view without protection.
    method: Method[Any] = Method.model_validate({"name": "slac", "buffers": "first"})
    (view,) = audited(method, tmp_path / "run").views
    assert view.labels is not None
    assert view.labels.distance < 1e-6
    assert view.members is not None


def test_weighed_rows_are_divided_by_their_shares() -> None:
    rows = {"rows/held": torch.tensor([0.75, 0.25, 0.0]), "model/body": torch.ones(2)}
    rows |= {"rows/fc.weight": torch.tensor([[3.0], [1.0], [0.0]]), "rows/fc.bias": torch.ones(3)}
    seen = with_rows(rows)
    assert seen["model/fc.weight"].flatten().tolist() == [4.0, 4.0, 0.0]
    assert seen["model/fc.bias"].tolist() == pytest.approx([4 / 3, 4.0, 0.0])
    columns = with_rows({**rows, "rows/fc.weight": torch.tensor([[3.0, 1.0, 0.0]])})
    assert columns["model/fc.weight"].tolist() == [[4.0, 4.0, 0.0]]
    assert with_rows({"model/body": rows["model/body"]}).keys() == {"model/body"}


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    experiment = tiny.experiment(rounds=1)
    run(experiment, out=tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(FedtailError, match="is not finished"):
        audit(RunFolder(tmp_path / "run"), prepare(experiment))


def test_other_data_are_refused(tmp_path: Path) -> None:
    experiment = tiny.experiment(rounds=1)
    run(experiment, out=tmp_path / "run")
    arrays = tiny.arrays()
    arrays["x_train"].flat[5] ^= 1
    changed = prepare(experiment.but(data=Arrays(**arrays)))
    with pytest.raises(FedtailError, match="holds a run with another training set"):
        audit(RunFolder(tmp_path / "run"), changed)


def test_the_command_writes_a_page_and_the_numbers(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    assert fedtail("run", "--rounds", "1", "--clients", "4", "--out", folder).code == 0
    shown = fedtail("audit", folder, "--shadows", "4")
    assert shown.code == 0
    assert "| no protection |" in shown.out
    assert (tmp_path / "run" / "audit.md").read_text() in shown.out
    numbers = json.loads((tmp_path / "run" / "audit.json").read_text())
    assert numbers["method"] == "slac"
    assert numbers["views"][0]["labels"]["largest"] >= 0.5
    assert numbers["views"][0]["members"]["shadows"] == 4
    assert {"error", "cosine", "blind_error"} <= numbers["views"][0]["inversion"].keys()


def test_too_few_shadows_are_refused(tmp_path: Path) -> None:
    for flag in ("--shadows", "--runs"):
        shown = fedtail("audit", str(tmp_path), flag, "3")
        assert shown.code == 2
        assert f"{flag} 3: the membership attack needs 4 shadow models" in shown.err
