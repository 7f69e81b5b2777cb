"""What stands in the page, as plain data."""

from __future__ import annotations

from pathlib import Path

from run_folders import record, write_run

from fedtail.report import make_content, read_runs


def test_bold_is_what_is_better_than_the_first_method_for_sure(tmp_path: Path) -> None:
    # Differences to fedavg, seed by seed. Accuracy of bsm: 0.1, 0.1, 0.13, far from zero by the t
    # interval of three (0.11 ± 4.303 · 0.0173 / √3 = 0.11 ± 0.043); few: 0.3, -0.2, 0.4, not so;
    # loss: -0.5 each time, and less is better.
    few = {"fedavg": (0.2, 0.5, 0.1), "bsm": (0.5, 0.3, 0.5)}
    accuracy = {"fedavg": (0.5, 0.6, 0.7), "bsm": (0.6, 0.7, 0.83)}
    for method, loss in (("fedavg", 1.5), ("bsm", 1.0)):
        for seed in range(3):
            scores = {"few": few[method][seed], "loss": loss + seed}
            write_run(
                tmp_path / f"{method} {seed}",
                [record(1, accuracy[method][seed], **scores)],
                method={"name": method},
                seed=seed,
            )
    names = [tmp_path / f"{method} {seed}" for method in ("fedavg", "bsm") for seed in range(3)]
    first, other = make_content(read_runs(names))["lines"]
    assert first["better"] == []
    assert other["better"] == ["accuracy", "loss"]


def test_one_seed_claims_nothing(tmp_path: Path) -> None:
    for method, accuracy in (("fedavg", 0.1), ("bsm", 0.9)):
        write_run(tmp_path / method, [record(1, accuracy)], method={"name": method})
    lines = make_content(read_runs([tmp_path / "fedavg", tmp_path / "bsm"]))["lines"]
    assert [line["better"] for line in lines] == [[], []]
