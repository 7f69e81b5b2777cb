"""The client app behind ``fedtail run --engine flower`` and ``--engine ray``."""

from __future__ import annotations

from fedtail.engines.flower.relay import relayed

node_app = relayed("fedtail.engines.flower.apps:answer_described")
