"""GridSample: read a tensor at places between its elements."""

from __future__ import annotations

from xrt.engines.resampling import grid_of, read
from xrt.engines.toy.env import Env
from xrt.engines.toy.table import Run, ops
from xrt.graph import Node

__all__: list[str] = []


@ops("GridSample")
def grid_sample(node: Node, env: Env) -> Run:
    xp, how = env.xp, grid_of(node)
    return lambda x, grid: read(xp, x, grid, how)
