"""Scores, shot groups, curves and traffic."""

from fedtail.metrics.curves import bytes_to, last_rounds, rounds_to, rounds_to_own, shipped_record
from fedtail.metrics.deviation import Deviating, deviating, deviation_bound, printed_bound
from fedtail.metrics.evaluation import Evaluation
from fedtail.metrics.groups import IndexGroups, RankGroups, ShotGroups, ThresholdGroups
from fedtail.metrics.personal import client_scores, personal_scores
from fedtail.metrics.scores import scores
from fedtail.metrics.traffic import GB, checkpoint_traffic, gigabytes, human_bytes

__all__ = [
    "GB",
    "Deviating",
    "Evaluation",
    "IndexGroups",
    "RankGroups",
    "ShotGroups",
    "ThresholdGroups",
    "bytes_to",
    "checkpoint_traffic",
    "client_scores",
    "deviating",
    "deviation_bound",
    "gigabytes",
    "human_bytes",
    "last_rounds",
    "personal_scores",
    "printed_bound",
    "rounds_to",
    "rounds_to_own",
    "scores",
    "shipped_record",
]
