"""CLIP2FL: what CLIP says at the clients and on the server, and CReFF where it says nothing."""

from __future__ import annotations

import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_clip
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtail import CLIP2FL, Arrays, CReFF, FedAvg, FedtailError, LocalTraining, load, run
from fedtail.data.dataset import Dataset, Samples
from fedtail.data.federation import Federation
from fedtail.methods import clip2fl as module
from fedtail.methods.clip2fl import SAID, as_wide
from fedtail.models import SplitModel
from fedtail.models import clip as clips
from fedtail.models.clip import load_clip, text_directions
from fedtail.protocol import Client, Payload, Server, Update, grouped
from fedtail.setting import prepare

QUICK: dict[str, Any] = {"features": 5, "match_steps": 5, "head_epochs": 5}
OFF: dict[str, Any] = {"alpha": 0.0, "contrast": 0.0}


def method(**fields: Any) -> CLIP2FL:
    return CLIP2FL(**{"local": tiny.quick(), **tiny_clip.fields(), **fields})


def images(n: int = 5, classes: int = 4) -> Federation:
    """Return one client with n grey or coloured images, and one with none."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, 3, 8, 8), generator=generator, dtype=torch.uint8)
    samples = Samples(x, torch.arange(n) % classes)
    dataset = Dataset(samples, samples, tiny_clip.NAMES[:classes], mean=(0.5,) * 3, std=(2.0,) * 3)
    return Federation(dataset, [np.arange(n), np.empty(0, np.int64)])


def network(width: int = 6) -> SplitModel:
    """Return a network with zeros in its classifier: every class is as likely."""
    model = SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(192, width), nn.Linear(width, 4)))
    for tensor in model.classifier.parameters():
        nn.init.zeros_(tensor)
    return model


def client(of: Federation, k: int, model: SplitModel, **fields: Any) -> Client:
    return tiny.client(of, k, model, classes=of.dataset.classes, **fields)


def server(model: SplitModel, **fields: Any) -> Server:
    return tiny.server(model, 2, num_classes=4, classes=tiny_clip.NAMES, **fields)


# Clients


def test_the_loss_of_a_batch_by_hand() -> None:
    # CLIP says (3 ln 3, 0, 0, 0): at T = 3 that is (3, 1, 1, 1)/6. The client says 1/4 of each.
    # KL = 1/2 ln 2 + 3 · 1/6 ln(2/3) = 1/2 ln(4/3); T² = 9, α = 2. Cross-entropy is ln 4.
    z = torch.tensor([[3 * math.log(3), 0.0, 0.0, 0.0]])
    data, model = images(1), network()
    chosen = method(alpha=2.0, features=0)
    run = chosen.start(Payload(), client(data, 0, model, state={SAID: z}))
    run.index = torch.tensor([0])
    found = chosen.batch_loss(run, *data.client(0).batch(run.index))
    assert found.item() == pytest.approx(math.log(4) + 2 * 9 * 0.5 * math.log(4 / 3), rel=1e-6)
    # The gradient in the bias: p - y of the cross-entropy, and α T (p - q) of what is taught.
    torch.autograd.backward(found)
    p, q, y = torch.full((4,), 0.25), torch.tensor([3.0, 1, 1, 1]) / 6, torch.tensor([1.0, 0, 0, 0])
    bias = model.classifier.get_parameter("bias").grad
    assert bias is not None
    torch.testing.assert_close(bias, p - y + 2 * 3 * (p - q), rtol=0, atol=1e-6)


def test_each_sample_has_its_own_row() -> None:
    # Rows are found by their place among the client's samples: only the third is not uniform.
    z = torch.zeros(5, 4)
    z[2, 1] = 3 * math.log(3)
    data, chosen = images(5), method(features=0)
    run = chosen.start(Payload(), client(data, 0, network(), state={SAID: z}))
    for index in range(5):
        run.index = torch.tensor([index])
        loss = chosen.batch_loss(run, *data.client(0).batch(run.index)).item()
        wanted = math.log(4) + (9 * 0.5 * math.log(4 / 3) if index == 2 else 0)
        assert loss == pytest.approx(wanted, rel=1e-6)


def test_what_is_kept_is_what_clip_says_of_the_plain_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Prepare: another normalisation than CLIP's own, and batches of three.
    monkeypatch.setattr(module, "ENCODED_AT_ONCE", 3)
    data, model = images(5), network()
    state: dict[str, Tensor] = {}
    chosen, payload = method(), Payload(grouped("model", model.tensors()))

    # Execute
    answer = chosen.train(payload, client(data, 0, model, state=state))

    # Assert
    teacher = load_clip(tiny_clip.one_clip())
    texts = teacher.texts([f"a photo of a {name}" for name in tiny_clip.NAMES])
    x = data.dataset.train.x[torch.arange(5)] / 255
    torch.testing.assert_close(state[SAID], teacher.logits(x, texts), rtol=0, atol=1e-5)
    assert state[SAID].std(dim=1).min() > 1e-3  # it does say something
    assert not any("clip" in name for name in answer.tensors)  # and nothing of it is sent
    # A second task looks it up.
    monkeypatch.setattr(CLIP2FL, "said", lambda *_: pytest.fail("CLIP looked again"))
    chosen.train(payload, client(data, 0, model, state=state))


def test_a_client_without_samples() -> None:
    data, model = images(5), network()
    assert method().said(client(data, 1, model)).shape == (0, 4)


def test_grey_images_are_shown_three_times() -> None:
    teacher = load_clip(tiny_clip.one_clip())
    texts, x = teacher.texts(["ship", "dog"]), torch.rand(2, 1, 20, 16)
    torch.testing.assert_close(
        teacher.logits(x, texts), teacher.logits(x.expand(-1, 3, -1, -1), texts)
    )


def test_the_logits_are_those_of_transformers() -> None:
    from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel

    # Images of CLIP's own size, so that nothing is rounded to bytes in between.
    folder = tiny_clip.one_clip().removeprefix("hf:")
    x = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    sentences = ["a photo of a cat", "a painting of a ship"]
    model = CLIPModel.from_pretrained(folder).eval()
    tokens = AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    pixels = AutoImageProcessor.from_pretrained(folder)(list(x), return_tensors="pt").pixel_values
    with torch.no_grad():
        wanted = model(pixel_values=pixels, **tokens).logits_per_image
    teacher = load_clip(f"hf:{folder}")
    found = teacher.logits(x / 255, teacher.texts(sentences))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


def test_it_is_loaded_once_and_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    load = clips._Saved.teacher

    def counted(self: clips._Saved) -> clips.ClipTeacher:
        loads.append(self.path)
        return load(self)

    monkeypatch.setattr(clips._Saved, "teacher", counted)
    load_clip.cache_clear()
    text_directions.cache_clear()
    teacher = load_clip(tiny_clip.one_clip())
    before = {name: tensor.clone() for name, tensor in teacher.model.state_dict().items()}
    run(tiny.experiment(method()))
    assert len(loads) == 1
    assert not any(p.requires_grad for p in teacher.model.parameters())
    assert all(torch.equal(t, before[n]) for n, t in teacher.model.state_dict().items())


# The server


def updates(chosen: CReFF, model: SplitModel, classes: list[int]) -> Update:
    """Return what a client sends that reports these classes."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(len(classes), 4, 6, generator=generator)
    own = {f"model/{n}": t for n, t in model.tensors().items()}
    grad = {"classes": torch.tensor(classes), "weight": rows, "bias": rows.sum(dim=2)}
    return Update(0, Payload({**own, **grouped("grad", grad)}, {"samples": 1}))


def test_the_contrast_is_added_to_every_step() -> None:
    # One step from the same features at rate η: what differs from CReFF's step is
    # η λ times the derivative of the mean over all features of -log softmax(s·t / τ)_c,
    # reported or not.
    model = network()
    fields: dict[str, Any] = {"match_steps": 1, "match_lr": 0.5, "contrast_temperature": 0.2}
    with_texts, without = method(contrast=20.0, **fields), method(contrast=0.0, **fields)
    s = with_texts.init(model, server(model))
    assert s.features is not None
    sent, told = [updates(with_texts, model, [0, 2])], server(model)
    found = tiny.after(with_texts, s, sent, told).features
    plain = tiny.after(without, s, sent, server(model)).features
    assert found is not None and plain is not None

    # By autograd, with texts that are as wide as the features.
    texts = text_directions(tiny_clip.one_clip(), with_texts.prompts(tiny_clip.NAMES))
    assert texts.shape == (4, tiny_clip.WIDTH) == (4, model.feature_dim)
    features = s.features.clone().requires_grad_()
    labels = torch.arange(4).repeat_interleave(5)
    loss = functional.cross_entropy(features.flatten(0, 1) @ texts.T / 0.2, labels)
    (g,) = torch.autograd.grad(loss, features)
    torch.testing.assert_close(found - plain, -0.5 * 20.0 * g, rtol=0, atol=1e-5)
    assert g[1].abs().max() > 1e-3
    # Classes 1 and 3 were not reported: the texts alone moved them.
    assert torch.equal(plain[[1, 3]], s.features[[1, 3]])
    after = functional.cross_entropy(found.flatten(0, 1) @ texts.T / 0.2, labels)
    assert float(told.logged["contrast_loss"]) == pytest.approx(float(after), rel=1e-5)


def test_features_come_to_the_text_of_their_class() -> None:
    model = network()
    chosen = method(contrast=50.0, match_steps=400, match_lr=1.0)
    s = chosen.init(model, server(model))
    told = server(model)
    new = tiny.after(chosen, s, [updates(chosen, model, [0])], told).features
    assert new is not None
    texts = text_directions(tiny_clip.one_clip(), chosen.prompts(tiny_clip.NAMES))
    nearest = (new @ texts.T).argmax(dim=2)
    assert nearest[1:].tolist() == [[c] * 5 for c in (1, 2, 3)]
    assert float(told.logged["contrast_loss"]) < 0.2


@pytest.mark.parametrize(("rows", "columns", "width"), [(3, 6, 3), (3, 6, 5), (4, 6, 9), (5, 3, 8)])
def test_angles_are_kept_where_they_fit_in(rows: int, columns: int, width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    texts = functional.normalize(torch.randn(rows, columns, generator=generator))
    found = as_wide(texts, width)
    assert found.shape == (rows, width)
    torch.testing.assert_close(found @ found.T, texts @ texts.T, rtol=0, atol=1e-5)


def test_fewer_columns_keep_the_largest_part() -> None:
    # (1, 0), (0.8, 0.6), (0.8, -0.6): along the first axis lie 1 + 0.64 + 0.64, more than 0.72
    # along the second. In one dimension all point the same way.
    texts = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.8, -0.6]])
    assert as_wide(texts, 2) is texts
    narrow = as_wide(texts, 1)
    torch.testing.assert_close(narrow.abs(), torch.ones(3, 1))
    assert len(set(narrow.sign().flatten().tolist())) == 1


def test_a_network_of_any_width() -> None:
    for width in (3, 20):
        model = network(width)
        chosen = method()
        s = chosen.init(model, server(model))
        pull = chosen.pull(server(model))
        assert pull is not None and s.features is not None
        assert pull.head.weight.shape == (4, width) == (4, s.features.shape[2])


# Where it is something else


@pytest.mark.parametrize("model", [tiny.plain_model, tiny.norm_model, tiny.dropout_model])
def test_without_weights_it_is_creff(model: Any) -> None:
    # No CLIP is needed, nor names: this one is not there.
    local = tiny.quick(momentum=0.9)
    plain = run(tiny.experiment(CReFF(local=local, **QUICK), model))
    off = CLIP2FL(local=local, clip="hf:/nowhere", **OFF, **QUICK)
    found = run(tiny.experiment(off, model))
    assert found.digest == plain.digest
    for one, other in zip(found.history, plain.history, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_without_features_either_it_is_fedavg() -> None:
    found = run(tiny.experiment(CLIP2FL(local=tiny.quick(), features=0, alpha=0.0)))
    assert found.digest == run(tiny.experiment(FedAvg(local=tiny.quick()))).digest


def test_each_part_works_alone() -> None:
    # The contrast leaves w to FedAvg; what clients learn leaves the server to CReFF.
    plain = run(tiny.experiment(CReFF(local=tiny.quick(), **QUICK)))
    server_only = run(tiny.experiment(method(alpha=0.0)))
    assert server_only.state.model.keys() == plain.state.model.keys()
    for name, tensor in plain.state.model.items():
        assert torch.equal(server_only.state.model[name], tensor)
    assert server_only.digest != plain.digest
    client_only = run(tiny.experiment(method(contrast=0.0)))
    taught = run(tiny.experiment(method(features=0)))
    assert "contrast_loss" not in client_only.history[-1]["method"]
    assert all(torch.equal(client_only.state.model[n], t) for n, t in taught.tensors.items())
    assert client_only.digest not in (plain.digest, server_only.digest)


def test_a_student_learns_what_clip_says() -> None:
    # With a large weight and no other signal, the model comes to predict as CLIP does.
    data, model = images(12), network(32)
    local = LocalTraining(lr=0.05, batch_size=12, steps=300, optimizer="adam")
    chosen = method(local=local, features=0, alpha=100.0, temperature=1.0)

    def apart() -> float:
        x, _ = data.client(0).batch(torch.arange(12))
        with torch.no_grad():
            return float(functional.kl_div(model(x).log_softmax(1), q, reduction="batchmean"))

    q = chosen.said(client(data, 0, model)).softmax(1)
    before = apart()
    chosen.train(Payload(grouped("model", model.tensors())), client(data, 0, model))
    assert apart() < 0.1 * before


# Refusals


def refused(chosen: CLIP2FL, **fields: Any) -> str:
    with pytest.raises(FedtailError) as error:
        prepare(tiny.experiment(chosen, **fields))
    return str(error.value)


def test_classes_need_names() -> None:
    said = refused(method(names=()))
    assert said.startswith(
        "method 'clip2fl' tells CLIP what the classes are called, and the data has no names for"
        " them: give them as method.names="
    )
    model = network()  # a strategy on Flower does not know the data
    with pytest.raises(FedtailError, match="no names for them"):
        method(names=()).init(model, tiny.server(model, 2, num_classes=4))
    for part in ("alpha", "contrast"):  # either part alone wants them
        assert refused(method(names=(), **{part: 0.0})) == said
    assert refused(method(names=("cat", "dog"))) == "method.names has 2 names for 4 classes"


def test_names_come_from_the_data() -> None:
    named = Arrays(**tiny.arrays(), classes=tiny_clip.NAMES)
    found = run(tiny.experiment(method(names=()), data=named))
    told = run(tiny.experiment(method(), data=named))
    assert found.digest == told.digest
    assert found.digest != run(tiny.experiment(method(prompt="{}"), data=named)).digest
    # What a field says goes before what the data says.
    others = run(tiny.experiment(method(names=("a", "b", "c", "d")), data=named))
    assert others.digest != found.digest


def test_a_prompt_has_a_place_for_the_class() -> None:
    assert method(prompt="{}, a {}").prompts(tiny_clip.NAMES)[1] == "dog, a dog"
    with pytest.raises(FedtailError, match="prompt"):
        method(prompt="a photo")


def test_numbers_that_are_no_pixels_are_refused() -> None:
    held = tiny.arrays()
    x = {name: held[name] / 255 for name in ("x_train", "x_test")}
    data = Arrays(**{**held, **x})
    found = run(tiny.experiment(method(), data=data, rounds=1))
    assert found.history[0]["clients"]
    data = Arrays(**{**held, **{name: 2 * values - 1 for name, values in x.items()}})
    assert "images of bytes, or of numbers from 0 to 1" in refused(method(), data=data)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (2, 8, 8), (3,), (3, 8)])
def test_what_is_no_image_is_refused(shape: tuple[int, ...]) -> None:
    samples = Samples(torch.zeros(4, *shape), torch.arange(4))
    data = Dataset(samples, samples, tiny_clip.NAMES)
    if shape in ((1, 8, 8), (3, 8, 8)):
        method().check_data(data)
        return
    with pytest.raises(FedtailError) as error:
        method().check_data(data)
    assert str(error.value) == (
        f"method 'clip2fl' shows CLIP images of 1 or 3 channels, not inputs of shape {shape}"
    )


def test_a_clip_that_is_none(tmp_path: Path) -> None:
    assert refused(method(clip="clip-vit")) == (
        "clip = 'clip-vit' is no CLIP: give hf:NAME, or hf:FOLDER"
    )
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    assert (
        refused(method(clip=f"hf:{tmp_path}")) == f"model 'hf:{tmp_path}' is a 'vit', and no CLIP"
    )
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    assert f"model 'hf:{tmp_path}' cannot be loaded" in refused(method(clip=f"hf:{tmp_path}"))


def test_without_the_extra_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = method()
    load_clip.cache_clear()
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert refused(chosen) == (
        f"model '{chosen.clip}' needs the package transformers, which is not installed: run"
        " pip install '.[pretrained]' in a clone of fedtail"
    )


def test_a_refused_run_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(FedtailError, match="no names"):
        run(tiny.experiment(method(names=())), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_shipped_needs_no_clip(tmp_path: Path) -> None:
    name = tiny_clip.save_clip(tmp_path / "clip")
    result = run(tiny.experiment(method(clip=name)), out=tmp_path / "run")
    shutil.rmtree(tmp_path / "clip")
    load_clip.cache_clear()
    held = tiny.arrays()
    assert (
        load(tmp_path / "run").score(held["x_test"], held["y_test"]) == result.metrics["accuracy"]
    )
    with pytest.raises(FedtailError, match="is neither a folder"):
        load_clip(name)


def test_features_of_a_frozen_body_do_not_stand_for_images() -> None:
    # With a head alone, batches are features; CLIP still sees the images.
    setting = prepare(tiny.experiment(method(), tiny.norm_model, train="head")).with_features()
    assert setting.heads is not None
    one = setting.federation.client(0)
    assert one.batch(torch.arange(2))[0].shape == (2, 36)
    known = tiny.client(setting.federation, 0, setting.trained.model, classes=tiny_clip.NAMES)
    plain = replace(known, data=replace(one, store=None))
    assert torch.equal(method().said(known), method().said(plain))


def test_the_state_that_is_kept_is_one_row_a_sample() -> None:
    data, model = images(5), network()
    state: dict[str, Tensor] = {}
    method().train(Payload(grouped("model", model.tensors())), client(data, 0, model, state=state))
    assert {name: tuple(t.shape) for name, t in state.items()} == {SAID: (5, 4)}
