"""The engine's kernels: each module serves one family of operators and fills the table; `ops` is that table, filled."""

from xrt.engines.xla.kernels import (
    arithmetic,
    casting,
    control,
    convolution,
    creation,
    elementwise,
    indexing,
    layout,
    normalization,
    pooling,
    products,
    quantization,
    recurrent,
    reduction,
    resize,
    sampling,
    scattering,
    signals,
    softmax,
)
from xrt.engines.xla.table import ops

FAMILIES = (
    arithmetic,
    casting,
    control,
    convolution,
    creation,
    elementwise,
    indexing,
    layout,
    normalization,
    pooling,
    products,
    quantization,
    recurrent,
    reduction,
    resize,
    sampling,
    scattering,
    signals,
    softmax,
)
"""The modules, by name."""

__all__ = ["FAMILIES", "ops"]
