"""FedBE: models drawn around the uploads, their mean prediction distilled with SWA."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedtail import FedAvg, FedBE, ModelState, run
from fedtail.data.federation import ServerData
from fedtail.methods.fedbe import WeightAverage, sharpened
from fedtail.models import SplitModel
from fedtail.protocol import Payload, Server, Update

DATA = ServerData(torch.ones(2, 1), torch.zeros(2, dtype=torch.int64))


def linear() -> SplitModel:
    return SplitModel(nn.Linear(1, 2, bias=False))


def server_of(model: SplitModel, **fields: Any) -> Server:
    return tiny.server(model, 2, **{"data": DATA, **fields})


def weights(*values: float) -> dict[str, Tensor]:
    return {"weight": torch.tensor(values)[:, None]}


def drawn(method: FedBE, old: dict[str, Tensor], *uploads: dict[str, Tensor]) -> list[list[float]]:
    average = {"weight": torch.stack([u["weight"] for u in uploads]).mean(dim=0)}
    found = method.draw(old, average, uploads, server_of(linear()))
    return [model["weight"][:, 0].tolist() for model in found]


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_the_gaussian_of_normalised_updates_by_hand(scale: float) -> None:
    # Updates (3, 4) and (0, 2) of lengths 5 and 2: (0.6, 0.8) and (0, 1). Mean (0.3, 0.9),
    # deviations 0.3 and 0.1, mean length 3.5.
    updates = [scale * torch.tensor([3.0, 4.0]), scale * torch.tensor([0.0, 2.0])]
    mean, deviation, length = FedBE().fit(updates)
    assert mean.tolist() == pytest.approx([0.3, 0.9])
    assert deviation.tolist() == pytest.approx([0.3, 0.1])
    assert float(length) == pytest.approx(3.5 * scale)


def test_the_gaussian_of_plain_updates_by_hand() -> None:
    # Mean (1.5, 3), deviations 1.5 and 1, no length.
    plain = FedBE(normalised=False)
    mean, deviation, length = plain.fit([torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0])])
    assert mean.tolist() == [1.5, 3.0]
    assert deviation.tolist() == [1.5, 1.0]
    assert float(length) == 1


def test_without_spread_every_draw_is_the_mean() -> None:
    old, uploads = weights(1.0, 1.0), (weights(4.0, 5.0), weights(1.0, 3.0))
    # Not normalised: 1 + (1.5, 3). Normalised: 1 + 3.5 · (0.3, 0.9).
    plain = FedBE(models=2, spread=0, normalised=False)
    assert drawn(plain, old, *uploads) == [pytest.approx([2.5, 4.0])] * 2
    code = FedBE(models=2, spread=0)
    assert drawn(code, old, *uploads) == [pytest.approx([2.05, 4.15])] * 2


def test_draws_spread_as_they_should() -> None:
    # Deviations 1.5 and 1 times 0.5, over 2,000 draws: errors of about 0.75 / sqrt(4000) = 0.012.
    method = FedBE(models=2000, spread=0.5, normalised=False)
    found = torch.tensor(drawn(method, weights(0.0, 0.0), weights(3.0, 4.0), weights(0.0, 2.0)))
    assert found.std(dim=0).tolist() == pytest.approx([0.75, 0.5], abs=0.04)
    assert found.mean(dim=0).tolist() == pytest.approx([1.5, 3.0], abs=0.05)


def test_an_update_of_zeros_draws_around_the_old_model() -> None:
    old = weights(1.0, 2.0)
    assert drawn(FedBE(models=1, spread=0), old, old) == [[1.0, 2.0]]
    (found,) = drawn(FedBE(models=1), old, old)
    assert found == [1.0, 2.0]  # the mean length is 0, whatever the noise


def test_dirichlet_draws_lie_between_the_uploads() -> None:
    method = FedBE(models=50, posterior="dirichlet", concentration=0.5)
    found = torch.tensor(drawn(method, weights(9.0, 9.0), weights(0.0, 1.0), weights(1.0, 0.0)))
    assert torch.allclose(found.sum(dim=1), torch.ones(50))
    assert float(found.min()) >= 0
    assert float(found[:, 0].std()) > 0.1
    same = drawn(method, weights(9.0, 9.0), weights(2.0, 3.0), weights(2.0, 3.0))
    assert torch.allclose(torch.tensor(same), torch.tensor([2.0, 3.0]))


def test_statistics_are_not_drawn() -> None:
    model = SplitModel(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)))
    old = model.tensors()
    uploads = [{n: t + k if t.is_floating_point() else t for n, t in old.items()} for k in (0, 1)]
    average = uploads[1]
    for found in FedBE(models=3, spread=100).draw(old, average, uploads, server_of(model)):
        assert torch.equal(found["0.running_var"], average["0.running_var"])
        assert not torch.equal(found["1.weight"], average["1.weight"])


def test_sharpening_by_hand() -> None:
    # 0.8² : 0.2² = 0.64 : 0.04, so 0.64 / 0.68; a zero stays zero; a temperature of 1 changes none.
    q = torch.tensor([[0.8, 0.2, 0.0]])
    assert sharpened(q, 0.5)[0].tolist() == pytest.approx([0.941176, 0.058824, 0.0], abs=1e-6)
    assert torch.allclose(sharpened(q, 1.0), q)


def test_the_weight_average_by_hand() -> None:
    # Steps 1 to 6 hold the weight 1 … 6. After the first two, every second: 4 and 6, mean 5.
    model = SplitModel(nn.Linear(1, 1, bias=False))
    average = WeightAverage(model, start=2, every=2)
    for step in range(1, 7):
        model.load({"weight": torch.tensor([[float(step)]])})
        assert average(step) is False
    assert average.count == 2
    average.load()
    assert model.tensors()["weight"].tolist() == [[5.0]]


def update(k: int, tensors: dict[str, Tensor], samples: int = 1) -> Update:
    sent = {f"model/{name}": tensor for name, tensor in tensors.items()}
    return Update(k, Payload(sent, {"samples": samples}))


def test_the_teacher_is_the_mean_of_the_predictions() -> None:
    # The sample x = 1, uploads (2, 0) and (0, 0), average (1, 0): predictions 0.880797, 0.5 and
    # 0.731059, mean 0.703952. Neither sharpened nor drawn; the student comes there.
    model, start = linear(), weights(0.0, 0.0)
    method = FedBE(
        models=0, sharpness=1.0, distil_epochs=100, distil_lr=0.5, distil_decay=0, swa_every=1
    )
    uploads = [update(0, weights(2.0, 0.0)), update(1, weights(0.0, 0.0))]
    new = tiny.after(method, ModelState(start), uploads, server_of(model))
    p = torch.softmax(new.model["weight"][:, 0], dim=0)
    assert float(p[0]) == pytest.approx(0.703952, abs=1e-3)


def test_one_client_teaches_nothing_new() -> None:
    # Upload and average are the same, nothing is drawn or sharpened: the gradient is zero.
    model = linear()
    method = FedBE(models=0, sharpness=1.0, distil_decay=0)
    new = tiny.after(
        method, ModelState(weights(0.0, 0.0)), [update(0, weights(2.0, 0.5))], server_of(model)
    )
    assert torch.allclose(new.model["weight"], weights(2.0, 0.5)["weight"], atol=1e-6)
    # Nobody has samples: the model stays.
    s = ModelState(weights(0.0, 0.0))
    assert tiny.after(method, s, [update(0, weights(2.0, 0.5), 0)], server_of(model)) is s


def test_distillation_comes_nearer_to_the_teacher() -> None:
    model = linear()
    server = server_of(model)
    uploads = [update(0, weights(2.0, 0.0)), update(1, weights(0.0, 1.0))]
    method = FedBE(distil_epochs=50, distil_lr=0.1, swa_start=1)
    tiny.after(method, ModelState(weights(0.0, 0.0)), uploads, server)
    assert float(server.logged["distil_after"]) < float(server.logged["distil_before"])


@pytest.mark.parametrize("size", [1, 2, 5])
def test_statistics_of_averaged_weights_are_taken_anew(size: int) -> None:
    # The samples have the mean 3, which is what BatchNorm's running mean becomes; of one sample
    # nothing can be taken, and it stays.
    model = SplitModel(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)))
    x = torch.linspace(2, 4, size)[:, None] if size > 1 else torch.ones(1, 1)
    server = server_of(model, data=ServerData(x, torch.zeros(size, dtype=torch.int64)))
    method = FedBE(models=1, distil_epochs=2, distil_batch=3, swa_start=0, swa_every=1)
    start = model.tensors()
    new = tiny.after(method, ModelState(start), [update(0, start)], server)
    expected = 0.0 if size == 1 else 3.0
    # Batches of 3 and 2: the mean of two means of a shuffled 2, 2.5, 3, 3.5, 4 is within 0.15.
    assert float(new.model["0.running_mean"]) == pytest.approx(expected, abs=0.15)
    assert all(bool(torch.isfinite(t).all()) for t in new.model.values())


def test_averaging_is_used_and_can_be_left() -> None:
    model = linear()
    uploads = [update(0, weights(2.0, 0.0)), update(1, weights(0.0, 1.0))]
    found = {}
    for start in (0.0, 0.5, 1.0):
        method = FedBE(models=0, distil_epochs=10, distil_lr=0.1, swa_start=start, swa_every=1)
        new = tiny.after(method, ModelState(weights(0.0, 0.0)), uploads, server_of(model))
        found[start] = float(new.model["weight"][0])
    assert len(set(found.values())) == 3
    # The student moves one way, so the more of its early weights are in, the less far it is.
    assert abs(found[0.0] - 1.0) < abs(found[0.5] - 1.0) < abs(found[1.0] - 1.0)


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model])
def test_without_epochs_it_is_fedavg(model: Any) -> None:
    local = tiny.quick(momentum=0.9)
    result = run(tiny.experiment(FedBE(local=local, distil_epochs=0), model, server_per_class=2))
    plain = run(tiny.experiment(FedAvg(local=local), model, server_per_class=2))
    assert result.digest == plain.digest
    for one, other in zip(result.history, plain.history, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


@pytest.mark.parametrize("fields", [{"posterior": "dirichlet"}, {"normalised": False}])
def test_the_other_forms_come_to_their_end(fields: dict[str, Any]) -> None:
    method = FedBE(local=tiny.quick(), models=2, distil_epochs=2, distil_batch=2, **fields)
    result = run(tiny.experiment(method, tiny.norm_model, server_per_class=2))
    assert all(bool(torch.isfinite(t).all()) for t in result.tensors.values())
    plain = run(tiny.experiment(FedAvg(local=tiny.quick()), tiny.norm_model, server_per_class=2))
    assert [r["traffic"] for r in result.history] == [r["traffic"] for r in plain.history]


def test_a_model_is_not_to_be_summed_before_it_is_seen() -> None:
    form = FedBE().train_form(Payload(), linear(), 2)
    assert form.why == FedBE().asks().single != ""
