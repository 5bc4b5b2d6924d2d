"""What XRT changes in a module as TVM imports it, because the loops that TVM makes are unsafe, wrong at the edges, or slow.

- Indices: one outside of its axis, an error in ONNX, would read or write foreign memory; it is brought to the nearest
  one inside.
- Shifts: by the width or more they are whatever the processor does; ONNX defines them (opset 28).
- The remainder of floats with the sign of the divisor: NaN where one side is infinite.
- Exponentials: a call into the C library for each element, where TVM also has polynomials that vectorise, right to
  some 3 units in the last place. (Its tanh by exponentials subtracts what is nearly equal: of small numbers few digits
  are right.)
- Powers: a call into the C library for each element, of which TVM warns on stderr; small whole ones are products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, topi
from tvm.ir import Call, GenericConst, IRModule
from tvm.relax import BlockBuilder
from tvm.relax.expr_functor import PyExprMutator, mutator

__all__ = ["guarded"]


def guarded(module: IRModule) -> IRModule:
    """Return the module with the calls of its ``main`` rewritten by `_REWRITES`."""
    guard = _Guard(module)
    guard.builder_.update_func(module.get_global_var("main"), guard.visit_expr(module["main"]))
    rewritten: IRModule = guard.builder_.finalize()
    return rewritten


@mutator
class _Guard(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        rewrite = _REWRITES.get(getattr(call.op, "name", ""))
        return call if rewrite is None else rewrite(call, self.builder_)


def _take(call: Call, builder: BlockBuilder) -> Any:
    data, indices = call.args
    return relax.op.take(data, indices, axis=call.attrs.axis, mode="clip")


def _gather_elements(call: Call, builder: BlockBuilder) -> Any:
    data, indices = call.args
    axis = int(call.attrs.axis)
    return relax.op.gather_elements(data, _inside(indices, _shape(data)[axis]), axis)


def _gather_nd(call: Call, builder: BlockBuilder) -> Any:
    data, indices = call.args
    batch = int(call.attrs.batch_dims)
    return relax.op.gather_nd(data, _inside(indices, _coordinates(data, indices, batch)), batch)


def _scatter_elements(call: Call, builder: BlockBuilder) -> Any:
    data, indices, updates = call.args
    axis = int(call.attrs.axis)
    inside = _inside(indices, _shape(data)[axis], from_end=True)
    return relax.op.scatter_elements(data, inside, updates, axis, call.attrs.reduction)


def _scatter_nd(call: Call, builder: BlockBuilder) -> Any:
    data, indices, updates = call.args
    return relax.op.scatter_nd(data, _inside(indices, _coordinates(data, indices, 0)), updates, call.attrs.reduction)


def _power(call: Call, builder: BlockBuilder) -> Any:
    base, exponent = call.args
    if not isinstance(exponent, GenericConst) or (times := _whole(exponent)) is None:
        return call
    product = base
    for _ in range(times - 1):
        product = relax.op.multiply(product, base)
    return product


def _left_shift(call: Call, builder: BlockBuilder) -> Any:
    value, amount = call.args
    near = _inside_width(amount)
    return relax.op.where(relax.op.equal(amount, near), relax.op.left_shift(value, near), _scalar(0, value))


def _right_shift(call: Call, builder: BlockBuilder) -> Any:
    value, amount = call.args
    near = _inside_width(amount)
    sign = relax.op.right_shift(value, _scalar(_bits(value) - 1, value)) if _dtype(value).startswith("int") else _scalar(0, value)
    return relax.op.where(relax.op.equal(amount, near), relax.op.right_shift(value, near), sign)


def _floor_mod(call: Call, builder: BlockBuilder) -> Any:
    dividend, divisor = call.args
    if "float" not in _dtype(dividend):
        return call
    rest = relax.op.mod(dividend, divisor)
    zero = _scalar(0, dividend)
    other_sign = relax.op.logical_xor(relax.op.less(rest, zero), relax.op.less(divisor, zero))
    wrong = relax.op.logical_and(relax.op.not_equal(rest, zero), other_sign)
    return relax.op.where(wrong, relax.op.add(rest, divisor), rest)


def _exp(call: Call, builder: BlockBuilder) -> Any:
    """Square the polynomial at x / 2: at x it overflows a little too early."""
    if _dtype(call) != "float32":
        return call
    root = builder.emit(_fast_exp(relax.op.multiply(call.args[0], _scalar(0.5, call)), builder))
    return relax.op.multiply(root, root)


def _tanh(call: Call, builder: BlockBuilder) -> Any:
    return builder.call_te(topi.fast_tanh, call.args[0]) if _dtype(call) == "float32" else call


def _erf(call: Call, builder: BlockBuilder) -> Any:
    (x,) = call.args
    if _dtype(x) != "float32":
        return call
    return relax.op.where(relax.op.isnan(x), x, builder.call_te(topi.fast_erf, x))


def _sigmoid(call: Call, builder: BlockBuilder) -> Any:
    if _dtype(call) != "float32":
        return call
    one = _scalar(1, call)
    return relax.op.divide(one, relax.op.add(one, _fast_exp(relax.op.negative(call.args[0]), builder)))


def _silu(call: Call, builder: BlockBuilder) -> Any:
    (x,) = call.args
    return relax.op.multiply(x, _sigmoid(call, builder)) if _dtype(x) == "float32" else call


def _gelu(call: Call, builder: BlockBuilder) -> Any:
    (x,) = call.args
    if _dtype(x) != "float32":
        return call
    erf = builder.call_te(topi.fast_erf, builder.normalize(relax.op.multiply(x, _scalar(0.5**0.5, x))))
    return relax.op.multiply(relax.op.multiply(x, _scalar(0.5, x)), relax.op.add(erf, _scalar(1, x)))


def _softmax(call: Call, builder: BlockBuilder) -> Any:
    return builder.call_te(topi.nn.fast_softmax, call.args[0], int(call.attrs.axis)) if _dtype(call) == "float32" else call


def _fast_exp(x: Any, builder: BlockBuilder) -> Any:
    return builder.call_te(topi.fast_exp, builder.normalize(x))


_REWRITES: dict[str, Callable[[Call, BlockBuilder], Any]] = {
    "relax.take": _take,
    "relax.gather_elements": _gather_elements,
    "relax.gather_nd": _gather_nd,
    "relax.scatter_elements": _scatter_elements,
    "relax.scatter_nd": _scatter_nd,
    "relax.power": _power,
    "relax.exp": _exp,
    "relax.tanh": _tanh,
    "relax.erf": _erf,
    "relax.sigmoid": _sigmoid,
    "relax.nn.silu": _silu,
    "relax.nn.gelu": _gelu,
    "relax.nn.softmax": _softmax,
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


def _inside(indices: Any, extents: int | tuple[int, ...], *, from_end: bool = False) -> Any:
    """Clamp indices to their axes. The importer has counted negative ones from the end, unless ``from_end``."""
    dtype = _dtype(indices)
    extent = np.asarray(extents, dtype)
    first = relax.const(-extent if from_end else extent * 0, dtype)
    return relax.op.minimum(relax.op.maximum(indices, first), relax.const(extent - 1, dtype))


def _whole(exponent: GenericConst) -> int | None:
    """Return the exponent of a power that is worth writing as a product: one scalar, 2 to 8."""
    value = exponent.value.numpy()
    if value.size != 1 or value.ndim or float(value) not in range(2, 9):
        return None
    return int(value)
