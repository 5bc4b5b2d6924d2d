"""The engine's kernels: each module serves one family of operators and fills the table; `ops` is that table, filled."""

from xrt.engines.torch.kernel_context import ops
from xrt.engines.torch.kernels import (  # noqa: F401  # each fills the table when it is imported
    arithmetic,
    control,
    indexing,
    layout,
    normalization,
    quantization,
    recurrent,
    reduction,
    sampling,
    windows,
)

MOVING = frozenset(
    {
        *("Constant", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Tile", "Transpose", "Concat", "Split"),
        *("Slice", "Gather", "GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth", "ReverseSequence", "Trilu", "Where"),
        *("Compress", "ScatterElements", "ScatterND", "Scatter", "TensorScatter", "Pad", "CenterCropPad", "OneHot"),
    }
)
"""Operators that only move elements, and so take every type that tensors hold in whatever form."""

__all__ = ["MOVING", "ops"]
