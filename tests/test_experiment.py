"""Experiments: one description, from Python, TOML or words, checked before work starts."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from fedtail import (
    IID,
    SLAC,
    CReFF,
    Dirichlet,
    Experiment,
    Exponential,
    FedAvg,
    FedtailError,
    LocalTraining,
    NoFinish,
    Privacy,
    run,
)
from fedtail.described import (
    load_experiment,
    make_experiment,
    override,
    parse_overrides,
    parse_value,
)
from fedtail.device import choose_device
from fedtail.engines.robust import Median
from fedtail.losses import BalancedSoftmax
from fedtail.models import MLP, CosineHead
from fedtail.setting import prepare
from fedtail.training import ClassBalanced, Cosine, GlobalPrior


def test_an_experiment_survives_toml() -> None:
    # Prepare: something changed in every corner.
    made = Experiment(
        method=FedAvg(
            local=LocalTraining(lr=0.1, steps=3, clip=1.0, schedule=Cosine(floor=0.1)),
            loss=BalancedSoftmax(),
            sampler=ClassBalanced(gamma=0.5),
            prior=GlobalPrior(),
            buffers="local",
        ),
        model=MLP(hidden=(3, 2)),
        tail=Exponential(imbalance=50),
        partition=Dirichlet(alpha=0.1),
        clients=7,
        per_round=3,
        track=("tensorboard",),
        name="é",
    )

    # Execute
    again = make_experiment(tomllib.loads(made.to_toml()))

    # Assert
    assert again == made
    assert again.to_toml() == made.to_toml()


def test_the_default_experiment_survives_toml() -> None:
    assert make_experiment(tomllib.loads(Experiment().to_toml())) == Experiment()


def test_who_names_no_method_gets_slac_as_far_as_the_rest_allows() -> None:
    assert Experiment().method == SLAC()
    assert make_experiment({"method": {"local": {"lr": 0.5}}}).method == SLAC(local={"lr": 0.5})
    # The budget covers no last step, and most of a cohort may not hold a class.
    private = make_experiment({"privacy": {"epsilon": 8.0}}).method
    assert private == SLAC(finish=NoFinish()) == Experiment(privacy=Privacy(epsilon=8.0)).method
    assert make_experiment({"privacy": {"epsilon": math.inf}}).method == SLAC()
    for robust in ("median", {"name": "median"}, Median()):
        assert Experiment(robust=robust).method == SLAC(rows="samples")
    assert Experiment(robust="none").method == SLAC()
    # Who names it is told.
    with pytest.raises(FedtailError, match="closed-form"):
        make_experiment({"method": "slac", "privacy": {"epsilon": 8.0}})


def test_what_a_run_is_called() -> None:
    assert Experiment(seed=3).title == "digits-slac-seed3"
    assert Experiment(name="mine").title == "mine"


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ({"rounds": 0}, "'rounds' = 0 is refused: input should be greater than or equal to 1"),
        ({"rond": 1}, "unknown key 'rond'; did you mean 'rounds'?"),
        ({"method": "fedavgg"}, "unknown method 'fedavgg'; did you mean 'fedavg'?"),
        ({"method": {"loss": "crossentropy"}}, "did you mean 'cross_entropy'?"),
        ({"device": "gpu"}, "device: 'gpu' is no device"),
        ({"seed": -1}, "'seed' = -1 is refused"),
        ({"clients": 3, "per_round": 4}, "per_round = 4 is more than the 3 clients"),
        ({"per_round": 4, "min_clients": 5}, "min_clients = 5 is more than"),
        ({"model": 3}, "a model is a registered name"),
        ({"model": "resnet9"}, "unknown model 'resnet9'"),
        ({"track": ["wandbb"]}, "track"),
        (
            {"privacy": {"clip": 0.5}},
            "privacy.clip = 0.5 does nothing without privacy.epsilon, the budget (inf is none); "
            "robust.name=norm_bound robust.bound=0.5 bounds updates",
        ),
        ({"privacy": {"delta": 1e-6}}, "privacy.delta = 1e-06 does nothing without privacy.eps"),
        ({"privacy": {"quantile": 0.5}}, "privacy.quantile = 0.5 does nothing without"),
        ({"privacy": {"model": "local"}}, "privacy.model = local does nothing without"),
        ({"privacy": {"noise": 3.0}}, "privacy.noise = 3.0 does nothing without"),
        ({"privacy": {"sampling": "poisson"}}, "privacy.sampling = poisson does nothing without"),
        ({"privacy": {"simulated": True}}, "privacy.simulated = True does nothing without"),
        ({"secure_threshold": 0.8}, "secure_threshold = 0.8 does nothing without secure = true"),
        (
            {"robust": {"name": "norm_bound", "bound": 1.0, "multiple": 2.0}},
            "robust.multiple = 2.0 does nothing beside robust.bound",
        ),
    ],
)
def test_a_wrong_value_is_one_sentence(plain: dict[str, Any], says: str) -> None:
    with pytest.raises(FedtailError) as refused:
        make_experiment(plain)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_switched_off_may_be_described() -> None:
    # In a comparison one line has no budget, and all have the other fields.
    off = make_experiment({"privacy": {"epsilon": float("inf"), "clip": 0.5, "model": "local"}})
    assert not off.protected
    both = make_experiment({"secure": True, "privacy": {"epsilon": 8.0}})
    assert both.protected == "summed securely and made differentially private"


def test_a_model_made_in_python_is_named_and_refused_from_a_file() -> None:
    described = tiny.experiment(data=Experiment().data).describe()
    assert described["model"] == {"python": "plain_model"}
    with pytest.raises(FedtailError, match="this run's model was made in Python; resume it there"):
        make_experiment(described)


def test_data_in_python_is_refused_from_a_file() -> None:
    described = tiny.experiment(model=MLP()).describe()
    with pytest.raises(FedtailError, match="this run's data was made in Python; resume it there"):
        make_experiment(described)


def test_a_file_that_is_not_there_or_not_toml(tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match=r"cannot read '.*none\.toml': No such file"):
        load_experiment(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = ")
    with pytest.raises(FedtailError, match="is not valid TOML"):
        load_experiment(tmp_path / "bad.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(FedtailError, match="is not valid TOML"):
        load_experiment(tmp_path / "binary.toml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("'quoted'", "quoted"),
        ("fedavg", "fedavg"),
        ("a b", "a b"),
        ("", ""),
        ("1e-3", 1e-3),
    ],
)
def test_values_of_words(text: str, value: Any) -> None:
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_words() -> None:
    assert parse_overrides(["method.local.lr=0.1", "name=a=b"]) == [
        ("method.local.lr", 0.1),
        ("name", "a=b"),
    ]
    for wrong in ("rounds", "=3"):
        with pytest.raises(FedtailError, match=r"is not of the form section\.field=value"):
            parse_overrides([wrong])


def test_overriding_goes_into_sections() -> None:
    plain: dict[str, Any] = {"method": "fedavg", "partition": {"name": "dirichlet", "alpha": 1}}
    override(plain, "method.local.lr", 0.1)
    override(plain, "partition", "iid")
    override(plain, "rounds", 3)
    assert plain == {
        "method": {"name": "fedavg", "local": {"lr": 0.1}},
        "partition": "iid",
        "rounds": 3,
    }
    assert make_experiment(plain).partition == IID()


def test_overriding_does_not_change_the_tables_it_was_given() -> None:
    table = {"name": "dirichlet", "alpha": 1}
    plain: dict[str, Any] = {"partition": table}
    override(plain, "partition.alpha", 2)
    assert table["alpha"] == 1
    assert plain["partition"]["alpha"] == 2


def test_an_experiment_is_frozen() -> None:
    field = "seed"  # by name: as an attribute, the type checker refuses it before the test can
    with pytest.raises(FedtailError, match="frozen"):
        setattr(Experiment(), field, 1)


# From a description to the real things


def test_the_setting_of_an_experiment() -> None:
    setting = prepare(tiny.experiment(server_per_class=0))
    assert setting.class_counts == (21, 13, 8, 0)
    server = setting.server(2)
    assert (server.round, server.rounds, server.per_round) == (2, 3, 4)
    assert list(server.clients) == list(range(6))
    assert server.data is None


def test_the_server_holds_what_no_client_does() -> None:
    # Two of each class that there is. Class 0 has 21, 1 has 13, 2 has 8, 3 has none.
    setting = prepare(tiny.experiment(server_per_class=2))
    held = setting.server(1).data
    assert held is not None
    assert torch.bincount(held.y, minlength=4).tolist() == [2, 2, 2, 0]
    assert setting.class_counts == (19, 11, 6, 0)


def test_initial_weights_come_from_the_seed_and_not_from_the_global_stream() -> None:
    torch.rand(7)
    one = prepare(tiny.experiment()).model.tensors()
    torch.rand(7)
    again, other = (prepare(tiny.experiment(seed=seed)).model.tensors() for seed in (0, 1))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["1.weight"], other["1.weight"])


def test_a_cosine_head_takes_the_place_of_the_users_own() -> None:
    given = tiny.plain_model()
    own = given.state_dict()
    experiment = tiny.experiment(FedAvg(), given, head="cosine")
    made = prepare(experiment).model

    assert isinstance(made.classifier, CosineHead)
    assert torch.equal(made.tensors()["1.weight"], own["1.weight"])  # the rest is as it was
    assert made.tensors()["3.weight"].norm(dim=0).tolist() == pytest.approx([1.0] * 4)
    assert isinstance(run(experiment).network.get_submodule("3"), CosineHead)
    assert isinstance(given.get_submodule("3"), nn.Linear)


def test_a_method_that_needs_a_linear_head_refuses_another() -> None:
    with pytest.raises(FedtailError, match=r"linear classifier .* not CosineHead"):
        run(tiny.experiment(CReFF(), head="cosine"))


def test_a_model_that_does_not_fit_is_refused_before_work_starts() -> None:
    def five_classes() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 5))

    with pytest.raises(FedtailError, match=r"output of shape \(2, 5\) where \(2, 4\) is needed"):
        prepare(tiny.experiment(model=five_classes))


def test_too_large_a_cohort_is_refused_when_the_data_names_the_clients() -> None:
    with pytest.raises(FedtailError, match="per_round = 9 is more than the 6 clients"):
        prepare(tiny.experiment(per_round=9))


def test_devices() -> None:
    assert choose_device("cpu").type == "cpu"
    assert choose_device("auto").type in ("cpu", "cuda", "mps")
    missing = next(
        kind
        for kind, there in {
            "cuda": torch.cuda.is_available(),
            "mps": torch.backends.mps.is_available(),
        }.items()
        if not there
    )
    with pytest.raises(FedtailError, match=f"device '{missing}' is not available here"):
        choose_device(missing)


def test_data_validation_is_the_section() -> None:
    short = Experiment.model_validate({"data": {"validation": 0.2}})
    assert short == Experiment(validation=0.2)
    assert short.validation.share == 0.2
    named = Experiment.model_validate({"data": {"name": "digits", "validation": 0.2}})
    assert named == short
    plain = {"data": {"validation": 0.2}, "validation": {"by": "client"}}
    assert Experiment.model_validate(plain).validation.by == "client"
