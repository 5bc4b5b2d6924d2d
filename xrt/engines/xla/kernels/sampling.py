"""GridSample: read a tensor at places between its elements."""

from __future__ import annotations

import jax.numpy as jnp

from xrt.engines.resampling import grid_of, read
from xrt.engines.xla.site import Site
from xrt.engines.xla.table import Operand, ops

__all__: list[str] = []


@ops("GridSample")
def grid_sample(at: Site, x: Operand, grid: Operand) -> Operand:
    return read(jnp, jnp.asarray(x), jnp.asarray(grid), grid_of(at.node))
