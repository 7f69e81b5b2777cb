"""Ways to share samples out among clients, named after who uses them."""

from fedtail.data.partitions.base import Labels, Partition
from fedtail.data.partitions.creff import CReFFSplit
from fedtail.data.partitions.dirichlet import BalancedDirichlet, Dirichlet
from fedtail.data.partitions.iid import IID
from fedtail.data.partitions.natural import Natural
from fedtail.data.partitions.redgrape import RedGrapeSplit
from fedtail.data.partitions.shards import Pathological, Shards
from fedtail.data.partitions.tau import TauSampling

__all__ = [
    "IID",
    "BalancedDirichlet",
    "CReFFSplit",
    "Dirichlet",
    "Labels",
    "Natural",
    "Partition",
    "Pathological",
    "RedGrapeSplit",
    "Shards",
    "TauSampling",
]
