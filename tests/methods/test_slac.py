"""SLAC: rows by hand, and the known methods that it is with parts switched off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from closing import wide
from torch import Tensor, nn

from fedtail import (
    BSM,
    SLAC,
    BalancedSoftmax,
    ClosedFormFinish,
    CrossEntropy,
    FedAvg,
    FedtailError,
    GlobalPrior,
    LocalPrior,
    LocalTraining,
    Method,
    NoFinish,
    Result,
    SmoothedPrior,
    Validation,
    run,
)
from fedtail.forms import HELD, defect
from fedtail.methods.fedavg import ModelState
from fedtail.methods.slac import axis_of, classifier_rows
from fedtail.models import CosineHead, SplitModel
from fedtail.protocol import Payload, Update, grouped
from fedtail.training import ClassBalanced, Shuffled

OFF: dict[str, Any] = {
    "prior": LocalPrior(),
    "sampler": Shuffled(),
    "rows": "samples",
    "finish": NoFinish(),
}


def tiny_run(method: Method[Any], model: Any = tiny.plain_model, **fields: Any) -> Result:
    return run(tiny.experiment(method, model, **fields))


# With parts switched off it is a known method


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model])
def test_with_all_parts_off_it_is_fedavg_to_the_bit(model: Any) -> None:
    local = tiny.quick(momentum=0.9)
    ours = tiny_run(SLAC(loss=CrossEntropy(), local=local, **OFF), model)
    assert ours.digest == tiny_run(FedAvg(local=local), model).digest


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model])
def test_with_the_local_prior_alone_it_is_bsm_to_the_bit(model: Any) -> None:
    ours = tiny_run(SLAC(local=tiny.quick(), **OFF), model)
    assert ours.digest == tiny_run(BSM(local=tiny.quick()), model).digest


def test_no_added_samples_are_the_local_prior() -> None:
    # The same numbers, n + 0 · C / C.
    none = tiny_run(SLAC(local=tiny.quick(), **{**OFF, "prior": SmoothedPrior(samples=0)}))
    assert none.digest == tiny_run(BSM(local=tiny.quick())).digest


def test_very_many_added_samples_are_the_global_prior() -> None:
    # 1e12 C q + n is 1e12 C q in float32, and a softmax does not see the factor. log 1e12 is 28,
    # beside which a logit has 2e-6 of rounding.
    smooth = SmoothedPrior(samples=1e12, towards="global")
    ours = tiny_run(SLAC(local=tiny.quick(), **{**OFF, "prior": smooth})).tensors
    known = tiny_run(BSM(local=tiny.quick(), prior=GlobalPrior())).tensors
    for name, tensor in known.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-4)


def test_without_tau_it_is_fedavg() -> None:
    ours = tiny_run(SLAC(loss=BalancedSoftmax(tau=0), local=tiny.quick(), **OFF)).tensors
    for name, tensor in tiny_run(FedAvg(local=tiny.quick())).tensors.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-6)


def test_the_last_step_is_the_runs_own() -> None:
    # The same step, brought by the method or named by the experiment; named, it goes before.
    own = SLAC(local=tiny.quick(), pays=False)
    bare = own.but(finish=NoFinish())
    held = {"validation": Validation(share=0.5)}
    brought = tiny_run(own, **held)
    assert brought.digest == tiny_run(bare, finish=own.finish, **held).digest
    assert brought.digest != tiny_run(bare, **held).digest
    # Without the step nothing is left to pay for, either.
    assert tiny_run(own, finish="none", **held).digest == tiny_run(bare, **held).digest
    paid = SLAC(local=tiny.quick())
    assert tiny_run(paid, finish="none", **held).digest == tiny_run(bare, **held).digest
    named = tiny_run(own, finish=ClosedFormFinish(blend="none"), **held)
    assert named.history[-1]["method"]["closed_form_share"] == 1.0


def test_a_classifier_without_a_bias_gets_ridge() -> None:
    # LDA's offsets need a bias to be put into.
    finish = SLAC().finish
    assert isinstance(finish, ClosedFormFinish)
    heads = [SplitModel(nn.Sequential(nn.Linear(2, 3, bias=bias))) for bias in (True, False)]
    assert [finish.head_of(head).name for head in heads] == ["lda", "ridge"]


# Rows

# Client 0 has three samples of class 0 and one of class 1, client 1 one of class 1; nobody has 2.
DATA = tiny.federation([[1.0]] * 5, [0, 0, 0, 1, 1], [[0, 1, 2, 3], [4]], classes=3)


def linear(bias: bool = True) -> SplitModel:
    model = SplitModel(nn.Sequential(nn.Linear(1, 3, bias=bias)))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def upload(k: int, samples: int, held: list[float], rows: list[float]) -> Update:
    """Return an upload of a head without bias: n_c / n times the change of each row."""
    tensors = {
        f"rows/{HELD}": torch.tensor(held),
        "rows/0.weight": torch.tensor(rows)[:, None],
    }
    return Update(k, Payload(tensors, {"samples": samples, "steps": 1}))


def test_rows_are_averaged_by_their_own_samples() -> None:
    # Row 0 is client 0's alone, though client 1 is there. Row 1: one sample each of a client of 4
    # and of one of 1: the mean of the changes 8 and 2. Row 2 is nobody's and stays.
    method, model = SLAC(), linear(bias=False)
    start = {"0.weight": torch.tensor([[1.0], [1.0], [7.0]])}
    uploads = [
        upload(0, 4, [3 / 4, 1 / 4, 0.0], [3 / 4 * 6.0, 1 / 4 * 8.0, 0.0]),
        upload(1, 1, [0.0, 1.0, 0.0], [0.0, 2.0, 0.0]),
    ]
    server = tiny.server(model, 2, num_classes=3)
    new = tiny.after(method, ModelState(start), uploads, server).model["0.weight"]
    assert new.flatten().tolist() == pytest.approx([7.0, 6.0, 7.0])


def test_what_a_client_sends() -> None:
    # One step of rate 1 at z = 0 with the prior (3, 1, 0) + 1 = (4, 2, 1) / 7: the mean gradient is
    # p − (3/4, 1/4, 0), of weight and bias alike, because x = 1. Rows are weighed by n_c / n.
    method = SLAC(sampler=Shuffled(), local=LocalTraining(lr=1.0, batch_size=4))
    model = linear()
    payload = Payload(grouped("model", model.tensors()))
    sent = method.train(payload, tiny.client(DATA, 0, model))
    share = torch.tensor([3 / 4, 1 / 4, 0.0])
    change = share - torch.tensor([4.0, 2.0, 1.0]) / 7
    assert sent.tensors[f"rows/{HELD}"].tolist() == share.tolist()
    for name in ("rows/0.weight", "rows/0.bias"):
        torch.testing.assert_close(sent.tensors[name].flatten(), share * change)
    assert set(sent.tensors) == {f"rows/{HELD}", "rows/0.weight", "rows/0.bias"}


def test_a_client_with_one_sample_says_so() -> None:
    model = linear()
    payload = Payload(grouped("model", model.tensors()))
    sent = SLAC(local=LocalTraining(lr=1.0)).train(payload, tiny.client(DATA, 1, model))
    assert sent.tensors[f"rows/{HELD}"].tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(("share", "refused"), [(0.0, ""), (1.0, ""), (-0.1, HELD), (1.1, HELD)])
def test_shares_are_between_zero_and_one(share: float, refused: str) -> None:
    model = linear(bias=False).double()
    form = SLAC().train_form(Payload(), model, 3)
    told = upload(0, 4, [share, 0.0, 0.0], [0.0] * 3).payload
    rows = {**told.tensors, "rows/0.weight": torch.zeros(3, 1).double()}
    assert refused in defect(replace(told, tensors=rows), form, 4)
    assert bool(refused) == bool(defect(replace(told, tensors=rows), form, 4))


def test_only_what_is_trained_of_a_classifier_has_rows() -> None:
    model = linear()
    assert set(classifier_rows(model)) == {"0.weight", "0.bias"}
    model.classifier.bias.requires_grad_(False)
    assert set(classifier_rows(model)) == {"0.weight"}


def test_which_dimension_is_that_of_classes() -> None:
    cosine = SplitModel(nn.Sequential(nn.Identity(), CosineHead(2, 3)), "1")
    assert [axis_of(cosine, torch.zeros(2, 3)), axis_of(cosine, torch.zeros(3))] == [1, 0]
    assert axis_of(linear(), torch.zeros(3, 1)) == 0


def test_what_is_asked_and_kept_with_parts_switched_off() -> None:
    assert SLAC().asks().after
    assert not SLAC(finish=NoFinish()).asks().after
    client = tiny.client(DATA, 0, linear())
    context = SLAC().context(Payload(), client)
    assert SLAC(rows="samples").at_start(Payload(), client, context) == {}


def test_a_cosine_head_has_its_classes_in_columns() -> None:
    model = SplitModel(nn.Sequential(nn.Identity(), CosineHead(1, 3)), "1")
    start = model.tensors()
    method = SLAC(local=LocalTraining(lr=1.0, batch_size=4))
    sent = method.train(Payload(grouped("model", start)), tiny.client(DATA, 0, model))
    assert sent.tensors["rows/1.weight"].shape == (1, 3)
    assert sent.tensors["rows/1.weight"][0, 2] == 0.0  # a class that the client does not hold
    server = tiny.server(model, 1, num_classes=3)
    state = tiny.after(method, ModelState(start), [Update(0, sent)], server)
    # Alone, a client's rows are what it trained; the third is what it was.
    after = model.tensors()["1.weight"]
    torch.testing.assert_close(state.model["1.weight"][:, :2], after[:, :2])
    assert state.model["1.weight"][0, 2] == start["1.weight"][0, 2]


def test_equal_proportions_make_rows_as_in_fedavg() -> None:
    # Every class is as much of one client as of the other: n_c^k / Σ n_c = n_k / Σ n.
    labels = [0, 1, 2, 3] * 3
    x = [[float(i % 5), float(i % 3)] for i in range(12)]
    data = tiny.federation(x, labels, [range(4), range(4, 12)], classes=4)

    def rounds(rows: str) -> dict[str, Tensor]:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = SplitModel(nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 4)))
        method = SLAC.model_validate({"name": "slac", "local": tiny.quick(), "rows": rows})
        server = tiny.server(net, 2, num_classes=4)
        state = method.init(net, server)
        for _ in range(3):
            payload = method.broadcast(state, server)
            clients = [tiny.client(data, k, net) for k in (0, 1)]
            sent = [Update(k, method.train(payload, c)) for k, c in enumerate(clients)]
            state = tiny.after(method, state, sent, server)
        return state.model

    ours, known = rounds("classes"), rounds("samples")
    for name, tensor in known.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-6)


def test_nobody_answers() -> None:
    method, model = SLAC(), linear()
    state = ModelState(model.tensors())
    server = tiny.server(model, 2, num_classes=3)
    empty = Update(0, upload(0, 0, [0.0] * 3, [0.0] * 3).payload)
    bias = {**empty.payload.tensors, "rows/0.bias": torch.zeros(3)}
    same = tiny.after(
        method, state, [Update(0, Payload(bias, empty.payload.scalars))], server
    ).model
    assert all(torch.equal(same[name], state.model[name]) for name in same)


def test_a_classifier_without_rows_is_refused() -> None:
    class Odd(nn.Module):
        in_features, out_features = 2, 3

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 2))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.weight.T)[:, :3]

    model = SplitModel(nn.Sequential(nn.Identity(), Odd()), "1")
    with pytest.raises(FedtailError, match="rows=samples"):
        SLAC().build_model(model)
    assert SLAC(rows="samples").build_model(model) is model


# Batches


def test_margins_are_those_of_the_counts_whatever_batches_show() -> None:
    # Client 0 has (3, 1, 0), and a = 1 is added. Balanced batches show two of each of the two.
    client = tiny.client(DATA, 0, linear())
    for sampler in (ClassBalanced(), Shuffled()):
        context = SLAC(sampler=sampler).context(Payload(), client)
        assert context.prior.tolist() == pytest.approx([4, 2, 1])


# Traffic and privacy


def test_one_number_a_class_more_than_fedavg() -> None:
    ours = tiny_run(SLAC(local=tiny.quick(), finish=NoFinish())).history
    plain = tiny_run(FedAvg(local=tiny.quick())).history
    for mine, theirs in zip(ours, plain, strict=True):
        assert mine["bytes_down"] == theirs["bytes_down"]
        assert mine["bytes_up"] - theirs["bytes_up"] == 4 * tiny.CLASSES * len(mine["clients"])


def test_the_last_rounds_pay_for_the_last_step() -> None:
    # A head of 40 features and 4 classes alone: 164 numbers, 656 bytes down and as many up, for a
    # cohort of 2 of 6 clients 2,624 a round. The last step sends a client no body; 4 counts down
    # and twice up, 4·40 + 2·40 means and squares, all of 8 bytes: 2,016. Three blocks are 4 counts
    # and 2·40·4 numbers of 4 bytes, 1,312 each, less than the triangle's 6,560. Of two heads a
    # mixture is chosen: 2·656. In all 7,264 for each of 6 clients, 16.6 rounds.
    model = SplitModel(nn.Sequential(nn.Linear(40, 4)))
    server = tiny.server(model, 6, num_classes=4, per_round=2, rounds=50)
    assert SLAC().trained_rounds(server) == 50 - 17
    assert SLAC(pays=False).trained_rounds(server) == 50
    assert SLAC(finish=NoFinish()).trained_rounds(server) == 50
    # At least a third of the rounds is trained.
    assert SLAC().trained_rounds(replace(server, rounds=20)) == 7


def run_wide(method: Method[Any], **fields: Any) -> Result:
    return run(wide(method, **fields))


def sent(result: Result) -> int:
    return sum(record["bytes_up"] + record["bytes_down"] for record in result.history)


def test_it_sends_no_more_than_fedavg() -> None:
    ours = run_wide(SLAC(local=tiny.quick()))
    idle = [record["round"] for record in ours.history if not record["clients"]]
    assert idle == list(range(24, 41))  # 17 rounds; the last one has the last step
    fedavg = sent(run_wide(FedAvg(local=tiny.quick())))
    assert 0.95 * fedavg < sent(ours) <= fedavg
    assert sent(run_wide(SLAC(local=tiny.quick(), pays=False))) > 1.3 * fedavg


def test_blocks_are_the_same_in_secure_sums() -> None:
    plain = run_wide(SLAC(local=tiny.quick()), rounds=4)
    # Masked sums are of fixed-point numbers: 1e-6 of the largest.
    masked = run_wide(SLAC(local=tiny.quick()), rounds=4, secure=True)
    for name, tensor in plain.tensors.items():
        torch.testing.assert_close(masked.tensors[name], tensor, rtol=1e-4, atol=1e-4)


def test_privacy_refuses_the_last_step_and_nothing_else() -> None:
    private = {"privacy": {"epsilon": 5.0, "clip": 1.0, "simulated": True}}
    with pytest.raises(ValueError, match="closed-form"):
        tiny.experiment(SLAC(local=tiny.quick()), tiny.plain_model, **private)
    tiny.experiment(SLAC(local=tiny.quick(), finish=NoFinish()), tiny.plain_model, **private)
