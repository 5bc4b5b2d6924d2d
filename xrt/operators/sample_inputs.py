"""Seeded random inputs for a Function."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from xrt.errors import InputError
from xrt.graph import DType, FrozenDict, Function, MapType, OptionalType, SequenceType, TensorType, Type, Value
from xrt.operators.traits import Trait, has_trait

Array: TypeAlias = np.ndarray[Any, Any]
# Bytes per random number: NumPy generates 8-byte numbers, which are then cast to the input's type.
DRAWN_BYTES = 8
_SEQUENCE_LENGTH = 2


def sample_inputs(function: Function, seed: int = 0, sizes: Mapping[str, int] = FrozenDict()) -> dict[str, Any]:
    """Generate a random value for each input, keyed by name; deterministic for a given seed and Function.

    Floating-point tensors are standard normal. Integers that index a constant table cover all its rows, and uint8 values cover
    the full range, like images; other integers are 0 or 1, which are also valid indices. Optionals are always present.
    ``sizes`` sets symbolic extents by name; other unknown extents are 1. Raises InputError for an input of unknown rank or type,
    and for one that does not fit in memory.
    """
    generator, rows = np.random.default_rng(seed), _count_table_rows(function)
    return {value.name: _sample(value, value.type, sizes, generator, rows.get(value.name)) for value in function.inputs}


def _count_table_rows(function: Function) -> dict[str, int]:
    """Map each value that indexes a constant table to the smallest extent of these tables."""
    limits: dict[str, int] = {}
    # Readers first: an operator that forwards indices inherits the limit of its outputs.
    for node in reversed(function.nodes):
        if node.op_type == "Gather" and node.inputs[0] in function.constants:
            extent = function.constants[node.inputs[0]].shape[node.attr("axis", 0)]
            limits[node.inputs[1]] = min(extent, limits.get(node.inputs[1], extent))
        elif has_trait(node, Trait.SELECTS) or node.op == "Cast":
            if extents := [limits[name] for name in node.outputs if name in limits]:
                limits[node.inputs[0]] = min(*extents, limits.get(node.inputs[0], extents[0]))
    return limits


def _sample(value: Value, type_: Type | None, sizes: Mapping[str, int], generator: np.random.Generator, rows: int | None) -> Any:
    if isinstance(type_, OptionalType):
        return _sample(value, type_.element, sizes, generator, rows)
    if isinstance(type_, SequenceType):
        return [_sample(value, type_.element, sizes, generator, rows) for _ in range(_SEQUENCE_LENGTH)]
    if isinstance(type_, TensorType) and type_.shape is not None:
        return _make_array(value, type_.with_shape(tuple(_choose_extent(dim, sizes) for dim in type_.shape)), generator, rows)
    kind = "a map" if isinstance(type_, MapType) else "of unknown type" if type_ is None else "of unknown rank"
    raise InputError(f"input {value} is {kind}, so no random value can be made for it; give one")


def _make_array(value: Value, type_: TensorType, generator: np.random.Generator, rows: int | None) -> Array:
    """Generate a random array; raises InputError before allocating if it cannot fit in memory."""
    shape = tuple(dim for dim in type_.shape or () if isinstance(dim, int))
    needed = math.prod(shape) * DRAWN_BYTES
    if needed > _memory():
        raise InputError(
            f"input {value.name!r} is {type_}, and random values for it take {needed} bytes, more than there is memory"
        )
    try:
        return _make_tensor(type_.dtype, shape, generator, rows)
    except (MemoryError, OverflowError) as error:
        raise InputError(f"input {value.name!r} is {type_}, and there is no memory for random values of it: {error}") from error


def _memory() -> int:
    """Physical memory in bytes; unlimited if the platform does not report it."""
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _choose_extent(dim: int | str | None, sizes: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    return sizes.get(dim, 1) if dim is not None else 1


def _make_tensor(dtype: DType, shape: tuple[int, ...], generator: np.random.Generator, rows: int | None) -> Array:
    if dtype is DType.STRING:
        return np.array([f"text {n}" for n in generator.integers(0, 10, shape).flat], dtype=object).reshape(shape)
    return np.asarray(_draw_numbers(dtype, shape, generator, rows)).astype(dtype.numpy)


def _draw_numbers(dtype: DType, shape: tuple[int, ...], generator: np.random.Generator, rows: int | None) -> Any:
    if dtype.is_integer or dtype is DType.BOOL:
        return generator.integers(0, rows or (256 if dtype is DType.UINT8 else 2), shape)
    if dtype is DType.FLOAT8E8M0:  # the type has only positive powers of two
        return np.exp2(generator.integers(-2, 3, shape))
    if dtype.numpy.kind == "c":
        return generator.standard_normal(shape) + 1j * generator.standard_normal(shape)
    return generator.standard_normal(shape)
