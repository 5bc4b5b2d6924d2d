"""What XRT changes in a module as TVM imports it, because the loops that TVM makes are unsafe, wrong at the edges, or slow.

- Indices: one outside of its axis, an error in ONNX, would read or write foreign memory; it is brought to the nearest
  one inside.
- Shifts: by the width or more they are whatever the processor does; ONNX defines them (opset 28).
- The remainder of floats with the sign of the divisor: NaN where one side is infinite.
- Tanh and atanh: their formulas subtract what is nearly equal, so that of small numbers few digits are right.
- Powers: a call into the C library for each element, of which TVM warns on stderr; small whole ones are products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Call, GenericConst, IRModule
from tvm.relax.expr_functor import PyExprMutator, mutator

__all__ = ["guarded"]


def guarded(module: IRModule) -> IRModule:
    """Return the module with the calls of its ``main`` rewritten by `_REWRITES`."""
    module["main"] = _Guard(module).visit_expr(module["main"])
    return module


@mutator
class _Guard(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        rewrite = _REWRITES.get(getattr(call.op, "name", ""))
        return call if rewrite is None else rewrite(call)


def _take(call: Call) -> Any:
    data, indices = call.args
    return relax.op.take(data, indices, axis=call.attrs.axis, mode="clip")


def _gather_elements(call: Call) -> Any:
    data, indices = call.args
    axis = int(call.attrs.axis)
    return relax.op.gather_elements(data, _inside(indices, _shape(data)[axis]), axis)


def _gather_nd(call: Call) -> Any:
    data, indices = call.args
    batch = int(call.attrs.batch_dims)
    return relax.op.gather_nd(data, _inside(indices, _coordinates(data, indices, batch)), batch)


def _scatter_elements(call: Call) -> Any:
    data, indices, updates = call.args
    axis = int(call.attrs.axis)
    return relax.op.scatter_elements(data, _inside(indices, _shape(data)[axis]), updates, axis, call.attrs.reduction)


def _scatter_nd(call: Call) -> Any:
    data, indices, updates = call.args
    return relax.op.scatter_nd(data, _inside(indices, _coordinates(data, indices, 0)), updates, call.attrs.reduction)


def _power(call: Call) -> Any:
    base, exponent = call.args
    if not isinstance(exponent, GenericConst) or (times := _whole(exponent)) is None:
        return call
    product = base
    for _ in range(times - 1):
        product = relax.op.multiply(product, base)
    return product


def _left_shift(call: Call) -> Any:
    value, amount = call.args
    near = _inside_width(amount)
    return relax.op.where(relax.op.equal(amount, near), relax.op.left_shift(value, near), _scalar(0, value))


def _right_shift(call: Call) -> Any:
    value, amount = call.args
    near = _inside_width(amount)
    sign = relax.op.right_shift(value, _scalar(_bits(value) - 1, value)) if _dtype(value).startswith("int") else _scalar(0, value)
    return relax.op.where(relax.op.equal(amount, near), relax.op.right_shift(value, near), sign)


def _floor_mod(call: Call) -> Any:
    dividend, divisor = call.args
    if "float" not in _dtype(dividend):
        return call
    rest = relax.op.mod(dividend, divisor)
    zero = _scalar(0, dividend)
    other_sign = relax.op.logical_xor(relax.op.less(rest, zero), relax.op.less(divisor, zero))
    wrong = relax.op.logical_and(relax.op.not_equal(rest, zero), other_sign)
    return relax.op.where(wrong, relax.op.add(rest, divisor), rest)


def _odd(*coefficients: float) -> Callable[[Call], Any]:
    """Return a rewrite that takes x (1 + c1 x^2 + c2 x^4 + c3 x^6) for small numbers; up to 0.1 it is exact to a float32."""

    def rewrite(call: Call) -> Any:
        (x,) = call.args
        square = relax.op.multiply(x, x)
        series = _scalar(coefficients[-1], x)
        for coefficient in reversed((1.0, *coefficients[:-1])):
            series = relax.op.add(relax.op.multiply(series, square), _scalar(coefficient, x))
        small = relax.op.less(relax.op.abs(x), _scalar(0.1, x))
        return relax.op.where(small, relax.op.multiply(x, series), call)

    return rewrite


_REWRITES: dict[str, Callable[[Call], Any]] = {
    "relax.take": _take,
    "relax.gather_elements": _gather_elements,
    "relax.gather_nd": _gather_nd,
    "relax.scatter_elements": _scatter_elements,
    "relax.scatter_nd": _scatter_nd,
    "relax.power": _power,
    "relax.tanh": _odd(-1 / 3, 2 / 15, -17 / 315),
    "relax.atanh": _odd(1 / 3, 1 / 5, 1 / 7),
    "relax.left_shift": _left_shift,
    "relax.right_shift": _right_shift,
    "relax.floor_mod": _floor_mod,
}


def _dtype(tensor: Any) -> str:
    return str(tensor.ty.dtype)


def _bits(tensor: Any) -> int:
    return np.dtype(_dtype(tensor)).itemsize * 8


def _scalar(value: float, like: Any) -> Any:
    return relax.const(value, _dtype(like))


def _inside_width(amount: Any) -> Any:
    return relax.op.minimum(relax.op.maximum(amount, _scalar(0, amount)), _scalar(_bits(amount) - 1, amount))


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in tensor.ty.shape)


def _coordinates(data: Any, indices: Any, batch: int) -> tuple[int, ...]:
    """Return the extents that the last axis of the indices runs over, one per coordinate."""
    return _shape(data)[batch : batch + _shape(indices)[-1]]


def _inside(indices: Any, extents: int | tuple[int, ...]) -> Any:
    """Clamp indices to their axes; negative ones count from the end."""
    dtype = _dtype(indices)
    last = relax.const(np.asarray(extents, dtype) - 1, dtype)
    first = relax.const(-np.asarray(extents, dtype), dtype)
    return relax.op.minimum(relax.op.maximum(indices, first), last)


def _whole(exponent: GenericConst) -> int | None:
    """Return the exponent of a power that is worth writing as a product: one scalar, 2 to 8."""
    value = exponent.value.numpy()
    if value.size != 1 or value.ndim or float(value) not in range(2, 9):
        return None
    return int(value)
