"""GridSample: read a tensor at places between its elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.engines.kernels.table import Run, ops
from xrt.engines.toolkit.array_ops.resampling import read, sample_grid

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext
    from xrt.graph import Node

__all__: list[str] = []


@ops("GridSample")
def grid_sample(node: Node, env: NodeContext) -> Run:
    xp, how = env.xp, sample_grid(node)
    return lambda x, grid: read(xp, xp.asarray(x), xp.asarray(grid), how)
