"""The partitioner: which engine runs which part of a model.

A Function and engines come in, a Plan goes out: every engine is asked about every node, nodes are clustered so that
the clusters hang together without a cycle, and each cluster is folded into a launch node. Where costs were measured, the
planner proposes which node goes where. Nothing here compiles, runs or touches a file, and of an engine it knows the name,
the devices and the answers.
"""

from xrt.partition.capability import Capability
from xrt.partition.copies import Copy
from xrt.partition.costs import CostTable, Measured, RegionCost
from xrt.partition.dependencies import DependencyGraph
from xrt.partition.explicit import assigned, groups_of, homes_of
from xrt.partition.options import ClusteringOptions, Pin
from xrt.partition.partitioner import partition
from xrt.partition.plan import Launch, Plan, Reason, launch_node
from xrt.partition.planner import (
    BoundaryCost,
    Found,
    Piece,
    Prediction,
    RegionPrediction,
    SearchOptions,
    Unlock,
    pieces,
    predicted,
    propose,
    search,
    unlocks,
)

__all__ = [
    "BoundaryCost",
    "Capability",
    "ClusteringOptions",
    "Copy",
    "CostTable",
    "DependencyGraph",
    "Found",
    "Launch",
    "Measured",
    "Piece",
    "Pin",
    "Plan",
    "Prediction",
    "Reason",
    "RegionCost",
    "RegionPrediction",
    "SearchOptions",
    "Unlock",
    "assigned",
    "groups_of",
    "homes_of",
    "launch_node",
    "partition",
    "pieces",
    "predicted",
    "propose",
    "search",
    "unlocks",
]
