"""TensorScatter, for which OpenVINO has no operator, as a ScatterElements at places that are computed from where to write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xrt.graph import DType

if TYPE_CHECKING:
    from xrt.engines.openvino.decompositions import OpenVinoWriter
    from xrt.graph import Function

__all__ = ["decompose_tensor_scatter"]


def decompose_tensor_scatter(pen: OpenVinoWriter) -> Function | None:
    """Write the update of a cache; None where a shape is not fixed, or the places run around the end."""
    cache, update = pen.get_input_type(0), pen.get_input_type(1)
    if cache is None or update is None or not (cache.is_static and update.is_static) or not cache.shape or not update.shape:
        return None
    if pen.node.attr("mode", "linear") not in ("linear", b"linear"):
        return None
    rank, along = len(update.shape), pen.node.attr("axis", -2) % len(update.shape)
    steps = np.arange(update.shape[along], dtype=np.int32).reshape([-1 if axis == along else 1 for axis in range(rank)])
    places = pen.literal(np.broadcast_to(steps, update.shape))  # type: ignore[arg-type]  # it is static
    if pen.get_input(2):
        starts = pen.op("Reshape", pen.cast(pen.get_input(2), DType.INT32), pen.literal([-1] + [1] * (rank - 1), np.int64))
        places = pen.op("Add", starts, places)
    return pen.results(pen.op("ScatterElements", pen.get_input(0), places, pen.get_input(1), axis=along))
