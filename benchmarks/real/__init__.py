"""Comparisons on real data: the protocols, and what gathers their results."""
