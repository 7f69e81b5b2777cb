"""Privacy: the noise of the Gaussian mechanism, and what it promises."""

from fedtail.privacy.gaussian import analytic_sigma, paper_sigma, spent_delta, spent_epsilon

__all__ = ["analytic_sigma", "paper_sigma", "spent_delta", "spent_epsilon"]
