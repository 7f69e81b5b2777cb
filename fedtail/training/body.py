"""A model without its classifier: what clients compute features with."""

from __future__ import annotations

from torch import Tensor, nn

from fedtail.models.split_model import SplitModel, load_tested
from fedtail.protocol import Client, Payload, Tensors
from fedtail.training.classifier import prefix


def body_of(tensors: Tensors, network: SplitModel) -> dict[str, Tensor]:
    """Return a network's tensors without those that only its classifier reads."""
    if _is_shared(network.classifier, network):
        return dict(tensors)
    start = prefix(network)
    return {name: t for name, t in tensors.items() if not name.startswith(start)}


def body_bytes(network: SplitModel) -> int:
    """Return the bytes of what moves in training below the classifier."""
    return sum(
        t.numel() * t.element_size() for t in body_of(dict(network.live()), network).values()
    )


def load_body(payload: Payload, client: Client) -> SplitModel:
    """Put the body that a client was sent into the model that has its names, and return that.

    The classifier in it is whatever the client had: only features can be read off.
    """
    told, base = payload.group("model"), client.base or client.model
    for network in (client.model, base):
        whole = {**_own_head(network), **told}
        if network.fits(whole):
            break
    return load_tested(whole, client.model, base)


def _own_head(network: SplitModel) -> dict[str, Tensor]:
    start = prefix(network)
    return {name: t for name, t in network.tensors().items() if name.startswith(start)}


def _is_shared(classifier: nn.Module, network: SplitModel) -> bool:
    """Whether another layer reads a tensor of the classifier, as embeddings may."""
    inside = set(classifier.modules())
    own = {id(p) for p in classifier.parameters()}
    others = (m for m in network.module.modules() if m not in inside)
    return any(id(p) in own for m in others for p in m.parameters(recurse=False))
