"""Array kernels over an array module: NumPy's and CuPy's for the engine toy, JAX's for the engine xla.

A node goes in, and a function of arrays comes out, written once for all array modules. No kernel imports an array library
other than NumPy, and none knows the engine that uses it: what the libraries do differently is in `Primitives`.
"""

from xrt.engines.kernels import (
    arithmetic,
    convolution,
    elementwise,
    indexing,
    layout,
    normalization,
    pooling,
    products,
    quantization,
    recurrent,
    reduction,
    sampling,
    softmax,
)
from xrt.engines.kernels.table import ops

FAMILIES = (
    arithmetic,
    convolution,
    elementwise,
    indexing,
    layout,
    normalization,
    pooling,
    products,
    quantization,
    recurrent,
    reduction,
    sampling,
    softmax,
)
"""The modules, by name."""

__all__ = ["FAMILIES", "ops"]
