"""The partitioner: which engine runs which part of a model.

A Function and engines come in, a Plan goes out: every engine is asked about every node, nodes are clustered so that
the clusters hang together without a cycle, and each cluster is folded into a launch node. Nothing here compiles, runs
or touches a file, and of an engine it knows the name, the devices and the answers.
"""

from xrt.partition.capability import Capability
from xrt.partition.copies import Copy
from xrt.partition.dependencies import DependencyGraph
from xrt.partition.options import ClusteringOptions, Pin
from xrt.partition.partitioner import partition
from xrt.partition.plan import Launch, Plan, Reason, launch_node

__all__ = [
    "Capability",
    "ClusteringOptions",
    "Copy",
    "DependencyGraph",
    "Launch",
    "Pin",
    "Plan",
    "Reason",
    "launch_node",
    "partition",
]
