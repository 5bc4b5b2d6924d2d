"""GridSample: read a tensor at places between its elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.engines.toolkit.array_ops.resampling import read, sample_grid
from xrt.engines.toy.table import Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__: list[str] = []


@ops("GridSample")
def grid_sample(node: Node, env: KernelContext) -> Run:
    xp, how = env.xp, sample_grid(node)
    return lambda x, grid: read(xp, x, grid, how)
