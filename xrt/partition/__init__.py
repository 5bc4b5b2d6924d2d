"""The partitioner: which engine runs which part of a model.

A Function and engines come in, a Plan goes out: every engine is asked about every node, nodes are clustered so that the graph
of clusters has no cycle, and each cluster is folded into a launch node. Nothing here compiles, runs or touches a file, and of
an engine it knows the name, the devices and the answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.partition.cost_table import CostTable as CostTable
    from xrt.partition.cost_table import MeasuredCost as MeasuredCost
    from xrt.partition.cost_table import RegionCost as RegionCost
    from xrt.partition.options import ClusteringOptions as ClusteringOptions
    from xrt.partition.options import Pin as Pin
    from xrt.partition.partitioner import map_nodes_to_engines as map_nodes_to_engines
    from xrt.partition.partitioner import map_nodes_to_regions as map_nodes_to_regions
    from xrt.partition.partitioner import partition as partition
    from xrt.partition.partitioner import plan_from_assignment as plan_from_assignment
    from xrt.partition.plan import Launch as Launch
    from xrt.partition.plan import Plan as Plan
    from xrt.partition.plan import Reason as Reason
    from xrt.partition.plan import Transfer as Transfer
    from xrt.partition.plan import launch_node as launch_node
    from xrt.partition.quotient_graph import DependencyGraph as DependencyGraph
    from xrt.partition.support_matrix import SupportMatrix as SupportMatrix

_MODULES = {
    "ClusteringOptions": "xrt.partition.options",
    "CostTable": "xrt.partition.cost_table",
    "DependencyGraph": "xrt.partition.quotient_graph",
    "Launch": "xrt.partition.plan",
    "MeasuredCost": "xrt.partition.cost_table",
    "Pin": "xrt.partition.options",
    "Plan": "xrt.partition.plan",
    "Reason": "xrt.partition.plan",
    "RegionCost": "xrt.partition.cost_table",
    "SupportMatrix": "xrt.partition.support_matrix",
    "Transfer": "xrt.partition.plan",
    "launch_node": "xrt.partition.plan",
    "map_nodes_to_engines": "xrt.partition.partitioner",
    "map_nodes_to_regions": "xrt.partition.partitioner",
    "partition": "xrt.partition.partitioner",
    "plan_from_assignment": "xrt.partition.partitioner",
}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
