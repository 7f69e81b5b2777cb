"""Which round's model is shipped, and when a run stops looking for a better one.

Only the validation score decides. The test set is never asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedtail.callbacks.base import Best
from fedtail.experiment import Experiment


@dataclass
class Choice:
    """The best round so far, by one score.

    Attributes
    ----------
    experiment
        Says which score, whether the best model is kept, and how long to wait for a better one.
    best
        The best round so far, if one was validated.
    """

    experiment: Experiment
    best: Best | None = None

    def look(self, round: int, scores: Mapping[str, Any], model: Mapping[str, Tensor]) -> None:
        """Take up a validated round; one in which the score is not defined does not count."""
        value = scores[self.experiment.score]
        if value is None:
            return
        if self.best is None or self._better(value, self.best.value):
            keeps = self.experiment.keep == "best"
            # A method may write into its tensors in a later round.
            kept = {name: tensor.clone() for name, tensor in model.items()} if keeps else {}
            self.best = Best(round, value, 0, kept)
        else:
            self.best = replace(self.best, waited=self.best.waited + 1)

    def is_best(self, round: int) -> bool:
        """Whether no validated round before this one is better."""
        return self.best is not None and self.best.round == round

    def _better(self, new: float, old: float) -> bool:
        return new < old if self.experiment.score == "loss" else new > old

    @property
    def why_over(self) -> str:
        """Why it is not worth to go on, in a clause; nothing if it may be."""
        patience, best = self.experiment.patience, self.best
        if not patience or best is None or best.waited < patience:
            return ""
        times = "1 validation" if best.waited == 1 else f"{best.waited} validations"
        return f"no better {self.experiment.score} in {times} since round {best.round}"

    @property
    def kept(self) -> dict[str, Tensor] | None:
        """The model to ship in place of the last one, if there is one."""
        if self.experiment.keep != "best" or self.best is None:
            return None
        return dict(self.best.model)
