"""The rules, by family: importing this package fills `xrt.passes.gradient.table.RULES` and the table of definitions."""

from xrt.passes.gradient.rules import (
    activations,
    arithmetic,
    backpropagation_through_time,
    control_flow,
    convolutions,
    indexing,
    normalizations,
    pooling,
    products,
    recurrent,
    reductions,
    resizing,
    shapes,
)

__all__ = [
    "activations",
    "arithmetic",
    "backpropagation_through_time",
    "control_flow",
    "convolutions",
    "indexing",
    "normalizations",
    "pooling",
    "products",
    "recurrent",
    "reductions",
    "resizing",
    "shapes",
]
