"""Models that differ in nothing but their classifier, tested with one pass of the body."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.func import functional_call

from fedtail.engines.runtime import Runtime
from fedtail.metrics import Evaluation
from fedtail.models.split_model import SplitModel
from fedtail.protocol import Tensors


def evaluated_together(runtime: Runtime, models: Sequence[Tensors]) -> list[Evaluation] | None:
    """Test models on the whole test set, or return nothing if their bodies differ."""
    if len(models) < 2:
        return None
    tested = runtime.load_tested(models[0])
    begin = f"{tested.classifier_name}."
    if type(tested) is not SplitModel or not _one_body(models, begin):
        return None
    heads = [
        {
            n.removeprefix(begin): t.to(runtime.device)
            for n, t in model.items()
            if n.startswith(begin)
        }
        for model in models
    ]
    classes = runtime.federation.num_classes
    found = [Evaluation.empty(classes)] * len(models)
    for start, stop in runtime.test_ranges():
        x, y = runtime.federation.test_batch(start, stop)
        with torch.inference_mode():
            each = _logits(tested, heads, x)
            found = [
                so_far + Evaluation.of(z, y, classes) for so_far, z in zip(found, each, strict=True)
            ]
    return found


def _one_body(models: Sequence[Tensors], head: str) -> bool:
    return all(
        a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a if not n.startswith(head))
        for a, b in pairwise(models)
    )


def _logits(tested: SplitModel, heads: Sequence[dict[str, Tensor]], x: Tensor) -> Iterator[Tensor]:
    features = tested.features(x)
    return (functional_call(tested.classifier, head, (features,)) for head in heads)
