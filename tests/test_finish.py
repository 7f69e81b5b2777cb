"""A closed-form head as a last step on top of any method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from closing import identity, wide
from torch import Tensor, nn

from fedtail import GBME, SLAC, CReFF, FedAvg, FedtailError, RedGrape, load, run
from fedtail.protocol import Payload, Update
from fedtail.reduce import reduced
from fedtail.setting import prepare
from fedtail.training.blends import MIXTURES, Mixture, best_of, blends_form
from fedtail.training.federated_features import Head

CLOSED: dict[str, Any] = {"finish": "closed-form"}


def test_a_mixture_of_two_linear_heads_is_one() -> None:
    a = Head(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([1.0, 0.0]))
    b = Head(torch.tensor([[4.0, 4.0], [0.0, 8.0]]), torch.tensor([0.0, -8.0]))
    found = Mixture(0.25, 2.0).of(a, b)
    # ¾ a + ¼ b / 2
    assert found.weight.tolist() == [[1.25, 0.5], [0.0, 1.75]]
    assert found.bias is not None and found.bias.tolist() == [0.75, -1.0]
    # log softmax of the parts, mixed, is the log softmax of the mixed head up to a constant.
    h = torch.tensor([[0.3, -1.2]])
    z, other = h @ a.weight.T + torch.tensor([1.0, 0.0]), h @ b.weight.T + torch.tensor([0.0, -8.0])
    mixed = 0.75 * z.log_softmax(1) + 0.25 * (other / 2).log_softmax(1)
    assert torch.allclose(
        mixed.log_softmax(1), (h @ found.weight.T + found.bias).log_softmax(1), atol=1e-6
    )


def test_the_trained_head_alone_is_one_of_the_mixtures() -> None:
    assert MIXTURES[0] == (0.0, 1.0)
    assert len(MIXTURES) == 1 + 4 * 3


def counted(right: list[list[int]], losses: list[float]) -> Any:
    """Return made-up counts of two classes with ten samples each."""
    n = len(MIXTURES)
    tensors: dict[str, Tensor] = {
        "mixtures/samples": torch.tensor([10, 10]),
        "mixtures/loss": torch.tensor(losses + [99.0] * (n - len(losses))).double(),
    }
    each = right + [[0, 0]] * (n - len(right))
    tensors |= {f"mixtures/right {i}": torch.tensor(r) for i, r in enumerate(each)}
    return reduced([Update(0, Payload(tensors))], blends_form(Payload(), 2))


def test_the_best_score_is_chosen_and_then_the_smallest_loss() -> None:
    found = counted([[10, 2], [9, 6], [8, 7], [7, 8]], [5.0, 20.0, 10.0, 30.0])
    balanced = best_of(found, lambda right, n, loss: sum(right) / sum(n))
    assert balanced == MIXTURES[2]  # 15 of 20 three times
    assert best_of(found, lambda right, n, loss: -loss) == MIXTURES[0]
    assert best_of(found, lambda right, n, loss: right[1] / n[1]) == MIXTURES[3]
    assert best_of(found, lambda right, n, loss: None) == (1.0, 1.0)


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model, tiny.unbiased_model])
def test_training_goes_on_as_without_it(model: Any) -> None:
    plain = run(tiny.experiment(model=model))
    found = run(tiny.experiment(model=model, **CLOSED))
    trained: dict[str, Tensor] = found.state.model
    assert all(torch.equal(trained[name], t) for name, t in plain.tensors.items())
    head = max(plain.tensors)[0]
    differ = {n for n, t in plain.tensors.items() if not torch.equal(t, found.tensors[n])}
    assert differ == {n for n in plain.tensors if n.startswith(head)}
    assert found.history[-1]["method"] == {
        "closed_form_share": 1.0,
        "closed_form_temperature": 1.0,
    }


def test_it_is_paid_once_and_at_the_end() -> None:
    plain, found = run(tiny.experiment()), run(tiny.experiment(**CLOSED))
    more = [
        a["bytes_up"] - b["bytes_up"] for a, b in zip(found.history, plain.history, strict=True)
    ]
    # Six clients, four classes, d = 6: four counts twice and 4·6 + 2·6 + 21 float64.
    classes = tiny.CLASSES
    assert more == [0, 0, 6 * 8 * (2 * classes + 6 * classes + 12 + 21)]


def test_validation_chooses_how_much_of_it_is_taken() -> None:
    held: dict[str, Any] = {"validation": 0.5, "score": "accuracy"}
    found = run(tiny.experiment(**CLOSED, **held))
    last = found.history[-1]
    share, t = (last["method"][f"closed_form_{name}"] for name in ("share", "temperature"))
    assert Mixture(share, t) in MIXTURES
    # What was chosen does at least as well on what is held out as either head.
    for other in (
        tiny.experiment(**held),
        tiny.experiment(finish={"name": "closed-form", "blend": "none"}, **held),
    ):
        assert last["validation"]["accuracy"] >= run(other).history[-1]["validation"]["accuracy"]


@pytest.mark.parametrize("head", ["ridge", "lda", "ncm"])
def test_any_head_on_methods_with_another_model(head: str, tmp_path: Path) -> None:
    finish = {"name": "closed-form", "head": head}
    for method in (RedGrape(per_class=2), CReFF(features=4, match_steps=1, head_epochs=1)):
        made = tiny.experiment(method, finish=finish, rounds=2)
        result = run(made, out=tmp_path / method.name)
        held = tiny.arrays()
        loaded = load(tmp_path / method.name)
        score = loaded.score(held["x_test"], held["y_test"])
        assert score == result.metrics["accuracy"]


def test_an_aimed_sketch_has_the_same_bits_in_worker_processes() -> None:
    made = wide(SLAC(local=tiny.quick()), rounds=4)
    assert run(made).digest == run(made.but(workers=2)).digest


def test_workers_and_resuming_give_the_same_bits(tmp_path: Path) -> None:
    from fedtail.testing.executors import InterruptAfter, Interrupted

    made = tiny.experiment(model=tiny.norm_model, validation=0.5, **CLOSED)
    plain = run(made)
    assert run(made.but(workers=2)).digest == plain.digest
    for done in (1, 3):
        out = tmp_path / str(done)
        with pytest.raises(Interrupted):
            run(made, out=out, callbacks=[InterruptAfter(done)])
        assert run(made, out=out, resume=True).digest == plain.digest


def frozen_bias() -> nn.Module:
    """Return a network whose classifier has a bias that does not move."""
    model = tiny.plain_model()
    model.get_parameter("3.bias").requires_grad_(False)
    return model


def test_a_frozen_bias_is_the_clients_after_a_test_as_before() -> None:
    # The closed form would ship a bias of its own, and a test put it into the model that is
    # trained next. SLAC, which need not have it, goes without.
    often, once = (
        run(tiny.experiment(SLAC(pays=False), frozen_bias, rounds=3, eval_every=n)) for n in (1, 3)
    )
    assert often.digest == once.digest
    assert torch.equal(often.tensors["3.bias"], once.tensors["3.bias"])


def test_what_cannot_be_finished_is_refused_before_work_starts() -> None:
    with pytest.raises(FedtailError, match="finish = 'closed-form' asks clients again"):
        tiny.experiment(privacy={"epsilon": 1.0}, **CLOSED)
    with pytest.raises(FedtailError, match=r"linear classifier .*, not CosineHead"):
        prepare(tiny.experiment(head="cosine", **CLOSED))
    with pytest.raises(FedtailError, match="needs a classifier with a bias"):
        lda = {"name": "closed-form", "head": "lda"}
        prepare(tiny.experiment(model=tiny.unbiased_model, finish=lda))
    with pytest.raises(FedtailError, match="linear classifier"):
        prepare(tiny.experiment(GBME(), **CLOSED))
    with pytest.raises(FedtailError, match="the bias of the classifier is frozen"):
        prepare(tiny.experiment(model=frozen_bias, **CLOSED))
    with pytest.raises(FedtailError, match="unknown finish 'closed'"):
        tiny.experiment(finish="closed")


def test_nobody_with_samples_leaves_the_model_as_it_is() -> None:
    from fedtail import ClosedHead
    from fedtail.training.feature_sums import FeatureSums

    none = torch.zeros(2).double()
    sums = FeatureSums(torch.zeros(2).long(), torch.zeros(2, 2).double(), none, none, none)
    assert ClosedHead.model_validate("ridge").put(sums, identity(2, 2)) == {}


def test_fedavg_without_it_is_as_it_was() -> None:
    one, other = (
        run(tiny.experiment(FedAvg(local=tiny.quick()))),
        run(tiny.experiment(FedAvg(local=tiny.quick()), finish="none")),
    )
    assert one.digest == other.digest
