"""BalanceFL by hand: each of its terms on logits whose exponentials are whole numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import BalanceFL, FedAvg, LocalRun, LocalTraining, run
from fedtail.data.federation import Federation
from fedtail.methods.balancefl import Lesson, Noise, inheritance, negative_entropy, pooled_root
from fedtail.models import SplitModel
from fedtail.protocol import Payload, grouped
from fedtail.training import ClassBalanced, Shuffled
from fedtail.training.teacher import taught

OFF: dict[str, Any] = {
    "inherit": False,
    "augment_features": False,
    "smooth": False,
    "sampler": Shuffled(),
}
ABSENT = torch.tensor([False, False, True, True])

# e^z = (3, 1, 9, 1), and tempered with T = 2, e^(z/2) = (√3, 1, 3, 1).
Z = [math.log(3), 0.0, math.log(9), 0.0]


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def logits_of(z: Sequence[float]) -> SplitModel:
    """Return a model whose logits for x = 1 are its weights."""
    model = SplitModel(nn.Sequential(nn.Linear(1, len(z), bias=False)))
    with torch.no_grad():
        model.module.get_parameter("0.weight").copy_(torch.tensor(z)[:, None])
    return model


def started(method: BalanceFL, model: SplitModel, data: Federation, k: int = 0) -> LocalRun:
    """Return a task that has received the model and done no step."""
    payload = Payload(grouped("model", model.tensors()))
    local = method.start(payload, tiny.client(data, k, model))
    model.train()
    return local


def loss_of(method: BalanceFL, labels: list[int], batch: list[int] | None = None) -> Tensor:
    """Return ∂loss/∂z, and the loss as last entry, of a client with these labels at logits Z."""
    model = logits_of(Z)
    data = tiny.federation([[1.0]] * len(labels), labels, [range(len(labels))], classes=len(Z))
    x, y = data.client(0).batch(torch.tensor(batch or range(len(labels))))
    loss = method.batch_loss(started(method, model, data), x, y)
    (gradient,) = torch.autograd.grad(loss, [model.module.get_parameter("0.weight")])
    return torch.cat([gradient.flatten(), loss.detach()[None]])


def term(*p: float) -> float:
    """Return Σ p ln p."""
    return sum(q * math.log(q) for q in p)


class TestLoss:
    """One sample of class 0 in each batch; the client holds classes 0 and 1, one sample each."""

    def test_the_domain_of_the_code(self) -> None:
        # Over the active, e^z = (3, 1): q = (3/4, 1/4), CE = -ln 3/4, Smooth = Σ q ln q.
        # Over the absent, e^(z/2) = (3, 1): q' = (3/4, 1/4), and the teacher is the student, so
        # KI = -Σ q' ln q'. λ1 = 0.1, n = 1: the loss is CE + KI + 0.1 Smooth.
        # Gradient: CE gives q - e_0 = (-1/4, 1/4) to the active, KI 0 to all. Smooth gives
        # q_i (ln q_i - S), S = Σ q ln q.
        found = loss_of(BalanceFL(lambda1=0.1, domain="code"), [0, 1], batch=[0])
        s = term(3 / 4, 1 / 4)
        assert float(found[-1]) == pytest.approx(-math.log(3 / 4) - s + 0.1 * s, rel=1e-6)
        slope = [0.1 * q * (math.log(q) - s) for q in (3 / 4, 1 / 4)]
        expected = [-1 / 4 + slope[0], 1 / 4 + slope[1], 0.0, 0.0]
        assert found[:-1].tolist() == pytest.approx(expected, abs=1e-6)

    def test_the_domain_of_the_paper(self) -> None:
        # q = (3, 1, 9, 1) / 14 and q' = (√3, 1, 3, 1) / (5 + √3): CE = -ln 3/14, KI sums the last
        # two of q', Smooth the first two of q.
        found = loss_of(BalanceFL(lambda1=0.1, domain="paper"), [0, 1], batch=[0])
        total = 5 + math.sqrt(3)
        expected = -math.log(3 / 14) - term(3 / total, 1 / total) + 0.1 * term(3 / 14, 1 / 14)
        assert float(found[-1]) == pytest.approx(expected, rel=1e-6)

    @pytest.mark.parametrize("domain", ["code", "paper"])
    def test_cross_entropy_and_the_absent(self, domain: Any) -> None:
        # Code: no gradient for absent logits. Paper: q_j = 9/14 and 1/14.
        method = BalanceFL(domain=domain, ki_weight=0, smooth=False)
        found = loss_of(method, [0, 1], batch=[0])
        expected = [0.0, 0.0] if domain == "code" else [9 / 14, 1 / 14]
        assert found[2:4].tolist() == pytest.approx(expected, rel=1e-6)
        assert domain == "paper" or found[2:4].tolist() == [0.0, 0.0]

    def test_without_inheritance_it_is_cross_entropy_over_all(self) -> None:
        # A weight of 0 is not the same: in the code's domain it still hides the absent classes.
        without = loss_of(BalanceFL(inherit=False, smooth=False), [0, 1], batch=[0])
        hidden = loss_of(BalanceFL(ki_weight=0, smooth=False, domain="code"), [0, 1], batch=[0])
        assert float(without[-1]) == pytest.approx(-math.log(3 / 14), rel=1e-6)
        assert float(hidden[-1]) == pytest.approx(-math.log(3 / 4), rel=1e-6)

    def test_absent_from_the_batch(self) -> None:
        # The client holds 0 and 1, the batch only 0: CE over one logit is 0, Smooth too, and KI is
        # over e^(z/2) = (1, 3, 1).
        found = loss_of(BalanceFL(absent_by="batch", domain="code"), [0, 1], batch=[0])
        assert float(found[-1]) == pytest.approx(-term(1 / 5, 3 / 5, 1 / 5), rel=1e-6)

    def test_smoothing_is_summed_or_averaged(self) -> None:
        # Three samples of class 0, all with q = (3/4, 1/4) over the active.
        parts = {"inherit": False, "lambda1": 0.1, "domain": "code"}
        plain = loss_of(BalanceFL(inherit=False, smooth=False), [0, 0, 0, 1], batch=[0, 1, 2])[-1]
        for over, times in (("sum", 3), ("mean", 1)):
            method = BalanceFL.model_validate({**parts, "smooth_over": over})
            found = loss_of(method, [0, 0, 0, 1], batch=[0, 1, 2])[-1]
            expected = 0.1 * times * term(3 / 4, 1 / 4)
            assert float(found - plain) == pytest.approx(expected, rel=1e-4)

    def test_all_classes_active_have_nothing_to_inherit(self) -> None:
        found = loss_of(BalanceFL(smooth=False), [0, 1, 2, 3], batch=[0])
        assert float(found[-1]) == pytest.approx(-math.log(3 / 14), rel=1e-6)

    def test_one_active_class_learns_from_the_teacher_alone(self) -> None:
        # CE over one logit is 0 and so is its entropy; KI is over e^(z/2) = (√3, 1, 1).
        found = loss_of(BalanceFL(domain="code"), [2, 2])
        total = 2 + math.sqrt(3)
        expected = -term(math.sqrt(3) / total, 1 / total, 1 / total)
        assert float(found[-1]) == pytest.approx(expected, rel=1e-6)
        assert found[:-1].tolist() == pytest.approx([0.0] * 4, abs=1e-6)

    @pytest.mark.parametrize("part", ["inherit", "smooth"])
    def test_only_cross_entropy_sees_the_noise(self, part: str) -> None:
        # p = 1 and R = (3): the one feature 1 becomes 1 + 3 n, n the number drawn after whether it
        # does, and the logits z become (1 + 3 n) z. KI and Smooth are those of the clean z.
        method = BalanceFL.model_validate({"lambda1": 0.1, "domain": "code", **OFF, part: True})
        data = tiny.federation([[1.0]] * 2, [0, 1], [range(2)], classes=4)
        local = started(method, logits_of(Z), data)
        stream, again = (torch.Generator().manual_seed(5) for _ in range(2))
        noise = Noise(torch.tensor([[3.0]]), stream)
        local.aux = Lesson(local.aux.teacher, noise, torch.ones(4), stream)
        x, y = data.client(0).batch(torch.tensor([0]))
        found = float(method.batch_loss(local, x, y).detach())
        torch.rand(1, generator=again)
        spread = (1 + 3 * torch.randn(1, 1, generator=again)) * torch.tensor(Z)
        if part == "inherit":
            expected = -float(spread[0, :2].log_softmax(dim=0)[0]) - term(3 / 4, 1 / 4)
        else:
            expected = -float(spread[0].log_softmax(dim=0)[0]) + 0.1 * term(3 / 4, 1 / 4)
        assert found == pytest.approx(expected, rel=1e-5)


class TestInheritance:
    @pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
    def test_at_the_teacher_the_codes_form_rests(self, temperature: float) -> None:
        z = noise(0, 3, 4).requires_grad_()
        loss = inheritance(z, z.detach(), ABSENT, temperature, "code")
        (gradient,) = torch.autograd.grad(loss, z)
        assert gradient.abs().max() < 1e-15

    def test_at_the_teacher_the_papers_form_pushes_on(self) -> None:
        # ∂KI/∂z_i = (1/T) (s_N q'_i - 1[i absent] q'_i), s_N the mass of the absent; mean of 3.
        z = noise(1, 3, 4).requires_grad_()
        (gradient,) = torch.autograd.grad(inheritance(z, z.detach(), ABSENT, 2.0, "paper"), z)
        q = (z.detach() / 2).softmax(dim=1)
        mass = q[:, ABSENT].sum(dim=1, keepdim=True)
        assert torch.allclose(gradient, (mass * q - ABSENT * q) / 2 / 3, atol=1e-12)
        assert bool((gradient[:, ABSENT] < 0).all())

    def test_the_codes_form_does_not_touch_active_logits(self) -> None:
        z, taught = noise(2, 3, 4).requires_grad_(), noise(3, 3, 4)
        (gradient,) = torch.autograd.grad(inheritance(z, taught, ABSENT, 2.0, "code"), z)
        assert torch.equal(gradient[:, :2], torch.zeros(3, 2, dtype=torch.float64))
        assert bool((gradient[:, 2:] != 0).all())

    @pytest.mark.parametrize("number", [0, 1])
    def test_none_or_one_absent_class_says_nothing_in_the_code(self, number: int) -> None:
        z, absent = noise(4, 3, 4).requires_grad_(), torch.arange(4) < number
        loss = inheritance(z, noise(5, 3, 4), absent, 2.0, "code")
        assert float(loss.detach()) == 0.0
        assert torch.equal(torch.autograd.grad(loss, z)[0], torch.zeros_like(z))

    def test_one_absent_class_still_speaks_in_the_paper(self) -> None:
        z, absent = noise(4, 3, 4).requires_grad_(), torch.arange(4) < 1
        loss = inheritance(z, noise(5, 3, 4), absent, 2.0, "paper")
        assert bool((torch.autograd.grad(loss, z)[0] != 0).all())

    @pytest.mark.parametrize("domain", ["code", "paper"])
    def test_huge_logits_stay_finite(self, domain: Any) -> None:
        z = (1e4 * noise(6, 3, 4)).requires_grad_()
        loss = inheritance(z, -z.detach(), ABSENT, 2.0, domain)
        smooth = negative_entropy(z, ~ABSENT, domain).sum()
        for value in (loss, smooth):
            assert bool(torch.isfinite(value))
            assert bool(torch.isfinite(torch.autograd.grad(value, z)[0]).all())


class TestSmooth:
    def test_uniform_over_the_active_is_the_least(self) -> None:
        # Σ q ln q = -ln 2 for two active classes, whatever the absent logits are.
        level = torch.tensor([[1.0, 1.0, 50.0, -7.0]])
        assert float(negative_entropy(level, ~ABSENT, "code")) == pytest.approx(-math.log(2))
        others = negative_entropy(noise(7, 100, 4), ~ABSENT, "code")
        assert bool((others > -math.log(2)).all())

    def test_absent_logits_do_not_matter_in_the_code(self) -> None:
        z = noise(8, 3, 4).requires_grad_()
        (gradient,) = torch.autograd.grad(negative_entropy(z, ~ABSENT, "code").sum(), z)
        assert torch.equal(gradient[:, 2:], torch.zeros(3, 2, dtype=torch.float64))


class TestCovariance:
    def test_it_is_the_weighted_mean_of_unbiased_class_covariances(self) -> None:
        # n = (5, 3, 1): the class of one sample counts in the divisor with a zero matrix.
        h, y = noise(9, 9, 3), torch.tensor([0, 1, 0, 3, 0, 1, 0, 0, 1])
        by_hand = (5 * torch.cov(h[y == 0].T) + 3 * torch.cov(h[y == 1].T)) / 9
        root = pooled_root(h, y)
        assert root.dtype == torch.float32
        assert torch.allclose((root.T @ root).double(), by_hand, atol=1e-6)

    def test_by_hand(self) -> None:
        # Class 0: (0, 0), (2, 4): covariance [[2, 4], [4, 8]]. Class 1: (1, 1) three times: zero.
        # Σ = 2/5 of the first.
        h = torch.tensor([[0.0, 0.0], [2.0, 4.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
        root = pooled_root(h, torch.tensor([0, 0, 1, 1, 1]))
        expected = torch.tensor([[0.8, 1.6], [1.6, 3.2]])
        assert torch.allclose(root.T @ root, expected, atol=1e-6)

    def test_fewer_samples_than_channels_and_dead_ones(self) -> None:
        h = noise(10, 4, 6)
        h[:, 2] = 0.0
        root = pooled_root(h, torch.tensor([0, 0, 1, 1]))
        by_hand = (2 * torch.cov(h[:2].T) + 2 * torch.cov(h[2:].T)) / 4
        assert root.shape == (4, 6)
        assert torch.allclose((root.T @ root).double(), by_hand, atol=1e-6)
        assert torch.equal(root[:, 2], torch.zeros(4))

    def test_one_sample_has_no_spread(self) -> None:
        assert torch.equal(pooled_root(torch.ones(1, 3), torch.tensor([2])), torch.zeros(1, 3))

    def test_the_noise_has_this_covariance(self) -> None:
        # Prepare: h = 0 and p = 1, so that the features are the noise.
        r = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0]])
        n, model = 100_000, SplitModel(nn.Sequential(nn.Linear(3, 2)))
        y = torch.zeros(n, dtype=torch.int64)
        stream = torch.Generator().manual_seed(0)
        lesson = Lesson(None, Noise(r, stream), torch.ones(2), stream)
        clean = model.output(torch.zeros(n, 3))

        # Execute
        features = BalanceFL().augmented(model, clean, y, lesson).features

        # Assert: an entry of the empirical covariance varies by sqrt((Σ_ii Σ_jj + Σ_ij²) / n).
        sigma = r.T @ r
        error = ((sigma.diag()[:, None] * sigma.diag() + sigma**2) / n).sqrt()
        assert bool(((features.detach().T.cov() - sigma).abs() < 3 * error).all())

    def test_how_often_which_class_is_augmented(self) -> None:
        # n = (8, 6, 2, 0): p = 1 - n / 8 = (0, 1/4, 3/4, 1).
        labels = [0] * 8 + [1] * 6 + [2] * 2
        x = noise(11, 16, 4).tolist()
        data = tiny.federation(x, labels, [range(16)], classes=4)
        model = SplitModel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
        method = BalanceFL()
        lesson: Lesson = started(method, model, data).aux
        assert lesson.p.tolist() == [0.0, 0.25, 0.75, 1.0]

        n = 10_000
        clean = model.output(torch.zeros(3 * n, 4))
        y = torch.arange(3).repeat_interleave(n)
        moved = (method.augmented(model, clean, y, lesson).features != clean.features).any(dim=1)
        shares = moved.view(3, n).double().mean(dim=1)
        assert float(shares[0]) == 0.0
        # Three standard errors of a share: 3 sqrt(p (1 - p) / n).
        assert shares[1:].tolist() == pytest.approx([0.25, 0.75], abs=3 * math.sqrt(0.1875 / n))

    def test_the_noise_is_of_the_tasks_own_stream(self) -> None:
        model, found = logits_of([1.0, 2.0]), []
        for seed in (1, 2):
            torch.manual_seed(seed)
            own = torch.Generator().manual_seed(0)
            noise = Noise(torch.ones(1, 1), own)
            lesson = Lesson(None, noise, torch.full((2,), 0.5), own)
            clean = model.output(torch.ones(50, 1))
            y = torch.zeros(50, dtype=torch.int64)
            found.append(BalanceFL().augmented(model, clean, y, lesson).features)
        assert torch.equal(found[0], found[1])

    def test_equal_classes_are_not_augmented(self) -> None:
        data = tiny.federation(noise(12, 4, 2).tolist(), [0, 0, 1, 1], [range(4)])
        model = SplitModel(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)))
        lesson: Lesson = started(BalanceFL(), model, data).aux
        assert lesson.p.tolist() == [0.0, 0.0]

    @pytest.mark.parametrize(("labels", "p"), [([0, 1], [0.0, 0.0, 1.0]), ([], [1.0, 1.0, 1.0])])
    def test_one_sample_of_a_class_or_none_at_all(self, labels: list[int], p: list[float]) -> None:
        data = tiny.federation([[1.0]] * 3, [*labels, 2, 2, 2][:3], [range(len(labels))], classes=3)
        lesson: Lesson = started(BalanceFL(), logits_of([0.0] * 3), data).aux
        assert lesson.p.tolist() == p

    @pytest.mark.parametrize("length", [{"epochs": 3}, {"steps": 1}])
    def test_it_is_of_the_teachers_features_of_all_samples(self, length: dict[str, Any]) -> None:
        x, labels = noise(13, 7, 2), [0, 0, 0, 0, 1, 1, 1]
        data = tiny.federation(x.tolist(), labels, [range(7)])
        model = SplitModel(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)))
        lesson: Lesson = started(BalanceFL(local=tiny.quick(**length)), model, data).aux
        assert lesson.noise is not None
        root = lesson.noise.root
        expected = pooled_root(model.features(x.float()).detach(), torch.tensor(labels))
        assert torch.allclose(root.T @ root, expected.T @ expected, atol=1e-5)


def test_the_sampler_draws_active_classes_equally() -> None:
    # n = (90, 8, 2): 50 epochs of 100 draws, 5000 / 3 of each class expected. χ² with 2 degrees of
    # freedom is above 13.8 once in a thousand.
    labels = torch.tensor([0] * 90 + [1] * 8 + [4] * 2)
    sampler, stream = BalanceFL().sampler, torch.Generator().manual_seed(0)
    assert sampler == ClassBalanced(gamma=0)
    epochs = [sampler.order(labels, stream) for _ in range(50)]
    assert {len(epoch) for epoch in epochs} == {100}
    drawn = labels[torch.cat(epochs)].bincount()[[0, 1, 4]].double()
    assert float(((drawn - 5000 / 3) ** 2 / (5000 / 3)).sum()) < 13.8


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.dropout_model])
@pytest.mark.parametrize("fields", [{"optimizer": "adam", "lr": 0.005}, {"momentum": 0.9}])
def test_all_switches_off_is_fedavg_to_the_bit(
    model: Callable[[], nn.Module], fields: dict[str, Any]
) -> None:
    local = tiny.quick(**fields)
    ours = run(tiny.experiment(BalanceFL(local=local, **OFF), model))
    assert ours.digest == run(tiny.experiment(FedAvg(local=local), model)).digest


def test_every_switch_changes_something() -> None:
    def digest(**fields: Any) -> str:
        method = BalanceFL.model_validate({**OFF, "local": tiny.quick(), **fields})
        return run(tiny.experiment(method, rounds=1)).digest

    changed = [{"inherit": True}, {"augment_features": True}, {"smooth": True}]
    found = [digest(), *(digest(**c) for c in changed), digest(sampler=ClassBalanced())]
    assert len(set(found)) == 5


class TestTeacher:
    # Inputs that differ in mean and spread from the initial statistics (0, 1) of BatchNorm.
    DATA = tiny.federation(
        [[float(v)] for v in (3, 5, 9, 4, 8, 6)], [0, 0, 0, 1, 1, 0], [range(6)], 4
    )

    @staticmethod
    def normed(width: int = 1) -> SplitModel:
        norm = nn.BatchNorm1d(width)
        return SplitModel(nn.Sequential(norm, nn.Linear(width, 3), nn.Linear(3, 4)))

    @pytest.mark.parametrize("mode", ["train", "eval"])
    def test_it_never_moves_and_leaves_no_trace(self, mode: Any) -> None:
        # Prepare
        local = LocalTraining(batch_size=6, lr=0.1)
        method = BalanceFL(local=local, teacher_mode=mode, sampler=Shuffled())
        model = self.normed()
        received = model.tensors()
        step = started(method, model, self.DATA)
        teacher = step.aux.teacher
        x, y = self.DATA.client(0).batch(torch.arange(6))
        before = taught(teacher, x)

        # Execute
        for _ in range(3):
            method.step(step, x, y)

        # Assert: the teacher is as received, and as it was.
        for name, tensor in teacher.tensors().items():
            assert name.endswith("num_batches_tracked") or torch.equal(tensor, received[name])
        assert torch.equal(taught(teacher, x), before)
        # The student saw three batches, and its statistics moved by those alone: with momentum 0.1
        # from 0 towards the mean 35/6, that is (1 - 0.9³) 35/6.
        own = model.tensors()
        assert int(own["0.num_batches_tracked"]) == 3
        assert float(own["0.running_mean"]) == pytest.approx((1 - 0.9**3) * 35 / 6, rel=1e-5)
        assert not torch.equal(own["1.weight"], received["1.weight"])

    def test_its_mode_is_the_one_chosen(self) -> None:
        # In training mode the batch is normalised by itself; in evaluation mode, from (0, 1), not.
        x, _ = self.DATA.client(0).batch(torch.arange(6))
        model = self.normed()
        for mode in ("train", "eval"):
            method = BalanceFL.model_validate({"teacher_mode": mode})
            teacher = started(method, model, self.DATA).aux.teacher
            normalised = teacher.module[0](x)
            assert (abs(float(normalised.mean())) < 1e-5) == (mode == "train")

    def test_there_is_none_without_inheritance(self) -> None:
        assert started(BalanceFL(inherit=False), self.normed(), self.DATA).aux.teacher is None
        assert started(BalanceFL(**OFF), self.normed(), self.DATA).aux is None


@pytest.mark.parametrize("domain", ["code", "paper"])
@pytest.mark.parametrize("absent_by", ["client", "batch"])
@pytest.mark.parametrize(
    "labels", [[], [1], [1, 1, 1], [0, 1, 2, 3], [0] * 9 + [3]], ids=lambda y: f"{len(y)} samples"
)
def test_awkward_clients_stay_finite(domain: Any, absent_by: Any, labels: list[int]) -> None:
    x = noise(14, len(labels) + 1, 2).tolist()
    data = tiny.federation(x, [*labels, 0], [range(len(labels))], classes=4)
    model = TestTeacher.normed(width=2)
    method = BalanceFL(domain=domain, absent_by=absent_by, local=tiny.quick(epochs=2))
    payload = Payload(grouped("model", model.tensors()))
    reply = method.train(payload, tiny.client(data, 0, model))
    assert reply.scalars["samples"] == len(labels)
    assert all(bool(torch.isfinite(t).all()) for t in reply.tensors.values())


class TestOptimizer:
    DATA = tiny.federation([[1.0]], [0], [[0]])

    def two_tasks(self, persist: bool, local: LocalTraining) -> tuple[Tensor, dict[str, Tensor]]:
        """Train twice for one step, the second time from where the first one ended."""
        model, state = logits_of([0.0, 0.0]), dict[str, Tensor]()
        method = BalanceFL(local=local, persist_optimizer=persist, **OFF)
        tensors = model.tensors()
        for number in (1, 2):
            payload = Payload(grouped("model", tensors))
            client = tiny.client(self.DATA, 0, model, state, round=number, rounds=2)
            tensors = method.train(payload, client).group("model")
        return tensors["0.weight"], state

    @pytest.mark.parametrize("fields", [{"optimizer": "adam"}, {"momentum": 0.9}])
    def test_a_kept_optimiser_goes_on(self, fields: dict[str, Any]) -> None:
        # Two tasks of one step with one optimiser are one task of two steps.
        local = LocalTraining(lr=0.1, steps=1, **fields)
        model = logits_of([0.0, 0.0])
        payload = Payload(grouped("model", model.tensors()))
        once = FedAvg[Any](local=local.but(steps=2))
        whole = once.train(payload, tiny.client(self.DATA, 0, model)).tensors["model/0.weight"]
        kept, state = self.two_tasks(True, local)
        fresh, nothing = self.two_tasks(False, local)
        assert torch.equal(kept, whole)
        assert not torch.equal(fresh, whole)
        # What was kept once is not looked at by who does not ask for it.
        other = BalanceFL(local=local, **OFF)
        again = other.train(payload, tiny.client(self.DATA, 0, model, state)).tensors
        plain = other.train(payload, tiny.client(self.DATA, 0, model)).tensors
        assert torch.equal(again["model/0.weight"], plain["model/0.weight"])
        assert all(key.startswith("optimizer/0.weight/") for key in state)
        assert state
        assert not nothing

    def test_what_is_kept_by_hand(self) -> None:
        # From z = 0 the gradient is (-1/2, 1/2). Adam keeps 0.1 g, 0.001 g² and the step.
        model, state = logits_of([0.0, 0.0]), dict[str, Tensor]()
        local = LocalTraining(optimizer="adam", lr=0.1, steps=1)
        method = BalanceFL(local=local, persist_optimizer=True, **OFF)
        payload = Payload(grouped("model", model.tensors()))
        method.train(payload, tiny.client(self.DATA, 0, model, state))
        kept = {key.rpartition("/")[2]: value for key, value in state.items()}
        assert kept["exp_avg"].flatten().tolist() == pytest.approx([-0.05, 0.05])
        assert kept["exp_avg_sq"].flatten().tolist() == pytest.approx([0.00025, 0.00025])
        assert float(kept["step"]) == 1

        # A second task replaces the tensors and does not change the old ones.
        old = dict(state)
        copies = {key: value.clone() for key, value in state.items()}
        method.train(payload, tiny.client(self.DATA, 0, model, state, round=2))
        assert all(torch.equal(old[key], copies[key]) for key in old)
        assert all(state[key] is not old[key] for key in old)

    def test_what_is_kept_survives_the_wire(self) -> None:
        local = tiny.quick(optimizer="adam", lr=0.01)
        chosen = tiny.experiment(BalanceFL(local=local, persist_optimizer=True), tiny.norm_model)
        assert run(chosen).digest == tiny.run_with(chosen, tiny.Isolated).digest
