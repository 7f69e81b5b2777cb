"""A whole client app of a user's model and data, without the cost of either until it is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtail.engines.flower.relay import relayed
from fedtail.errors import FedtailError

if TYPE_CHECKING:  # both need PyTorch
    from fedtail.data.augment import Augment
    from fedtail.engines.flower.user_client import ModelMaker


def client_app(
    model: ModelMaker | str,
    data: Callable[[Context], Any] | str,
    augment: Augment | str | None = None,
    device: str = "auto",
) -> ClientApp:
    """Return a whole client app.

    Name the parts, as ``"my_app.task:make_model"``, and import none of them in the app's module:
    then one process that stays imports them once and keeps data and model, and those that Flower
    starts for every message only pass it on. Objects are used in these processes themselves.

    Parameters
    ----------
    model
        The network, or what makes it; the server has the same.
    data
        Given Flower's context (its ``node_config`` says which partition, or which folder, is this
        node's), returns the local training data in any form that `handle` takes.
    augment
        Random changes of training images.
    device
        Where to train.
    """
    named = [part for part in (model, data, augment) if isinstance(part, str)]
    if not named:
        return _unnamed(model, data, augment, device)
    if len(named) != (2 if augment is None else 3):
        raise FedtailError("client_app: name all of model, data and augment, or none of them")
    for part in named:
        if not all(part.partition(":")[::2]):
            raise FedtailError(f"client_app: '{part}' is not of the form 'module:name'")
    target = "fedtail.engines.flower.user_client:answer_named"
    changes = None if augment is None else str(augment)
    return relayed(target, model=str(model), data=str(data), augment=changes, device=device)


def _unnamed(model: Any, data: Any, augment: Any, device: str) -> ClientApp:
    from fedtail.data.formats.pairs import size_of
    from fedtail.engines.flower.user_client import runtime
    from fedtail.engines.flower.worker import answer_message

    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        return answer_message(
            message,
            context,
            lambda n: runtime(n, context, model, data(context), augment, device),
            samples=lambda: size_of(data(context)),
        )

    app.train()(answer)
    app.query("hello")(answer)
    return app
