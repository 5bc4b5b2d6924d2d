"""Bind the named extents of a Function to numbers."""

from __future__ import annotations

from collections.abc import Mapping

from xrt.errors import InputError, did_you_mean
from xrt.graph import Dim, Function, TensorType, Value
from xrt.graph.types import LARGEST_EXTENT
from xrt.passes.shape_inference import infer_shapes
from xrt.passes.symbolic_dims import map_dims, map_types

__all__ = ["bind_dims", "specialize"]


def specialize(function: Function, shapes: Mapping[str, tuple[int, ...]]) -> Function:
    """Return the Function for inputs of exactly these shapes, all other types inferred again.

    A named extent takes its number wherever it occurs, so inputs that are not given get theirs through shared names. Extents that
    are still unknown stay so. Raises InputError for an input that is not there or is no tensor, a shape that does not fit the
    declared one, and two numbers for one name.
    """
    inputs = {value.name: value for value in function.inputs}
    bound: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            raise InputError(f"function {function.name!r} has no input {name!r}.{did_you_mean(name, inputs)}")
        _bind(inputs[name], shape, bound)
        inputs[name] = _with_shape(inputs[name], shape)
    return infer_shapes(_substituted(function.replace(inputs=tuple(inputs.values())), bound))


def bind_dims(function: Function, sizes: Mapping[str, int]) -> Function:
    """Return the Function with those named extents as numbers wherever they occur, all other types inferred again.

    Raises InputError for a number that no extent can be.
    """
    for name, size in sizes.items():
        if not 0 <= size <= LARGEST_EXTENT:
            raise InputError(f"dimension {name!r} cannot be {size}: an extent is at least 0 and at most {LARGEST_EXTENT}")
    return infer_shapes(_substituted(function, sizes))


def _bind(value: Value, shape: tuple[int, ...], bound: dict[str, int]) -> None:
    """Add the numbers that the shape gives to the input's named extents."""
    type_ = value.type
    if type_ is not None and not isinstance(type_, TensorType):
        raise InputError(f"input {value.name!r} is {type_}, which has no shape; the shape {list(shape)} was given for it")
    if type_ is None or type_.shape is None:
        return
    if len(shape) != len(type_.shape):
        raise InputError(f"input {value.name!r} is {type_}; a shape of rank {len(shape)}, {list(shape)}, was given for it")
    for axis, (dim, size) in enumerate(zip(type_.shape, shape, strict=True)):
        fixed = bound.setdefault(dim, size) if isinstance(dim, str) else dim
        if fixed is not None and fixed != size:
            raise InputError(
                f"input {value.name!r} is {type_}; axis {axis} was given as {size}, but must be {_wanted(dim, fixed)}"
            )


def _wanted(dim: Dim, fixed: int) -> str:
    return f"{fixed}, as {dim!r} is elsewhere" if isinstance(dim, str) else str(fixed)


def _with_shape(value: Value, shape: tuple[int, ...]) -> Value:
    return Value(value.name, value.type.with_shape(shape)) if isinstance(value.type, TensorType) else value


def _substituted(function: Function, bound: Mapping[str, int]) -> Function:
    if not bound:
        return function
    return map_types(function, lambda type_: map_dims(type_, lambda dim: bound.get(dim, dim) if isinstance(dim, str) else dim))
