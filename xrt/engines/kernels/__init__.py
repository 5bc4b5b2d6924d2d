"""Array kernels over an array module: NumPy's and CuPy's for the engine toy, JAX's for the engine xla.

A node goes in, and a function of arrays comes out, written once for all array modules. No kernel imports an array library
other than NumPy, and none knows the engine that uses it: what the libraries do differently is in `Primitives`.
"""

from xrt.engines.kernels import (  # noqa: F401  # each fills the table when it is imported
    arithmetic,
    elementwise,
    layout,
    normalization,
    quantization,
    recurrent,
    reduction,
    windows,
)
from xrt.engines.kernels.table import ops

__all__ = ["ops"]
