"""The partitioner assigns each node of a model to an engine.

`partition` queries every engine about every node, clusters the nodes such that the graph of clusters is acyclic, and folds each
cluster into a launch node of the resulting Plan. Nothing is compiled or run, and no files are accessed. Only the name, the
devices, and the support of nodes of an engine are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.measure.timing import MeasuredCost as MeasuredCost
    from xrt.partition.clustering import DependencyGraph as DependencyGraph
    from xrt.partition.cost_table import CostTable as CostTable, RegionCost as RegionCost
    from xrt.partition.options import ClusteringOptions as ClusteringOptions, Pin as Pin
    from xrt.partition.partitioner import (
        map_nodes_to_engines as map_nodes_to_engines,
        map_nodes_to_regions as map_nodes_to_regions,
        partition as partition,
        plan_from_assignment as plan_from_assignment,
    )
    from xrt.partition.plan import (
        Launch as Launch,
        Plan as Plan,
        Reason as Reason,
        Transfer as Transfer,
        launch_node as launch_node,
    )
    from xrt.partition.support_matrix import SupportMatrix as SupportMatrix

__all__, __getattr__, __dir__ = load_lazily(__name__)
