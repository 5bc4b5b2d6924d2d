"""Toy's own kernels: each module serves one family of operators and fills the engine's table; `ops` is that table, filled."""

from xrt.engines.toy.kernels import (  # noqa: F401  # each fills the table when it is imported
    arithmetic,
    control,
    indexing,
    layout,
    learned,
    pooling,
    sampling,
    windows,
)
from xrt.engines.toy.table import ops

__all__ = ["ops"]
