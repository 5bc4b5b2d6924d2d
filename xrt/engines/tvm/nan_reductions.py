"""Maxima and minima that keep NaN and infinities, where TVM's lose them.

Of two numbers TVM takes the second if one is NaN, and its folds begin with a finite number. So of a constant and a tensor the
tensor comes second, at no cost. A fold checks each number itself: whether it is NaN does not depend on what was folded before, so
that the next step waits for one maximum and one choice only.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeAlias

import numpy as np
import tvm
from tvm import relax, te, tirx, topi
from tvm.ir import Call, GenericConst
from tvm.relax import BlockBuilder
from tvm_ffi import convert, structural_equal

from xrt.engines.tvm.polynomials import infer_scalar_dtype
from xrt.graph import DType

__all__ = ["EXTREMES"]


# ---------------------------------------------------------------------- of one number


def _relu(x: te.Tensor) -> te.Tensor:
    return _each("relu", x, lambda value: tirx.max(tirx.const(0, x.dtype), value))


def _clip(x: te.Tensor, low: float, high: float) -> te.Tensor:
    ends = tirx.const(low, x.dtype), tirx.const(high, x.dtype)
    return _each("clip", x, lambda value: tirx.min(ends[1], tirx.max(ends[0], value)))


def _sign(x: te.Tensor) -> te.Tensor:
    zero, one, minus = (tirx.const(k, x.dtype) for k in (0, 1, -1))
    return _each("sign", x, lambda value: tirx.Select(value > zero, one, tirx.Select(value < zero, minus, value)))


def _each(name: str, x: te.Tensor, expression: Callable[[Any], Any]) -> te.Tensor:
    return te.compute(x.shape, lambda *place: expression(x(*place)), name=name, tag=topi.tag.ELEMWISE)


# ---------------------------------------------------------------------- of many


def _is_nan(value: Any) -> Any:
    """Return whether a number is NaN; TVM can tell that of bfloat16 as float32 only."""
    return tirx.isnan(value.astype("float32") if str(value.ty.dtype).endswith("bfloat16") else value)


_FOLDS: Mapping[str, tuple[Callable[[Any, Any], Any], float]] = {
    "max": (lambda sofar, value: tirx.Select(_is_nan(value), value, tirx.max(value, sofar)), -math.inf),
    "min": (lambda sofar, value: tirx.Select(_is_nan(value), value, tirx.min(value, sofar)), math.inf),
}
"""The step, and where it begins: every number wins against it, itself included."""


def _folded(name: str, value: Any, axis: Sequence[Any]) -> Any:
    step, start = _FOLDS[name]
    return te.comm_reducer(step, lambda dtype: tirx.const(start, dtype), name=name)(value, axis=axis)


def _extreme(x: te.Tensor, name: str, axes: Sequence[int], keepdims: bool) -> te.Tensor:
    """Return the extreme over some axes."""
    every = range(len(x.shape))
    folds = {axis: te.reduce_axis((0, x.shape[axis]), f"k{axis}") for axis in axes}
    kept = [axis for axis in every if keepdims or axis not in folds]

    def element(*place: Any) -> Any:
        at = dict(zip(kept, place, strict=True)) | folds
        return _folded(name, x(*(at[axis] for axis in every)), list(folds.values()))

    return te.compute([1 if axis in folds else x.shape[axis] for axis in kept], element, name=name, tag=topi.tag.COMM_REDUCE)


def _max_pool(x: te.Tensor, shape: Sequence[int], window: _Window) -> te.Tensor:
    """Return the largest of each window; behind the padding, where a rounded size may reach, there is more of it.

    Where windows share numbers, each is looked at once: it becomes an integer of the same order, above all of which is NaN.
    """
    dtype = _name(x)
    if not window.share or dtype not in _INTEGERS:
        return _windows(x, tirx.const(-math.inf, dtype), shape, window, partial(_folded, "max"))
    return _numbers(_windows(_ordered(x), _place_of_least(dtype), shape, window, tirx.max), dtype)


def _windows(x: te.Tensor, least: Any, shape: Sequence[int], window: _Window, fold: Callable[..., Any]) -> te.Tensor:
    lead, padded = len(x.shape) - len(window.sizes), _padded(x, least, shape, window)
    folds = [te.reduce_axis((0, size), f"k{axis}") for axis, size in enumerate(window.sizes)]

    def element(*place: Any) -> Any:
        steps = zip(place[lead:], window.strides, folds, window.dilations, strict=True)
        inner = [at * stride + k * dilation for at, stride, k, dilation in steps]
        return fold(padded(*place[:lead], *inner), axis=folds)

    return te.compute(shape, element, name="pool_max", tag="pool_max")


def _padded(x: te.Tensor, least: Any, shape: Sequence[int], window: _Window) -> te.Tensor:
    """Return the tensor with as much of the least around it as the windows reach."""
    lead = len(x.shape) - len(window.sizes)
    behind = [max(end - int(n), 0) for n, end in zip(x.shape[lead:], window.ends(shape[lead:]), strict=True)]
    if not any(window.before) and not any(behind):
        return x
    return topi.nn.pad(x, [0] * lead + list(window.before), [0] * lead + behind, least, name="pad_temp")


def _ordered(x: te.Tensor) -> te.Tensor:
    """Return integers in the order of the numbers, NaN above all: of those below zero, all bits but the sign are turned."""
    dtype = _INTEGERS[_name(x)]
    highest = tirx.max_value(dtype)

    def order(value: Any) -> Any:
        bits = tirx.reinterpret(dtype, value)
        return tirx.Select(tirx.isnan(value), highest, tirx.Select(bits < 0, bits ^ highest, bits))

    return _each("ordered", x, order)


def _place_of_least(dtype: str) -> Any:
    """Return what `_ordered` makes of minus infinity: nothing is below it."""
    bits = np.array(-math.inf, DType.parse(dtype).numpy).view(_INTEGERS[dtype])
    return tirx.const(int(bits ^ np.iinfo(bits.dtype).max), _INTEGERS[dtype])


def _numbers(x: te.Tensor, dtype: str) -> te.Tensor:
    """Return what `_ordered` was made of."""
    highest = tirx.max_value(_name(x))
    return _each("numbers", x, lambda key: tirx.reinterpret(dtype, tirx.Select(key < 0, key ^ highest, key)))


def _name(x: te.Tensor) -> str:
    """Return the element type by TVM's name."""
    return str(x.dtype).removeprefix("T.")


_INTEGERS = {"float16": "int16", "float32": "int32", "float64": "int64"}


@dataclass(frozen=True, slots=True)
class _Window:
    """How a pool goes over the spatial axes."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    """Padding at the front."""

    @classmethod
    def of(cls, attrs: Any) -> Self:
        sizes, strides, dilations, padding = (
            tuple(map(int, getattr(attrs, name))) for name in ("pool_size", "strides", "dilation", "padding")
        )
        return cls(sizes, strides, dilations, padding[: len(sizes)])

    @property
    def share(self) -> bool:
        """Whether a number may be in several windows."""
        return any(size > stride for size, stride in zip(self.sizes, self.strides, strict=True))

    def ends(self, counts: Sequence[int]) -> list[int]:
        """Return, per axis, how far so many windows reach, counted from the data's beginning."""
        axes = zip(counts, self.strides, self.dilations, self.sizes, self.before, strict=True)
        return [(count - 1) * stride + dilation * (size - 1) + 1 - before for count, stride, dilation, size, before in axes]


def _register() -> None:
    """Let TVM's schedules know these folds as folds, which may be done in parts; it tells them by their form.

    What TVM is given it holds until after the interpreter has gone, and must not give back then: it is never given back.
    """
    register = tvm.get_global_func("s_tir.schedule.RegisterReducer")
    for step, start in _FOLDS.values():
        form = convert(lambda sofar, values, step=step: [step(sofar[0], values[0])])
        begin = convert(lambda values, start=start: [tirx.const(start, values[0].ty.dtype)])
        for held in (form, begin):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
        register(1, form, begin)


_register()


# ---------------------------------------------------------------------- rewrites

Rewrite: TypeAlias = Callable[[Call, BlockBuilder], Any]


def _of_floats(rewrite: Rewrite) -> Rewrite:
    return lambda call, builder: rewrite(call, builder) if "float" in infer_scalar_dtype(call) else call


def _clipped(call: Call, builder: BlockBuilder) -> Any:
    x, low, high = call.args
    return builder.call_te(_clip, x, float(low.value), float(high.value), primfunc_name_hint="clip")


def _reduced(name: str) -> Rewrite:
    def rewrite(call: Call, builder: BlockBuilder) -> Any:
        (x,) = call.args
        rank = len(x.ty.shape)
        axes = range(rank) if call.attrs.axis is None else sorted({int(axis) % rank for axis in call.attrs.axis})
        if not axes:
            return call
        return builder.call_te(_extreme, x, name, list(axes), bool(call.attrs.keepdims), primfunc_name_hint=name)

    return rewrite


def _pooled(call: Call, builder: BlockBuilder) -> Any:
    shape = [int(extent) for extent in call.ty.shape]
    return builder.call_te(
        partial(_max_pool, shape=shape, window=_Window.of(call.attrs)), call.args[0], primfunc_name_hint="max_pool"
    )


def _chosen(call: Call, builder: BlockBuilder) -> Any:
    """Choose the larger or the smaller of two by one instruction, which of NaN does as the comparison: it takes the second."""
    condition, *branches = call.args
    compared = builder.lookup_binding(condition) if isinstance(condition, relax.Var) else None
    if not isinstance(compared, Call) or not all(map(_is_same, compared.args, branches)):
        return call
    extreme = _CHOICES.get(getattr(compared.op, "name", ""))
    return call if extreme is None else extreme(*branches)


def _is_same(a: Any, b: Any) -> bool:
    return bool(a.same_as(b) or (isinstance(a, GenericConst) and structural_equal(a, b)))


_CHOICES = {"relax.greater": relax.op.maximum, "relax.less": relax.op.minimum}

_ON_FLOATS: Mapping[str, Rewrite] = {
    name: _of_floats(rewrite)
    for name, rewrite in {
        "relax.nn.relu": lambda call, builder: builder.call_te(_relu, call.args[0], primfunc_name_hint="relu"),
        "relax.sign": lambda call, builder: builder.call_te(_sign, call.args[0], primfunc_name_hint="sign"),
        "relax.clip": _clipped,
        "relax.max": _reduced("max"),
        "relax.min": _reduced("min"),
        **dict.fromkeys((f"relax.nn.max_pool{n}d" for n in (1, 2, 3)), _pooled),
    }.items()
}

EXTREMES: Mapping[str, Rewrite] = {**_ON_FLOATS, "relax.where": _chosen}
"""How each operator is rewritten, by its name in Relax."""
