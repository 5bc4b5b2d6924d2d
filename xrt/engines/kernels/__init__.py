"""One set of kernels for the array libraries NumPy, CuPy, JAX and PyTorch.

A kernel factory turns a node into a function of arrays. Kernels call the functions of an array namespace, and import no array
library other than NumPy. An engine registers kernels with a higher priority if its library has faster ones.
"""

from xrt.engines.kernels import (  # noqa: F401  # each import fills the tables
    control,
    creation,
    elementwise,
    layout,
    learned,
    quantization,
    recurrent,
    reduction,
    sampling,
    windows,
)
from xrt.engines.kernels.table import eager, numpy_only, ops

__all__ = ["eager", "numpy_only", "ops"]
