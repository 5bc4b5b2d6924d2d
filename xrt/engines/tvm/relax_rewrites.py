"""What XRT changes in a module as TVM imports it, because the loops that TVM makes are unsafe, wrong at the edges, or slow.

- Indices: one outside of its axis, an error in ONNX, would read or write foreign memory; it is brought to the nearest
  one inside.
- Shifts: by the width or more they are whatever the processor does; ONNX defines them (opset 28).
- The remainder of floats with the sign of the divisor: NaN where one side is infinite.
- Sums of float16 and bfloat16, and exponentials of them: accumulated in as few digits, where everybody else has float32.
- Maxima, minima and what is made of them: a NaN is lost, and the largest of nothing but minus infinity is a number.
- Comparisons of floats: TVM takes the opposite of one for another comparison, and a number for equal to itself, which NaN is not.
- Zeros among literals: TVM takes a product with one for zero, and a sum with one for the summand, which NaN and -0 are not.
- A number less itself, which TVM takes for zero.
- A choice between two numbers by which is larger: TVM computes it with 64-bit conditions; it is one instruction.
- Powers: a call into the C library for each element, of which TVM warns on stderr; small whole ones are products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi
from tvm.ir import Call, GenericConst, IRModule
from tvm.relax import BlockBuilder
from tvm.relax.expr_functor import PyExprMutator, mutator

from xrt.engines.tvm.nan_reductions import EXTREMES
from xrt.engines.tvm.polynomials import POLYNOMIALS, infer_scalar_dtype, scalar

__all__ = ["rewrite"]


def rewrite(module: IRModule, polynomials: bool = True) -> IRModule:
    """Return the module with the calls of its ``main`` rewritten by `_REWRITES`, and exponentials by `POLYNOMIALS`."""
    rewritten = _rewritten(module, {**_REWRITES, **POLYNOMIALS} if polynomials else _REWRITES)
    return _rewritten(rewritten, _COMPARISONS)


def _rewritten(module: IRModule, rewrites: Mapping[str, Callable[[Call, BlockBuilder], Any]]) -> IRModule:
    guard = _Guard(module, rewrites)
    guard.builder_.update_func(module.get_global_var("main"), guard.visit_expr(module["main"]))
    rewritten: IRModule = relax.transform.DeadCodeElimination()(guard.builder_.finalize())
    return rewritten


@mutator
class _Guard(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def __init__(self, module: IRModule, rewrites: Mapping[str, Callable[[Call, BlockBuilder], Any]]) -> None:
        super().__init__(module)
        self.rewrites = rewrites

    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        rewrite = self.rewrites.get(name, _as_it_is)
        if name in _IN_FLOAT32 and (narrow := infer_scalar_dtype(call.args[0])) in ("float16", "bfloat16"):
            return relax.op.astype(rewrite(_widened(call, self.builder_), self.builder_), narrow)
        return rewrite(call, self.builder_)


def _as_it_is(call: Call, builder: BlockBuilder) -> Any:
    return call


def _widened(call: Call, builder: BlockBuilder) -> Call:
    """Return the same call of float32 tensors."""
    wide = [builder.normalize(relax.op.astype(tensor, "float32")) for tensor in call.args]
    return builder.normalize(Call(call.op, wide, call.attrs))


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
    return relax.op.where(relax.op.equal(amount, near), relax.op.left_shift(value, near), scalar(0, value))


def _right_shift(call: Call, builder: BlockBuilder) -> Any:
    value, amount = call.args
    near = _inside_width(amount)
    sign = (
        relax.op.right_shift(value, scalar(_bits(value) - 1, value))
        if infer_scalar_dtype(value).startswith("int")
        else scalar(0, value)
    )
    return relax.op.where(relax.op.equal(amount, near), relax.op.right_shift(value, near), sign)


def _floor_mod(call: Call, builder: BlockBuilder) -> Any:
    dividend, divisor = call.args
    if "float" not in infer_scalar_dtype(dividend):
        return call
    rest = relax.op.mod(dividend, divisor)
    zero = scalar(0, dividend)
    other_sign = relax.op.logical_xor(relax.op.less(rest, zero), relax.op.less(divisor, zero))
    wrong = relax.op.logical_and(relax.op.not_equal(rest, zero), other_sign)
    return relax.op.where(wrong, relax.op.add(rest, divisor), rest)


def _equal(call: Call, builder: BlockBuilder) -> Any:
    """Write that each is at most the other, for floats: TVM takes whatever it sees on both sides for equal, NaN too."""
    if "float" not in infer_scalar_dtype(call.args[0]):
        return call
    a, b = call.args
    both = relax.op.logical_and(relax.op.less_equal(a, b), relax.op.greater_equal(a, b))
    return builder.call_te(_opaque, builder.normalize(both))


def _comparison(call: Call, builder: BlockBuilder) -> Any:
    return builder.call_te(_opaque, builder.normalize(call)) if "float" in infer_scalar_dtype(call.args[0]) else call


def _opaque(truth: te.Tensor) -> te.Tensor:
    """Return what a comparison of floats tells, which TVM then draws no conclusions from; to LLVM it is the comparison."""
    yes, no = (tirx.const(value, "bool") for value in (True, False))
    return te.compute(truth.shape, lambda *place: tirx.Select(truth(*place), yes, no), name="selected", tag=topi.tag.ELEMWISE)


def _with_zero(call: Call, builder: BlockBuilder) -> Any:
    """Hand a literal zero over as a tensor of one number: of what it will be TVM then knows nothing."""
    if not any(map(_is_literal_zero, call.args)):
        return call
    args = [_tensor_of_one(arg) if _is_literal_zero(arg) else arg for arg in call.args]
    result = builder.normalize(Call(call.op, args, call.attrs))
    return result if call.ty.shape.values else relax.op.reshape(result, ())


def _is_literal_zero(arg: Any) -> bool:
    return (
        isinstance(arg, GenericConst) and "float" in infer_scalar_dtype(arg) and not arg.ty.shape.values and not arg.value.numpy()
    )


def _tensor_of_one(literal: GenericConst) -> Any:
    return relax.const(literal.value.numpy().reshape(1), infer_scalar_dtype(literal))


def _subtract(call: Call, builder: BlockBuilder) -> Any:
    """Add the negative where one side may be in the other, as it is when both are one value: TVM leaves such sums alone."""
    a, b = call.args
    if "float" in infer_scalar_dtype(call) and not _summands(a, builder).isdisjoint(_summands(b, builder)):
        return relax.op.add(a, relax.op.negative(b))
    return _with_zero(call, builder)


def _summands(value: Any, builder: BlockBuilder) -> set[Any]:
    """Return a value, and those that it is the sum or the difference of."""
    bound = builder.lookup_binding(value) if isinstance(value, relax.Var) else None
    if not isinstance(bound, Call) or getattr(bound.op, "name", "") not in ("relax.add", "relax.subtract"):
        return {value}
    return {value, *bound.args}


_REWRITES: dict[str, Callable[[Call, BlockBuilder], Any]] = {
    "relax.take": _take,
    "relax.gather_elements": _gather_elements,
    "relax.gather_nd": _gather_nd,
    "relax.scatter_elements": _scatter_elements,
    "relax.scatter_nd": _scatter_nd,
    "relax.power": _power,
    "relax.left_shift": _left_shift,
    "relax.right_shift": _right_shift,
    "relax.floor_mod": _floor_mod,
    **dict.fromkeys(("relax.add", "relax.multiply", "relax.divide"), _with_zero),
    "relax.subtract": _subtract,
    **EXTREMES,
}

_COMPARISONS: dict[str, Callable[[Call, BlockBuilder], Any]] = {
    "relax.equal": _equal,
    **dict.fromkeys((f"relax.{name}" for name in ("less", "less_equal", "greater", "greater_equal")), _comparison),
}
"""Rewritten last: choices by a comparison are recognised by it."""

_IN_FLOAT32 = {
    *("relax.matmul", "relax.sum", "relax.mean", "relax.prod", "relax.exp", "relax.tanh", "relax.erf", "relax.sigmoid"),
    *("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d", "relax.nn.softmax", "relax.nn.gelu", "relax.nn.silu"),
}
"""Operators on tensors of one float type that are computed in float32 where theirs is narrower."""


def _bits(tensor: Any) -> int:
    return np.dtype(infer_scalar_dtype(tensor)).itemsize * 8


def _inside_width(amount: Any) -> Any:
    return relax.op.minimum(relax.op.maximum(amount, scalar(0, amount)), scalar(_bits(amount) - 1, amount))


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in tensor.ty.shape)


def _coordinates(data: Any, indices: Any, batch: int) -> tuple[int, ...]:
    """Return the extents that the last axis of the indices runs over, one per coordinate."""
    return _shape(data)[batch : batch + _shape(indices)[-1]]


def _inside(indices: Any, extents: int | tuple[int, ...], *, from_end: bool = False) -> Any:
    """Clamp indices to their axes. The importer has counted negative ones from the end, unless ``from_end``."""
    dtype = infer_scalar_dtype(indices)
    extent = np.asarray(extents, dtype)
    first = relax.const(-extent if from_end else extent * 0, dtype)
    return relax.op.minimum(relax.op.maximum(indices, first), relax.const(extent - 1, dtype))


def _whole(exponent: GenericConst) -> int | None:
    """Return the exponent of a power that is worth writing as a product: one scalar, 2 to 8."""
    value = exponent.value.numpy()
    if value.size != 1 or value.ndim or float(value) not in range(2, 9):
        return None
    return int(value)
