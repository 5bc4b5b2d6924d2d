"""Toy's own kernels: each module serves one family of operators and fills the engine's table; `ops` is that table, filled."""

from xrt.engines.toy.kernels import (
    arithmetic,
    casting,
    control,
    convolution,
    creation,
    elementwise,
    embedding,
    indexing,
    layout,
    normalization,
    pooling,
    products,
    quantization,
    recurrent,
    reduction,
    regions,
    resize,
    sampling,
    sequence,
    softmax,
)
from xrt.engines.toy.table import ops

FAMILIES = (
    arithmetic,
    casting,
    control,
    convolution,
    creation,
    embedding,
    elementwise,
    indexing,
    layout,
    normalization,
    pooling,
    products,
    quantization,
    recurrent,
    reduction,
    regions,
    resize,
    sampling,
    sequence,
    softmax,
)
"""The modules, by name."""

__all__ = ["FAMILIES", "ops"]
