"""Rewrite calls of an imported Relax module for which TVM would generate unsafe, wrong or slow loops.

- Indices are clamped to their axis. An index out of range is an error in ONNX; TVM would access memory out of bounds.
- Sums and exponentials of float16 and bfloat16 are computed in float32, because TVM would accumulate in the narrow type.
- ``Where(a > b, a, b)`` becomes a maximum, which is one instruction. TVM's Where selects by 64-bit conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from tvm import relax, topi
from tvm.ir import Call, GenericConst, IRModule
from tvm.relax import BlockBuilder
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_equal


def get_dtype_name(tensor: Any) -> str:
    """Get TVM's name of the element type of a tensor, such as ``"float32"``."""
    return str(tensor.ty.dtype)


def make_scalar(value: float, like: Any) -> Any:
    return relax.const(value, get_dtype_name(like))


def _exp(call: Call, builder: BlockBuilder) -> Any:
    """Compute exp(x) as exp(x / 2) squared, because TVM's polynomial overflows for slightly smaller x than exp does."""
    root = builder.emit(_fast_exp(relax.op.multiply(call.args[0], make_scalar(0.5, call)), builder))
    return relax.op.multiply(root, root)


def _tanh(call: Call, builder: BlockBuilder) -> Any:
    return builder.call_te(topi.fast_tanh, call.args[0])


def _erf(call: Call, builder: BlockBuilder) -> Any:
    (x,) = call.args
    # The polynomial clamps its argument, which would turn NaN into a number.
    return relax.op.where(relax.op.isnan(x), x, builder.call_te(topi.fast_erf, x))


def _sigmoid(call: Call, builder: BlockBuilder) -> Any:
    one = make_scalar(1, call)
    return relax.op.divide(one, relax.op.add(one, _fast_exp(relax.op.negative(call.args[0]), builder)))


def _silu(call: Call, builder: BlockBuilder) -> Any:
    return relax.op.multiply(call.args[0], _sigmoid(call, builder))


def _gelu(call: Call, builder: BlockBuilder) -> Any:
    (x,) = call.args
    # x * (1 + erf(x / sqrt(2))) / 2
    erf = builder.call_te(topi.fast_erf, builder.normalize(relax.op.multiply(x, make_scalar(0.5**0.5, x))))
    return relax.op.multiply(relax.op.multiply(x, make_scalar(0.5, x)), relax.op.add(erf, make_scalar(1, x)))


def _softmax(call: Call, builder: BlockBuilder) -> Any:
    return builder.call_te(topi.nn.fast_softmax, call.args[0], int(call.attrs.axis))


def _fast_exp(x: Any, builder: BlockBuilder) -> Any:
    return builder.call_te(topi.fast_exp, builder.normalize(x))


Rewrite: TypeAlias = Callable[[Call, BlockBuilder], Any]
"""Returns the expression that replaces a call."""
POLYNOMIALS: Mapping[str, Rewrite] = {
    "relax.exp": _exp,
    "relax.tanh": _tanh,
    "relax.erf": _erf,
    "relax.sigmoid": _sigmoid,
    "relax.nn.silu": _silu,
    "relax.nn.gelu": _gelu,
    "relax.nn.softmax": _softmax,
}
"""Rewrites of float32 exponentials, and of operators that contain exponentials, as polynomials. By Relax operator."""


def rewrite_calls(module: IRModule, polynomials: bool = True) -> IRModule:
    """Rewrite the calls in ``main`` as in `_REWRITES`, and if ``polynomials`` is set also as in `POLYNOMIALS`."""
    rewriter = _CallRewriter(module, POLYNOMIALS if polynomials else {})
    rewriter.builder_.update_func(module.get_global_var("main"), rewriter.visit_expr(module["main"]))
    rewritten: IRModule = relax.transform.DeadCodeElimination()(rewriter.builder_.finalize())
    return rewritten


@mutator
class _CallRewriter(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Rewrites each call as in `_REWRITES`, and each float32 call as in ``polynomials``; see also `_ACCUMULATED_IN_FLOAT32`."""

    def __init__(self, module: IRModule, polynomials: Mapping[str, Rewrite]) -> None:
        super().__init__(module)
        self.polynomials = polynomials

    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        is_accumulated = getattr(call.op, "name", "") in _ACCUMULATED_IN_FLOAT32
        dtype = get_dtype_name(call.args[0]) if is_accumulated else ""
        if dtype not in ("float16", "bfloat16"):
            return self._rewrite(call)
        wide = [self.builder_.normalize(relax.op.astype(operand, "float32")) for operand in call.args]
        return relax.op.astype(self._rewrite(self.builder_.normalize(Call(call.op, wide, call.attrs))), dtype)

    def _rewrite(self, call: Call) -> Any:
        name = getattr(call.op, "name", "")
        rewrite = _REWRITES.get(name)
        if name in self.polynomials and get_dtype_name(call) == "float32":
            rewrite = self.polynomials[name]
        return call if rewrite is None else rewrite(call, self.builder_)


def _take(call: Call, builder: BlockBuilder) -> Any:
    data, indices = call.args
    return relax.op.take(data, indices, axis=call.attrs.axis, mode="clip")


def _gather_elements(call: Call, builder: BlockBuilder) -> Any:
    data, indices = call.args
    axis = int(call.attrs.axis)
    return relax.op.gather_elements(data, _clamp_indices(indices, _get_shape(data)[axis]), axis)


def _gather_nd(call: Call, builder: BlockBuilder) -> Any:
    data, indices = call.args
    batch = int(call.attrs.batch_dims)
    return relax.op.gather_nd(data, _clamp_indices(indices, _list_indexed_extents(data, indices, batch)), batch)


def _scatter_elements(call: Call, builder: BlockBuilder) -> Any:
    data, indices, updates = call.args
    axis = int(call.attrs.axis)
    clamped = _clamp_indices(indices, _get_shape(data)[axis], from_end=True)
    return relax.op.scatter_elements(data, clamped, updates, axis, call.attrs.reduction)


def _scatter_nd(call: Call, builder: BlockBuilder) -> Any:
    data, indices, updates = call.args
    return relax.op.scatter_nd(
        data, _clamp_indices(indices, _list_indexed_extents(data, indices, 0)), updates, call.attrs.reduction
    )


def _where(call: Call, builder: BlockBuilder) -> Any:
    """Replace ``where(a > b, a, b)`` by ``maximum(a, b)``, and ``where(a < b, a, b)`` by ``minimum(a, b)``."""
    condition, *branches = call.args
    comparison = builder.lookup_binding(condition) if isinstance(condition, relax.Var) else None
    if not isinstance(comparison, Call):
        return call
    # The branches must be the compared operands, in the same order.
    if not all(_is_same(operand, branch) for operand, branch in zip(comparison.args, branches, strict=False)):
        return call
    operators = {"relax.greater": relax.op.maximum, "relax.less": relax.op.minimum}
    select = operators.get(getattr(comparison.op, "name", ""))
    return call if select is None else select(*branches)


def _is_same(a: Any, b: Any) -> bool:
    """Whether two expressions are the same variable, or equal constants."""
    return bool(a.same_as(b) or (isinstance(a, GenericConst) and structural_equal(a, b)))


_REWRITES: Mapping[str, Rewrite] = {
    "relax.take": _take,
    "relax.gather_elements": _gather_elements,
    "relax.gather_nd": _gather_nd,
    "relax.scatter_elements": _scatter_elements,
    "relax.scatter_nd": _scatter_nd,
    "relax.where": _where,
}
_ACCUMULATED_IN_FLOAT32 = {
    *("relax.matmul", "relax.sum", "relax.mean", "relax.prod", "relax.exp", "relax.tanh", "relax.erf", "relax.sigmoid"),
    *("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d", "relax.nn.softmax", "relax.nn.gelu", "relax.nn.silu"),
}
"""Operators on float16 and bfloat16 that are computed in float32, and whose result is cast back."""


def _get_shape(tensor: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in tensor.ty.shape)


def _list_indexed_extents(data: Any, indices: Any, batch: int) -> tuple[int, ...]:
    """List the extents of the data axes that the coordinates of GatherND and ScatterND index, after ``batch`` batch axes.

    The last axis of ``indices`` has one coordinate per indexed axis.
    """
    return _get_shape(data)[batch : batch + _get_shape(indices)[-1]]


def _clamp_indices(indices: Any, extents: int | tuple[int, ...], *, from_end: bool = False) -> Any:
    """Clamp indices to an axis of extent ``extents``, or coordinates to axes of these extents.

    With ``from_end`` negative indices down to -extent are valid. Without it the importer has already made them positive.
    """
    dtype = get_dtype_name(indices)
    extent = np.asarray(extents, dtype)
    lowest = relax.const(-extent if from_end else np.zeros_like(extent), dtype)
    return relax.op.minimum(relax.op.maximum(indices, lowest), relax.const(extent - 1, dtype))
