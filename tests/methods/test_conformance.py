"""What every method promises, whatever it does: the checks of `fedtail.testing` on all of ours.

A method that enters the registry is tested here without another line; if it needs something to run
at all, it gets an entry in `method_needs.py`. What follows them is asked of fedtail's own alone.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from method_needs import FROZEN, READ_CLASSIFIER, REFUSES, case

from fedtail import FedtailError, Method, run
from fedtail.setting import prepare
from fedtail.testing import CHECKS, Check
from fedtail.testing.federation import MODELS, NORM

ROOT = Path(__file__).parents[2]

# Methods of the package: other tests may have registered some of their own.
NAMES = [n for n in Method.registry if Method.registry[n].__module__.startswith("fedtail.")]
TESTED_ALONE = {"fedloge", "fedrod", "local-only", "per-fedavg"}
SHIP_THEIR_OWN = {"fedetf", "fednh", "feduh", "gbme", "gbme-p", "ldam", "ride"}
FILES = {
    "centralised-bsm": "centralised",
    "feduh": "fednh",
    **dict.fromkeys(("bsm", "fed-focal", "fedrs", "lade"), "local_losses"),
    **dict.fromkeys(("fedavgm", "fedadagrad", "fedadam", "fedyogi"), "server_optimisers"),
}

every_method = pytest.mark.parametrize("name", NAMES)


def trials() -> list[Any]:
    """Return every check of every method on every model that it trains."""
    return [
        pytest.param(
            name,
            check,
            model,
            id=f"{name}-{check.name}-{model}",
            marks=[pytest.mark.slow] if check.processes else [],
        )
        for name in NAMES
        for check in CHECKS
        for model in check.models
        if model not in REFUSES.get(name, {})
    ]


@pytest.mark.parametrize(("name", "check", "model"), trials())
def test_a_promise_is_kept(name: str, check: Check, model: str) -> None:
    check.function(case(name).on(model))


@every_method
def test_a_model_that_cannot_be_trained_is_refused(name: str) -> None:
    said = {model: case(name).on(model).refusal() for model in MODELS}
    for model, sentence in said.items():
        wanted = REFUSES.get(name, {}).get(model, "")
        assert bool(sentence) == bool(wanted)
        assert wanted in sentence


@every_method
def test_what_is_shipped_has_the_names_of_the_users_module(name: str) -> None:
    shipped = case(name).on(NORM).reference().tensors.keys()
    assert (shipped == MODELS[NORM]().state_dict().keys()) == (name not in SHIP_THEIR_OWN)


@every_method
def test_a_head_is_trained_on_a_frozen_body(name: str) -> None:
    experiment = case(name).on(NORM).experiment(train="head", rounds=2)
    if name in FROZEN:
        with pytest.raises(FedtailError, match=FROZEN[name]):
            run(experiment)
        return
    body = prepare(experiment).base.whole({})
    assert {key.partition(".")[0] for key in body} == {"0", "1"}
    # The classifier, and what the method adds to it: nothing that is sent is of the body.
    assert prepare(experiment).model.names().isdisjoint(body)
    shipped = run(experiment).tensors
    for key, tensor in body.items():
        of_body = [t for n, t in shipped.items() if n in (key, f"trunk.body.{key}")]
        assert of_body
        assert all(torch.equal(t, tensor) for t in of_body)


@pytest.mark.parametrize("part", ["weight", "bias"])
@every_method
def test_a_frozen_part_of_the_classifier_stays_or_is_refused(name: str, part: str) -> None:
    module = MODELS[NORM]()
    frozen = module.get_parameter(f"4.{part}").requires_grad_(False).clone()
    experiment = case(name).on(NORM).experiment(rounds=2).but(model=module)
    if part in READ_CLASSIFIER.get(name, ()):
        with pytest.raises(FedtailError, match=f"the {part} of the classifier is frozen"):
            prepare(experiment)
        return
    assert torch.equal(run(experiment).tensors.get(f"4.{part}", frozen), frozen)


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("tau-norm", {"tau": 0}),
        ("crt-ib", {"first_stage": 1}),
        ("creff", {"features": 0}),
        ("fed-grab", {"control": "all", "warm_up": 0}),
        ("ldam", {"cosine": False}),
    ],
)
def test_a_part_that_is_off_refuses_no_frozen_classifier(name: str, off: dict[str, Any]) -> None:
    module = MODELS[NORM]()
    frozen = module.get_parameter("4.weight").requires_grad_(False).clone()
    method: Method[Any] = Method.model_validate({"name": name, **off})
    experiment = case(name).on(NORM).experiment(rounds=1).but(model=module, method=method)
    assert torch.equal(run(experiment).tensors["4.weight"], frozen)


@every_method
def test_the_scores_of_own_models_are_scores(name: str) -> None:
    # Nobody has class 3, so no client's model is right about everything.
    records = case(name).on(NORM).reference().history
    assert all(("personal" in record) == (name in TESTED_ALONE) for record in records)
    if name in TESTED_ALONE:
        assert all(0 < record["accuracy"] < 1 for record in records)


@every_method
def test_a_file_opens_with_its_paper(name: str) -> None:
    cls = Method.registry[name]
    assert cls.family
    assert cls.paper
    module = inspect.getmodule(cls)
    assert module is not None
    # Title in quotes, venue and year.
    opening = module.__doc__ or ""
    assert '"' in opening or "“" in opening
    assert any(year in opening for year in map(str, range(1990, 2030)))


@every_method
def test_one_method_one_file_one_test(name: str) -> None:
    file = FILES.get(name, name.replace("-", "_").replace("+", "_"))
    assert Method.registry[name].__module__ == f"fedtail.methods.{file}"
    assert (ROOT / "tests" / "methods" / f"test_{file}.py").is_file()


@every_method
def test_a_method_file_is_short_enough_to_be_read(name: str) -> None:
    source = inspect.getsourcefile(Method.registry[name])
    assert source is not None
    assert len(Path(source).read_text().splitlines()) <= 300
