"""One set of kernels for the array libraries: NumPy, CuPy, JAX and PyTorch.

A kernel factory turns a node into a function of arrays. Kernels use a namespace of array functions and import no array
library other than NumPy; an engine adds kernels of a higher priority where its library has something better.
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
