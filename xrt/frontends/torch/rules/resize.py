"""Rules of operators that read between the elements: resizing and sampling on a grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.frontends.torch.rules.table import Unsupported, ints, rule
from xrt.frontends.torch.symbols import make_shape
from xrt.graph import TensorType

if TYPE_CHECKING:
    from xrt.builder import Tensor


def _resized(result: TensorType, x: Tensor, size: Any, factors: Any, **attributes: Any) -> Tensor:
    """Resize the axes behind the second one to a size, by factors where they are given: these say where elements are read."""
    axes = list(range(2, x.ndim))
    if factors is not None:
        scales = np.array([float(factor) for factor in factors], np.float32)
        exact = [have * factor for have, factor in zip(x.shape[2:], scales, strict=True) if isinstance(have, int)]
        if len(exact) == len(axes) and all(abs(one - round(float(one))) < 1e-4 for one in exact):
            return emit("Resize", x, None, scales, None, axes=axes, **attributes)
        if any(not float(one).is_integer() for one in scales):
            raise Unsupported("a resize by a factor that gives no whole size")
        return emit("Resize", x, None, scales, None, axes=axes, **attributes)
    return emit("Resize", x, None, None, make_shape(size), axes=axes, **attributes)


def _register(name: str, count: int, mode: str) -> None:
    has_corners = mode != "nearest"

    def attributes(align_corners: bool) -> dict[str, Any]:
        if mode == "nearest":
            return {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        where = "align_corners" if align_corners else "pytorch_half_pixel" if mode == "linear" else "half_pixel"
        return {"mode": mode, "coordinate_transformation_mode": where, "cubic_coeff_a": -0.75 if mode == "cubic" else None}

    def resize_vec(result: TensorType, x: Tensor, size: Any, *rest: Any) -> Tensor:
        corners, factors = rest if has_corners else (False, *rest)
        return _resized(result, x, size, factors, **attributes(bool(corners)))

    def resize(result: TensorType, x: Tensor, size: Any, *rest: Any) -> Tensor:
        corners, factors = (bool(rest[0]) if has_corners else False), rest[has_corners:]
        known = None if not factors or any(one is None for one in factors) else factors
        return _resized(result, x, size, known, **attributes(corners))

    rule(f"{name}.vec")(resize_vec)
    rule(name)(resize)


_register("upsample_nearest1d", 1, "nearest")
_register("upsample_nearest2d", 2, "nearest")
_register("upsample_nearest3d", 3, "nearest")
_register("upsample_linear1d", 1, "linear")
_register("upsample_bilinear2d", 2, "linear")
_register("upsample_trilinear3d", 3, "linear")
_register("upsample_bicubic2d", 2, "cubic")

_MODES = {0: "linear", 1: "nearest", 2: "cubic"}
_PADDINGS = {0: "zeros", 1: "border", 2: "reflection"}


@rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(result: TensorType, x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    return emit("GridSample", x, grid, mode=_MODES[mode], padding_mode=_PADDINGS[padding], align_corners=int(align_corners))


@rule("affine_grid_generator")
def affine_grid(result: TensorType, theta: Tensor, size: Any, align_corners: bool) -> Tensor:
    if not all(isinstance(one, int) for one in size):
        raise Unsupported("an affine grid of symbolic size")
    return emit("AffineGrid", theta, ints(*size), align_corners=int(align_corners))
