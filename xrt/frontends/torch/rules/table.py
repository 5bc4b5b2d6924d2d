"""The table of lowering rules, and what rules need: element types, shapes and axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import torch

from xrt.builder.record_op import emit, get_builder
from xrt.frontends.torch.dtypes import from_torch_dtype, to_torch_dtype
from xrt.frontends.torch.symbols import SymbolicNumber
from xrt.graph import DType

if TYPE_CHECKING:
    from xrt.builder import Tensor


Rule: TypeAlias = Callable[..., Any]
"""Emits the nodes of a call and returns its results. Called with the result type, or a tuple of types, and the arguments."""

RULES: dict[str, Rule] = {}
"""Rules by the qualified name of an overload, such as ``aten.add.Tensor``."""


class Unsupported(Exception):
    """Raised by a rule for a call without ONNX form; the message is the reason. The call becomes an opaque node."""


_Function = TypeVar("_Function", bound=Callable[..., Any])


def rule(*names: str) -> Callable[[_Function], _Function]:
    """Decorator: register a function as the rule of the named ``aten`` overloads, such as ``add.Tensor``."""

    def register(function: _Function) -> _Function:
        for name in names:
            # PyTorch names an overload without a name "default".
            overload = f"aten.{name}" if "." in name else f"aten.{name}.default"
            if overload in RULES:
                raise ValueError(f"two rules are registered for {overload}")
            RULES[overload] = function
        return function

    return register


def rule_by_name(*names: str) -> Callable[[_Function], _Function]:
    """Decorator: register a rule that is called with the result type and one object with all arguments by name."""

    def register(function: _Function) -> _Function:
        for name in names:
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
            rule(name)(partial(_call_by_name, function, operator))
        return function

    return register


def _call_by_name(function: Callable[..., Any], operator: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
    return function(result, bind_arguments(operator, args, kwargs))


def bind_arguments(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return an object whose attributes are the arguments of a call, with the names and defaults of PyTorch's schema."""
    schema = operator._schema.arguments
    arguments = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    arguments.update(zip((argument.name for argument in schema), args, strict=False))
    return SimpleNamespace(**{**arguments, **kwargs})


def cast(x: Any, dtype: DType) -> Tensor:
    if isinstance(x, SymbolicNumber):
        x = x.scalar
    if isinstance(x, bool | int | float):
        return scalar(x, dtype)
    return x if x.dtype is dtype else emit("Cast", x, to=dtype)


def constant(value: Any, dtype: DType) -> Tensor:
    return get_builder("a constant").constant(np.asarray(value).astype(dtype.numpy))


def scalar(value: Any, dtype: DType) -> Tensor:
    """Add a 0-d constant. For integer types floats are truncated, as in PyTorch."""
    if dtype.is_integer and isinstance(value, float) and not math.isfinite(value):
        raise Unsupported(f"{value} is no {dtype}")
    # Negative numbers wrap around in unsigned types, as in PyTorch.
    if dtype.is_integer and dtype.numpy.kind == "u" and value < 0:
        value = int(value) % (1 << dtype.bits)
    return constant(value, dtype)


def ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def as_tensor(x: Any) -> Tensor:
    """Convert a Python number to a 0-d tensor of the type that PyTorch uses for it; return tensors unchanged."""
    if isinstance(x, bool):
        return scalar(x, DType.BOOL)
    if isinstance(x, int):
        return scalar(x, DType.INT64)
    if isinstance(x, float):
        return scalar(x, from_torch_dtype(torch.get_default_dtype()))
    return x.scalar if isinstance(x, SymbolicNumber) else x


def reshape(x: Tensor, *sizes: int) -> Tensor:
    """Reshape; 0 copies the size of the same axis, -1 is inferred."""
    shape = x.tensor_type.shape
    if shape is None or 0 not in shape:
        return emit("Reshape", x, ints(*sizes))
    # ONNX cannot infer -1 for a tensor without elements, so all sizes are computed here.
    extents = [size for size in shape if isinstance(size, int)]
    if len(extents) < len(shape):
        raise Unsupported("a shape with an extent of zero and symbolic ones")
    # The axes that are not copied hold the elements of the new sizes that are not 0.
    merged_count = math.prod(extent for axis, extent in enumerate(extents) if axis >= len(sizes) or sizes[axis] != 0)
    inferred = merged_count // math.prod(size for size in sizes if size > 0)
    new_sizes = [extents[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return reshape_exactly(x, [inferred if size < 0 else size for size in new_sizes])


def reshape_exactly(x: Tensor, sizes: Sequence[int]) -> Tensor:
    return emit("Reshape", x, ints(*sizes), allowzero=1) if 0 in sizes else emit("Reshape", x, ints(*sizes))


def promote_types(a: Any, b: Any) -> DType:
    """Find the element type to which PyTorch promotes two operands, tensors or numbers."""
    return from_torch_dtype(torch.result_type(_make_proxy(a), _make_proxy(b)))


def _make_proxy(value: Any) -> Any:
    """Make a number or a meta tensor that PyTorch promotes like this value: by its type, and whether it has axes."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, SymbolicNumber):
        return 1 if value.expression.is_integer else 1.0
    return torch.empty(() if value.shape == () else (1,), dtype=to_torch_dtype(value.dtype), device="meta")


def normalize_axis(x: Tensor, axis: int) -> int:
    """Make an axis non-negative. 0-d tensors accept axes 0 and -1, as in PyTorch."""
    return axis % max(x.ndim, 1)


def normalize_axes(x: Tensor, axes: Any) -> list[int]:
    """Make axes non-negative; None and [] mean all axes."""
    if axes is None or axes == []:
        return list(range(x.ndim))
    return [normalize_axis(x, axis) for axis in (axes if isinstance(axes, list | tuple) else [axes])]


def get_static_size(x: Tensor, axis: int) -> int:
    """Get the size of an axis; raises Unsupported if it is symbolic."""
    size = x.shape[axis]
    if not isinstance(size, int):
        raise Unsupported("a kernel of symbolic size")
    return size


def repeat_per_axis(value: Any, count: int) -> list[int]:
    """Expand a number or a one-element list to ``count`` numbers, one per spatial axis."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    return values * count if len(values) == 1 else values


def add_batch(x: Tensor, count: int) -> tuple[Tensor, bool]:
    """Add a batch axis if ``x`` only has a channel axis and ``count`` spatial axes; also return whether an axis was added."""
    is_single = x.ndim == count + 1
    return (emit("Unsqueeze", x, ints(0)) if is_single else x), is_single


def drop_batch(y: Tensor, is_single: bool) -> Tensor:
    return emit("Squeeze", y, ints(0)) if is_single else y
