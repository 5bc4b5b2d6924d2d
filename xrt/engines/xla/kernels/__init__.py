"""The engine's kernels: each module serves one family of operators and fills the table; `ops` is that table, filled."""

from xrt.engines.xla.kernels import (  # noqa: F401  # each fills the table when it is imported
    arithmetic,
    control,
    layout,
    windows,
)
from xrt.engines.xla.table import ops, register_factories

register_factories()

__all__ = ["ops"]
