"""Toy's own kernels: each module serves one family of operators and fills the engine's table; `ops` is that table, filled."""

from xrt.engines.toy.kernels import (
    arithmetic,
    casting,
    control,
    convolution,
    creation,
    deformed,
    embedding,
    features,
    indexing,
    layout,
    linear_models,
    maps,
    normalization,
    optimizers,
    pooling,
    regions,
    resize,
    sequence,
    spectral,
    support_vectors,
    texts,
    trees,
)
from xrt.engines.toy.table import ops

FAMILIES = (
    arithmetic,
    casting,
    control,
    convolution,
    creation,
    deformed,
    embedding,
    features,
    indexing,
    layout,
    linear_models,
    maps,
    normalization,
    optimizers,
    pooling,
    regions,
    resize,
    sequence,
    spectral,
    support_vectors,
    texts,
    trees,
)
"""The modules, by name."""

__all__ = ["FAMILIES", "ops"]
