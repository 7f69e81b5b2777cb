"""Heads of clients' own: zero at first, kept, never sent."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from torch import nn

from fedtail import FedLoGe, FedRoD, FedtailError, run
from fedtail.methods.personal_heads import PersonalHeads, shared_part
from fedtail.models import SplitModel
from fedtail.protocol import Payload


@pytest.mark.parametrize("method", [FedRoD(), FedLoGe()])
class TestPersonalHeads:
    def test_the_server_never_holds_one(self, method: PersonalHeads[Any]) -> None:
        result = run(tiny.experiment(method.but(local=tiny.quick())))
        assert not [name for name in result.state.model if name.startswith("personal.")]

    def test_it_is_zero_and_never_was_anything_else(self, method: PersonalHeads[Any]) -> None:
        model = method.build_model(SplitModel(nn.Linear(3, 2)))
        head = model.extra_heads["personal"].state_dict()
        assert head.keys() == {"weight", "bias"}
        assert not any(bool(t.any()) for t in head.values())

    def test_a_head_is_taken_up_again(self, method: PersonalHeads[Any]) -> None:
        model = method.build_model(SplitModel(nn.Linear(3, 2)))
        begin = method.pattern(model)
        tensors = {f"model/{n}": t for n, t in shared_part(model.tensors()).items()}
        payload = Payload(tensors, {"head": begin})
        first = method.starting(payload, {})
        assert torch.equal(first["personal.weight"], torch.zeros(2, 3))
        assert torch.equal(first["personal.bias"], torch.zeros(2))
        assert first.keys() == model.names()
        own = {"own/personal.weight": torch.ones(2, 3), "own/personal.bias": torch.ones(2)}
        again = method.starting(payload, {**own, "buffer/0.running_mean": torch.zeros(1)})
        assert torch.equal(again["personal.weight"], torch.ones(2, 3))
        assert set(method.kept(model)) == own.keys()

    def test_it_goes_with_a_prior_that_has_to_train(self, method: PersonalHeads[Any]) -> None:
        chosen = method.but(local=tiny.quick(), prior="proxy", loss="balanced_softmax")
        if isinstance(method, FedLoGe):  # its classifier does not train, and betrays nothing
            with pytest.raises(FedtailError, match="frozen: take another prior"):
                run(tiny.experiment(chosen))
            return
        assert run(tiny.experiment(chosen)).history[-1]["dropped"] == []

    def test_switched_off_nobody_has_one(self, method: PersonalHeads[Any]) -> None:
        off = method.but(personal_heads=False, local=tiny.quick())
        result = run(tiny.experiment(off))
        assert "personal" not in result.history[-1]
        assert "personal" not in off.build_model(SplitModel(nn.Linear(3, 2))).extra_heads
