"""fedtail: one good global model from decentralised, non-IID and long-tailed data."""
