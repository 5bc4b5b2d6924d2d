"""GridSample: read a tensor at places between its elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

from xrt.engines.toolkit.array_ops.resampling import read, sample_grid
from xrt.engines.xla.table import Operand, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__: list[str] = []


@ops("GridSample")
def grid_sample(at: LoweringContext, x: Operand, grid: Operand) -> Operand:
    return read(jnp, jnp.asarray(x), jnp.asarray(grid), sample_grid(at.node))
