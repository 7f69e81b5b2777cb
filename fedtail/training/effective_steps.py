"""How far local SGD goes for the gradients it sees: the ‖a‖₁ of FedNova.

Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020.
"""

from __future__ import annotations

from fedtail.errors import FedtailError
from fedtail.training.local import LocalTraining


def only_sgd(method: str, local: LocalTraining) -> None:
    """Refuse an optimiser whose steps are not linear in the gradients."""
    if local.optimizer != "sgd":
        raise FedtailError(
            f"method '{method}' counts steps of sgd, with or without momentum:"
            f" method.local.optimizer = '{local.optimizer}' cannot be used"
        )


def effective_steps(
    steps: int, momentum: float = 0.0, nesterov: bool = False, pull: float = 0.0
) -> float:
    """Return a, such that `steps` steps of SGD at rate η along a constant g move by −η a g.

    The move is linear in the gradients, w_t − w = η Σ_s a_s g_s, and a is the sum of the a_s:
    Q for plain SGD, Σ_{s=1..Q} (1 − ρ^s) / (1 − ρ) with momentum ρ, and (1 − (1 − α)^Q) / α with a
    proximal term, α = ημ. Here the optimiser is followed with g = 1, so that all three may be
    combined.

    Parameters
    ----------
    steps
        Q, the number of batches.
    momentum, nesterov
        As in `torch.optim.SGD`, the buffer starting at zero.
    pull
        α = ημ, of the proximal term (μ/2)‖w − w_t‖².
    """
    velocity = moved = 0.0
    for _ in range(steps):
        gradient = 1.0 - pull * moved
        velocity = momentum * velocity + gradient
        moved += gradient + momentum * velocity if nesterov else velocity
    return moved
