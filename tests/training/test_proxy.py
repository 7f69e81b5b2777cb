"""The proxy prior: what one epoch betrays, by hand, and the noise that hides it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import (
    IFCA,
    FedtailError,
    LocalTraining,
    Method,
    experts,
)
from fedtail.data.federation import Federation
from fedtail.forms import defect
from fedtail.models import CosineHead, ExpertModel, SplitModel
from fedtail.privacy.layout import why_no_sum
from fedtail.protocol import Payload, Update, grouped
from fedtail.reduce import reduced
from fedtail.setting import prepare
from fedtail.training import ClassPrior, Linear, PrivateProxyPrior, ProxyPrior
from fedtail.training.proxy import Survey, mean_head, mean_index

STEP = LocalTraining(lr=0.5, batch_size=100)  # full batch: one step
H, C = 4, 3
PRIVATE = {"name": "private_proxy", "index": "epoch"}


def epoch(**fields: Any) -> ProxyPrior:
    """Return the prior that reads Ω off the change of an epoch."""
    return ProxyPrior.model_validate({"name": "proxy", "index": "epoch", **fields})


def constant(counts: Sequence[Sequence[int]], value: float = 1.0) -> Federation:
    """Return clients with these class counts, whose features are all `value`."""
    labels = [c for row in counts for c, n in enumerate(row) for _ in range(n)]
    sizes = [sum(row) for row in counts]
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    parts = [list(range(a, a + n)) for a, n in zip(starts, sizes, strict=True)]
    return tiny.federation([[value] * H] * len(labels), labels, parts, classes=C)


def zero_head(features: int = H) -> SplitModel:
    model = SplitModel(nn.Sequential(nn.Linear(features, C, bias=False)))
    nn.init.zeros_(model.module.get_parameter("0.weight"))
    return model


def reply(
    prior: ProxyPrior,
    data: Federation,
    k: int,
    model: SplitModel,
    local: LocalTraining = STEP,
    **fields: Any,
) -> Payload:
    payload = Payload(grouped("model", model.tensors()))
    return prior.report(payload, tiny.client(data, k, model, round=0, **fields), local)


def surveyed(
    prior: ProxyPrior, data: Federation, model: SplitModel, answering: Sequence[int] = ()
) -> Survey:
    """Carry the preliminary exchange through; by default all answer."""
    server = tiny.server(model, len(data), num_classes=C, round=0)
    start = model.tensors()
    exchange = prior.survey(start, server)
    tasks = next(exchange)
    assert [(t.client, t.action) for t in tasks] == [(k, "inform") for k in range(len(data))]
    updates = []
    for k in answering or range(len(data)):
        client = tiny.client(data, k, model, round=0)
        updates.append(Update(k, prior.report(tasks[k].payload, client, STEP)))
    with pytest.raises(StopIteration) as end:
        exchange.send(reduced(updates, prior.form(tasks[0].payload, model, C)))
    survey: Survey = end.value.value
    return survey


def test_one_step_by_hand() -> None:
    # A zero head says 1/C for every class. With h = 1 and one full-batch step,
    # Δw_ij = η (n_i / n − 1/C) h_j, so that Ω_i = η H (n_i / n − 1/C):
    # 0.5 · 4 · (4/6 − 1/3, 2/6 − 1/3, 0 − 1/3) = (2/3, 0, −2/3).
    sent = reply(epoch(), constant([(4, 2, 0)]), 0, zero_head())
    assert sent.tensors["lpi/classes"].tolist() == pytest.approx([2 / 3, 0.0, -2 / 3], abs=1e-6)
    assert dict(sent.scalars) == {"samples": 6}
    assert set(sent.tensors) == {"lpi/classes"}


def test_the_gradient_by_hand() -> None:
    # Eq. 4: −∇ of the mean loss, without the rate: H (n_i / n − 1/C) = 4 (1/3, 0, −1/3), however
    # the samples are cut into batches, and whatever the optimiser would make of it.
    sent = [
        reply(ProxyPrior(index="gradient"), constant([(4, 2, 0)]), 0, zero_head(), local).tensors
        for local in (STEP, STEP.but(batch_size=1), STEP.but(lr=7.0, clip=0.01, momentum=0.9))
    ]
    for tensors in sent:
        assert tensors["lpi/classes"].tolist() == pytest.approx([4 / 3, 0.0, -4 / 3], abs=1e-6)


def test_a_bias_is_read_whatever_the_features_are() -> None:
    # With a bias the index is n_i / n − 1/C = (1/3, 0, −1/3) of a zero head, and features do not
    # come into it: with negative ones (standardised inputs) the rows say the opposite.
    data = constant([(4, 2, 0)], value=-1.0)
    head = SplitModel(nn.Sequential(nn.Linear(H, C)))
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    for prior, index in (
        (ProxyPrior(), [1 / 3, 0.0, -1 / 3]),
        (ProxyPrior(reads="rows"), [-4 / 3, 0.0, 4 / 3]),
        (epoch(reads="bias"), [1 / 6, 0.0, -1 / 6]),
    ):
        sent = reply(prior, data, 0, head)
        assert sent.tensors["lpi/classes"].tolist() == pytest.approx(index, abs=1e-6)


def test_without_a_bias_the_rows_are_read() -> None:
    data = constant([(4, 2, 0)])
    sent = [
        reply(prior, data, 0, zero_head()) for prior in (ProxyPrior(), ProxyPrior(reads="rows"))
    ]
    assert torch.equal(sent[0].tensors["lpi/classes"], sent[1].tensors["lpi/classes"])


@pytest.mark.parametrize("index", ["gradient", "epoch"])
def test_a_bias_that_is_frozen_is_not_read(index: str) -> None:
    # A step has the length 0.5 and decays nothing: the rows' sums are (2/3, 0, −2/3), as without
    # a bias, or twice that as a gradient. The bias would say 0 of every class.
    head = SplitModel(nn.Sequential(nn.Linear(H, C)))
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    head.classifier.bias.requires_grad_(False)
    prior = epoch(index=index, upload="layer")
    sent = reply(prior, constant([(4, 2, 0)]), 0, head).tensors["layer/weight"]
    assert tuple(sent.shape) == prior.form(Payload(), head, C).tensors["layer/weight"].shape
    length = 4 / 3 if index == "gradient" else 2 / 3
    assert sent.sum(dim=1).tolist() == pytest.approx([length, 0.0, -length], abs=1e-6)


@pytest.mark.parametrize("prior", ["proxy", "private_proxy"])
@pytest.mark.parametrize("method", ["bsm", "fedetf", "fednh", "fedloge"])
def test_rows_that_are_not_trained_are_refused_before_work_starts(method: str, prior: str) -> None:
    model = tiny.plain_model()
    if method == "bsm":  # the user froze them; the others put a fixed head in the place of theirs
        model.get_submodule("3").requires_grad_(False)
    made: Method[Any] = Method.model_validate({"name": method, "prior": prior})
    said = "'3' has none" if method in ("fedetf", "fednh") else "'3' is frozen: take another prior"
    with pytest.raises(FedtailError, match=said):
        prepare(tiny.experiment(made, lambda: model))


def test_of_several_models_the_first_has_to_be_readable() -> None:
    def two_experts() -> ExpertModel:
        return experts(tiny.plain_model(), "1", 2)

    # What answers for all models of IFCA has no weight of its own; what is asked has.
    found = prepare(tiny.experiment(IFCA(prior=ProxyPrior()), two_experts))
    assert not hasattr(found.model.classifier, "weight")


def test_what_goes_out_of_a_bias_is_one_number_a_class() -> None:
    prior = ProxyPrior(upload="layer")
    head = SplitModel(nn.Sequential(nn.Linear(H, C)))
    sent = reply(prior, constant([(4, 2, 0)]), 0, head).tensors["layer/weight"]
    declared = prior.form(Payload(), head, C).tensors["layer/weight"]
    assert tuple(sent.shape) == declared.shape == (C, 1)


def test_the_gradient_does_not_grow_with_a_client() -> None:
    # The shares of classes are the same, and so is Ω; with an epoch of batches of one sample the
    # client of three times the size goes about three times as far.
    small, large = constant([(4, 2, 0)]), constant([(12, 6, 0)])
    ones = STEP.but(batch_size=1, lr=1e-4)
    ratio = {}
    for index in ("gradient", "epoch"):
        prior = epoch(index=index)
        omega = [
            reply(prior, data, 0, zero_head(), ones).tensors["lpi/classes"][0]
            for data in (small, large)
        ]
        ratio[index] = float(omega[1] / omega[0])
    assert ratio["gradient"] == pytest.approx(1, rel=1e-5)
    # A rate of 1e-4: the head hardly moves in the epoch.
    assert ratio["epoch"] == pytest.approx(3, rel=1e-2)


def test_the_gradient_leaves_the_model_as_it_was() -> None:
    model = zero_head()
    reply(ProxyPrior(index="gradient"), constant([(4, 2, 0)]), 0, model)
    assert torch.equal(model.tensors()["0.weight"], torch.zeros(C, H))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_frozen_head_has_no_gradient() -> None:
    model = zero_head()
    heads = [model.classifier, zero_head().classifier]
    both = ExpertModel(nn.Identity(), [nn.Identity(), nn.Identity()], heads)
    both.train_only(0)
    found = reply(ProxyPrior(index="gradient"), constant([(4, 2, 0)]), 0, both).tensors
    # Mean logits give head 0 half of the gradient; head 1 stands still: their mean is a quarter.
    assert found["lpi/classes"].tolist() == pytest.approx([1 / 3, 0.0, -1 / 3], abs=1e-6)


def test_the_global_proxy_by_hand() -> None:
    # Ω^0 = 2 (4/6 − 1/3, 2/6 − 1/3, −1/3) = (2/3, 0, −2/3), n_0 = 6
    # Ω^1 = 2 (0 − 1/3, 2/2 − 1/3, −1/3) = (−2/3, 4/3, −2/3), n_1 = 2
    # Π = (6/8 · 2/3, 2/8 · 4/3, 0) = (1/2, 1/3, 0): the third has no positive part anywhere.
    survey = surveyed(epoch(floor=0.03), constant([(4, 2, 0), (0, 2, 0)]), zero_head())
    assert survey.gpi.tolist() == pytest.approx([0.5, 1 / 3, 0.0], abs=1e-6)
    assert survey.omega[1].tolist() == pytest.approx([-2 / 3, 4 / 3, -2 / 3], abs=1e-6)
    # Shares (0.6, 0.4, 0), floored at 0.03 / C = 0.01, times 8 / 1.01 samples.
    expected = [8 * share / 1.01 for share in (0.6, 0.4, 0.01)]
    assert survey.counts.tolist() == pytest.approx(expected, rel=1e-5)
    assert survey.counts.dtype == torch.float32


def test_normalised_per_client() -> None:
    # The positive parts as shares: (1, 0, 0) and (0, 1, 0), weighted 6/8 and 2/8.
    data = constant([(4, 2, 0), (0, 2, 0)])
    survey = surveyed(epoch(normalise_per_client=True), data, zero_head())
    assert survey.gpi.tolist() == pytest.approx([0.75, 0.25, 0.0], abs=1e-6)
    found = epoch(normalise_per_client=True).positive(torch.tensor([[3.0, 1.0, -2.0]]))
    assert found.tolist() == [[0.75, 0.25, 0.0]]
    found = epoch(normalise_per_client=True).positive(torch.tensor([[3e-20, 1e-20, -2.0]]))
    assert found[0].tolist() == pytest.approx([0.75, 0.25, 0.0])


def test_the_counts_are_as_many_as_the_samples() -> None:
    # Without any, as many as one: a prior of zeros would be no prior.
    for samples, total in ((5.0, 5.0), (1.0, 1.0), (0.0, 1.0)):
        found = epoch().estimate(torch.tensor([1.0, 0.0, 0.0]), samples)
        assert float(found.sum()) == pytest.approx(total)


def test_one_sample_in_all_is_the_whole() -> None:
    found = mean_index(torch.tensor([[3.0, 1.0]]).double(), torch.tensor([1.0]))
    assert found.tolist() == [3.0, 1.0]


@pytest.mark.parametrize("upload", ["index", "layer"])
@pytest.mark.parametrize("summed", [True, False])
def test_what_is_sent_is_what_was_declared(upload: Any, summed: bool) -> None:
    # And nothing else: the answer to any other question is refused.
    model, prior = zero_head(), epoch(upload=upload)
    task = Payload(grouped("model", model.tensors()), {"summed": True} if summed else {})
    sent = prior.report(task, tiny.client(constant([(4, 2, 0)]), 0, model), STEP)
    name = "gpi/classes" if summed else "lpi/classes" if upload == "index" else "layer/weight"
    assert set(sent.tensors) == {name}
    form = prior.form(task, model, C)
    assert defect(sent, form, 6) == ""
    for other in ("gpi/classes", "lpi/classes", "layer/weight"):
        wrong = Payload({other: sent.tensors[name]}, sent.scalars)
        assert (defect(wrong, form, 6) == "") == (other == name)
    # Only the part of an index that is summed is never negative.
    negative = Payload({name: sent.tensors[name] - 1}, sent.scalars)
    assert (defect(negative, form, 6) == "") == (not summed)


def test_what_is_asked_for_as_a_sum_may_be_summed() -> None:
    model = zero_head()
    payload = Payload(grouped("model", model.tensors()), {"summed": True})
    sent = epoch().report(payload, tiny.client(constant([(4, 2, 0)]), 0, model), STEP)
    assert sent.tensors["gpi/classes"].tolist() == pytest.approx([2 / 3, 0.0, 0.0], abs=1e-6)
    form = epoch().form(payload, model, C)
    assert why_no_sum(form) == "" and defect(sent, form, 6) == ""


def test_equal_clients_with_a_zero_head() -> None:
    # IID: every client has (8, 5, 2); Π ∝ max(n_i − n / C, 0) = (3, 0, 0) for n / C = 5, and for
    # (7, 6, 2): (2, 1, 0).
    for counts, expected in (((8, 5, 2), (1.0, 0.0, 0.0)), ((7, 6, 2), (2 / 3, 1 / 3, 0.0))):
        gpi = surveyed(epoch(), constant([counts] * 3), zero_head()).gpi
        assert (gpi / gpi.sum()).tolist() == pytest.approx(expected, abs=1e-5)


def test_balanced_clients_leave_a_uniform_prior() -> None:
    # Ω = 0 up to rounding, or exactly for clients without samples: nothing is known.
    data = tiny.federation([[1.0] * H], [0], [[], []], classes=C)
    survey = surveyed(epoch(), data, zero_head())
    assert survey.gpi.tolist() == [0.0, 0.0, 0.0]
    assert len(set(survey.counts.tolist())) == 1
    assert float(survey.counts[0]) > 0


def test_a_client_that_does_not_answer_has_a_row_of_zeros() -> None:
    data = constant([(4, 2, 0), (0, 2, 0)])
    survey = surveyed(epoch(), data, zero_head(), answering=[1])
    assert survey.omega[0].tolist() == [0.0, 0.0, 0.0]
    assert survey.gpi.tolist() == pytest.approx([0.0, 4 / 3, 0.0], abs=1e-6)


def test_heads_are_averaged_on_copies() -> None:
    # Three heads that give the mean logits: each gets a third of the gradient. All start from
    # zero, so the mean head moves by a third of the change of one head alone.
    data = constant([(4, 2, 0)])
    heads = [zero_head().classifier for _ in range(3)]
    model = ExpertModel(nn.Identity(), [nn.Identity() for _ in heads], heads)
    start = model.tensors()
    sent = reply(epoch(), data, 0, model).tensors["lpi/classes"]
    assert sent.tolist() == pytest.approx([2 / 9, 0.0, -2 / 9], abs=1e-6)
    # The next client starts from the same weights, and sends the same.
    model.load(start)
    assert torch.equal(reply(epoch(), data, 0, model).tensors["lpi/classes"], sent)


def test_a_cosine_head_is_read_by_columns() -> None:
    head = CosineHead(H, C)
    model = SplitModel(nn.Sequential(nn.Identity(), head), "1")
    assert torch.equal(mean_head(model), head.weight.detach().T)
    sent = reply(epoch(upload="layer"), constant([(5, 0, 0)]), 0, model)
    assert sent.tensors["layer/weight"].shape == (C, H)


def test_the_layer_holds_the_index() -> None:
    data = constant([(4, 2, 0), (0, 2, 1)])
    torch.testing.assert_close(
        surveyed(epoch(upload="layer"), data, zero_head()).omega,
        surveyed(epoch(), data, zero_head()).omega,
        rtol=0,
        atol=0,
    )


def test_weight_decay_does_not_enter() -> None:
    model = zero_head()
    nn.init.ones_(model.module.get_parameter("0.weight"))
    start, data = model.tensors(), constant([(4, 2, 0)])
    plain = reply(epoch(), data, 0, model)
    model.load(start)
    decayed = reply(epoch(), data, 0, model, STEP.but(weight_decay=0.5))
    assert torch.equal(plain.tensors["lpi/classes"], decayed.tensors["lpi/classes"])
    # Equal rows say 1/C as well: what the first test derives.
    expected = pytest.approx([2 / 3, 0.0, -2 / 3], abs=1e-6)
    assert plain.tensors["lpi/classes"].tolist() == expected


def test_one_epoch_whatever_the_method_does() -> None:
    sent = [
        reply(epoch(), constant([(4, 2, 0)]), 0, zero_head(), local).tensors["lpi/classes"]
        for local in (STEP, STEP.but(epochs=7), STEP.but(steps=3))
    ]
    assert torch.equal(sent[0], sent[1])
    assert torch.equal(sent[0], sent[2])


def test_the_rate_is_that_of_the_first_round() -> None:
    sent = [
        reply(epoch(), constant([(4, 2, 0)]), 0, zero_head(), local, rounds=4)
        for local in (STEP, STEP.but(schedule=Linear()))
    ]
    assert torch.equal(*(answer.tensors["lpi/classes"] for answer in sent))


def test_it_trains_on_augmented_samples() -> None:
    # Twice the features are twice the gradient at a zero head.
    class Twice:
        def __call__(self, x: Tensor, generator: torch.Generator, constants: object) -> Tensor:
            return 2 * x

    data = constant([(4, 2, 0)])
    object.__setattr__(data, "augment", Twice())
    sent = reply(epoch(), data, 0, zero_head())
    assert sent.tensors["lpi/classes"].tolist() == pytest.approx([4 / 3, 0.0, -4 / 3], abs=1e-6)


def test_gradients_are_clipped_as_in_training() -> None:
    # Δw has the norm 0.5 · 0.943 without clipping, see below.
    sent = reply(epoch(upload="layer"), constant([(4, 2, 0)]), 0, zero_head(), STEP.but(clip=0.1))
    assert float(sent.tensors["layer/weight"].norm()) == pytest.approx(0.5 * 0.1, rel=1e-4)


def test_one_sample_is_normalised_by_the_running_statistics() -> None:
    model = SplitModel(nn.Sequential(nn.BatchNorm1d(H), nn.Linear(H, C)))
    sent = reply(epoch(), constant([(1, 0, 0)]), 0, model)
    assert float(sent.tensors["lpi/classes"][0]) > 0
    assert int(model.tensors()["0.num_batches_tracked"]) == 0


def test_it_trains_in_training_mode() -> None:
    model = SplitModel(nn.Sequential(nn.BatchNorm1d(H), nn.Linear(H, C)))
    model.eval()
    reply(epoch(), constant([(4, 2, 0)]), 0, model)
    assert int(model.tensors()["0.num_batches_tracked"]) == 1


def test_a_classifier_without_weight_is_refused() -> None:
    class Odd(nn.Module):
        in_features, out_features = H, C

        def forward(self, x: Tensor) -> Tensor:
            return x[:, :C]

    with pytest.raises(FedtailError, match="reads the classifier's weight; '0' has none"):
        mean_head(SplitModel(nn.Sequential(Odd()), "0"))


def test_a_client_that_was_told_nothing_has_its_own_counts() -> None:
    client = tiny.client(constant([(4, 2, 0)]), 0, zero_head())
    assert epoch().counts(None, client).tolist() == [4.0, 2.0, 0.0]
    told = torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(epoch().counts(told, client), told)


class TestNoise:
    """GBME-p's release."""

    DATA = constant([(4, 2, 0)])

    def test_infinite_epsilon_adds_nothing(self) -> None:
        plain = reply(epoch(), self.DATA, 0, zero_head())
        silent = PrivateProxyPrior(epsilon=math.inf, clip=1e-6, upload="index", index="epoch")
        found = reply(silent, self.DATA, 0, zero_head())
        assert torch.equal(found.tensors["lpi/classes"], plain.tensors["lpi/classes"])
        again: ClassPrior = ClassPrior.model_validate(silent.describe())
        assert again == silent

    @pytest.mark.parametrize("upload", ["index", "layer"])
    def test_the_noise_of_the_index_is_sigma_root_h(self, upload: str) -> None:
        # Ω̂_i − Ω_i is a sum of H independent N(0, σ²). Δw has the norm 0.5 √(2 · 4 / 9) = 0.471,
        # so that a Δ of 1 does not clip it. At ε = 5, σ is 0.505 and far from σ².
        prior = PrivateProxyPrior.model_validate(
            {**PRIVATE, "epsilon": 5.0, "bound": "clip", "upload": upload}
        )
        omega = torch.tensor([2 / 3, 0.0, -2 / 3])
        differences = []
        for k in range(300):
            sent = reply(prior, self.DATA, 0, zero_head(), seed=k).tensors
            found = sent["lpi/classes"] if upload == "index" else sent["layer/weight"].sum(dim=1)
            differences.append(found - omega)
        every = torch.stack(differences)
        # 900 numbers: the relative error of their deviation is about 1 / √1800 = 2.4 %.
        assert float(every.std()) == pytest.approx(prior.sigma * math.sqrt(H), rel=0.1)
        assert float(every.mean()) == pytest.approx(0, abs=0.25)

    @pytest.mark.parametrize(("bound", "norm"), [("clip", 0.4714), ("normalise", 1.0)])
    def test_what_is_released_is_bounded(self, bound: str, norm: float) -> None:
        # δ close to 1 and a huge ε: hardly any noise, so that the bound shows.
        fields = {"epsilon": 1e6, "delta": 0.9, "bound": bound}
        for clip, expected in ((1.0, norm), (0.1, 0.1)):
            prior = PrivateProxyPrior.model_validate({**PRIVATE, **fields, "clip": clip})
            sent = reply(prior, self.DATA, 0, zero_head()).tensors["layer/weight"]
            assert float(sent.norm()) == pytest.approx(expected, rel=0.02)

    def test_only_what_is_noisy_may_be_seen_singly(self) -> None:
        for epsilon, seen in ((1.0, True), (math.inf, False)):
            form = PrivateProxyPrior(epsilon=epsilon).form(Payload(), zero_head(), C)
            assert form.why and (why_no_sum(form) == "") == seen

    def test_a_client_without_samples_sends_noise_alone(self) -> None:
        empty = tiny.federation([[1.0] * H], [0], [[]], classes=C)
        sent = reply(PrivateProxyPrior(), empty, 0, zero_head()).tensors["layer/weight"]
        assert bool(torch.isfinite(sent).all())
        assert float(sent.norm()) > 0

    def test_clients_draw_different_noise(self) -> None:
        data = constant([(4, 2, 0), (4, 2, 0)])
        sent = [reply(PrivateProxyPrior(), data, k, zero_head()).tensors for k in (0, 1)]
        assert not torch.equal(sent[0]["layer/weight"], sent[1]["layer/weight"])

    def test_sensitivity_and_sigma(self) -> None:
        # c = 2.7312 at δ = 0.03; a replaced client can be 2Δ away.
        paper = PrivateProxyPrior(epsilon=5, clip=2.0, mechanism="paper")
        assert paper.sigma == pytest.approx(2 * 2.7312 / 5, rel=1e-4)
        assert paper.but(neighbours="replaced").sigma == pytest.approx(2 * paper.sigma)
        assert PrivateProxyPrior(epsilon=5).sigma == pytest.approx(0.50455, rel=1e-4)

    def test_the_papers_rule_warns_where_it_is_not_proved(self) -> None:
        model = zero_head()
        server = tiny.server(model, 1, num_classes=C)
        with pytest.warns(UserWarning, match=r"proved for ε < 1.*worth ε = 12\.79"):
            next(PrivateProxyPrior(mechanism="paper").survey(model.tensors(), server))
        assert server.logged["epsilon"] == pytest.approx(12.79, abs=0.01)
        next(PrivateProxyPrior(mechanism="paper", epsilon=0.5).survey(model.tensors(), server))
        assert float(server.logged["epsilon"]) < 0.5
        with pytest.warns(UserWarning, match="not for epsilon = 1"):
            next(PrivateProxyPrior(mechanism="paper", epsilon=1).survey(model.tensors(), server))
        # Without noise there is nothing to prove.
        silent = PrivateProxyPrior(mechanism="paper", epsilon=math.inf)
        next(silent.survey(model.tensors(), server))
