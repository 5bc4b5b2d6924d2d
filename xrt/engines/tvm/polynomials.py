"""Exponentials as polynomials, which vectorise.

TVM calls the C library for each element, though it also has polynomials that are right to some 3 units in the last place.
(Its own tanh, by exponentials, subtracts what is nearly equal: of small numbers few digits are right.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax, topi
from tvm.ir import Call
from tvm.relax import BlockBuilder

__all__ = ["POLYNOMIALS", "infer_scalar_dtype", "scalar"]


def infer_scalar_dtype(tensor: Any) -> str:
    """Return the element type by TVM's name."""
    return str(tensor.ty.dtype)


def scalar(value: float, like: Any) -> Any:
    """Return a constant of another tensor's element type."""
    return relax.const(value, infer_scalar_dtype(like))


def _exp(call: Call, builder: BlockBuilder) -> Any:
    """Square the polynomial at x / 2: at x it overflows a little too early."""
    if infer_scalar_dtype(call) != "float32":
        return call
    root = builder.emit(_fast_exp(relax.op.multiply(call.args[0], scalar(0.5, call)), builder))
    return relax.op.multiply(root, root)


def _tanh(call: Call, builder: BlockBuilder) -> Any:
    return builder.call_te(topi.fast_tanh, call.args[0]) if infer_scalar_dtype(call) == "float32" else call


def _erf(call: Call, builder: BlockBuilder) -> Any:
    (x,) = call.args
    if infer_scalar_dtype(x) != "float32":
        return call
    return relax.op.where(relax.op.isnan(x), x, builder.call_te(topi.fast_erf, x))


def _sigmoid(call: Call, builder: BlockBuilder) -> Any:
    if infer_scalar_dtype(call) != "float32":
        return call
    one = scalar(1, call)
    return relax.op.divide(one, relax.op.add(one, _fast_exp(relax.op.negative(call.args[0]), builder)))


def _silu(call: Call, builder: BlockBuilder) -> Any:
    (x,) = call.args
    return relax.op.multiply(x, _sigmoid(call, builder)) if infer_scalar_dtype(x) == "float32" else call


def _gelu(call: Call, builder: BlockBuilder) -> Any:
    (x,) = call.args
    if infer_scalar_dtype(x) != "float32":
        return call
    erf = builder.call_te(topi.fast_erf, builder.normalize(relax.op.multiply(x, scalar(0.5**0.5, x))))
    return relax.op.multiply(relax.op.multiply(x, scalar(0.5, x)), relax.op.add(erf, scalar(1, x)))


def _softmax(call: Call, builder: BlockBuilder) -> Any:
    return (
        builder.call_te(topi.nn.fast_softmax, call.args[0], int(call.attrs.axis))
        if infer_scalar_dtype(call) == "float32"
        else call
    )


def _fast_exp(x: Any, builder: BlockBuilder) -> Any:
    return builder.call_te(topi.fast_exp, builder.normalize(x))


POLYNOMIALS: Mapping[str, Callable[[Call, BlockBuilder], Any]] = {
    "relax.exp": _exp,
    "relax.tanh": _tanh,
    "relax.erf": _erf,
    "relax.sigmoid": _sigmoid,
    "relax.nn.silu": _silu,
    "relax.nn.gelu": _gelu,
    "relax.nn.softmax": _softmax,
}
"""How each operator on float32 is rewritten, by its name in Relax."""
