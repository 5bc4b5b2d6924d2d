"""Resizing: along each axis it is a product with a matrix of weights, and the gradient that with the transposed matrix.

Keys, *Cubic convolution interpolation for digital image processing* (1981), has the weights; here the operator itself gives them,
applied to an identity matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.passes.gradient.table import RuleContext, rule
from xrt.passes.gradient.tensors import integers, transpose

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

Gradients = Sequence["Tensor | None"]

_OPTIONS = (
    *("antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "mode", "nearest_mode"),
    "keep_aspect_ratio_policy",
)


@rule("Resize")
def resize(at: RuleContext) -> Gradients:
    """The function y = A x B' ... with a matrix per axis: dx = A' g B ..."""
    if at.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
        at.refuse("it resizes a crop (tf_crop_and_resize), for which there is no rule; cut the crop out by Slice")
    if at.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        at.refuse("it keeps the aspect ratio; give it the sizes that follow from that")
    rank, (shape, wanted) = at.rank(at.x), (at.x.tensor_type.shape, at.y.tensor_type.shape)
    axes = [axis % rank for axis in at.attr("axes") or range(rank)]
    scales, sizes = at.constant(2), at.constant(3)
    found = at.g
    for place, axis in enumerate(axes):
        size, result = (None if dims is None else dims[axis] for dims in (shape, wanted))
        if not isinstance(size, int) or not isinstance(result, int) or (scales is None and sizes is None):
            at.refuse("its extents are not known; bind the symbolic ones first")
        scale = None if scales is None or scales.size == 0 else scales.tolist()[place]
        if size == result and scale in (None, 1):
            continue
        found = _apply_transposed(found, _weights(at, size, result, scale), axis)
    return (found,)


def _weights(at: RuleContext, size: int, result: int, scale: float | None) -> Tensor:
    """Return the matrix (result, size) of one axis: the columns of the identity, resized."""
    identity = np.eye(size, dtype=at.x.dtype.numpy)
    options: dict[str, Any] = {name: value for name in _OPTIONS if (value := at.attr(name)) is not None}
    if scale is None:
        return emit("Resize", identity, None, None, integers(result, size), **options)
    return emit("Resize", identity, None, np.asarray([scale, 1], np.float32), **options)


def _apply_transposed(g: Tensor, weights: Tensor, axis: int) -> Tensor:
    """Return the gradient multiplied along an axis by the transposed matrix."""
    rank = g.ndim
    order = [*(other for other in range(rank) if other != axis), axis]
    product = emit("MatMul", transpose(g, order), weights)
    return transpose(product, np.argsort(order).tolist())
