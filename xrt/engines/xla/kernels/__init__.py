"""The engine's kernels: each module serves one family of operators and fills the table; `ops` is that table, filled."""

from xrt.engines.xla.kernels import (
    arithmetic,
    casting,
    control,
    convolution,
    creation,
    indexing,
    layout,
    normalization,
    pooling,
    resize,
    signals,
)
from xrt.engines.xla.table import ops, register_factories

register_factories()

FAMILIES = (
    arithmetic,
    casting,
    control,
    convolution,
    creation,
    indexing,
    layout,
    normalization,
    pooling,
    resize,
    signals,
)
"""The modules, by name."""

__all__ = ["FAMILIES", "ops"]
