"""Seeded random inputs for a Function."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from xrt.errors import InputError
from xrt.graph import DType, FrozenDict, Function, MapType, OptionalType, SequenceType, TensorType, Type, Value
from xrt.operators.traits import Trait, has_trait

Array: TypeAlias = np.ndarray[Any, Any]
Categories: TypeAlias = Mapping[int | None, Sequence[str]]
"""Column of the last axis to the strings that a model has categories for. The key None is for all columns without an entry."""
Domain: TypeAlias = int | Categories | None
"""How to choose values: an int n for indices below n, Categories for strings, or None if the model does not restrict them."""
_CATEGORY_ATTRIBUTES = ("cats_strings", "keys_strings", "classes_strings")
"""Attributes with the input strings of ai.onnx.ml's OneHotEncoder, CategoryMapper and LabelEncoder."""
# NumPy generates 8-byte numbers, which are then cast to the input's type.
BYTES_PER_RANDOM_NUMBER = 8
_DEFAULT_STRINGS = [f"text {n}" for n in range(10)]


def sample_inputs(function: Function, seed: int = 0, sizes: Mapping[str, int] = FrozenDict()) -> dict[str, Any]:
    """Generate a random value for each input, keyed by name; deterministic for a given seed and Function.

    Floating-point tensors are standard normal. Integers that index a constant table cover all its rows, and uint8 values cover
    the full range, like images; other integers are 0 or 1, which are also valid indices. Strings are categories of the encoder
    that reads them (as in scikit-learn models), otherwise ``text 0`` to ``text 9``. Optionals are always present.
    ``sizes`` sets symbolic extents by name; other unknown extents are 1. Raises InputError for an input of unknown rank or type,
    and for one that does not fit in memory.
    """
    generator = np.random.default_rng(seed)
    domains: dict[str, Domain] = {**_count_table_rows(function), **_find_categories(function)}
    return {value.name: _sample(value, value.type, sizes, generator, domains.get(value.name)) for value in function.inputs}


def _count_table_rows(function: Function) -> dict[str, int]:
    """Map each value that indexes a constant table to the smallest extent of these tables."""
    limits: dict[str, int] = {}
    # In reverse, so the readers of a value come first: an operator that forwards indices inherits the limit of its outputs.
    for node in reversed(function.nodes):
        if node.op_type == "Gather" and node.inputs[0] in function.constants:
            extent = function.constants[node.inputs[0]].shape[node.attr("axis", 0)]
            limits[node.inputs[1]] = min(extent, limits.get(node.inputs[1], extent))
        elif has_trait(node, Trait.SELECTS) or node.op == "Cast":
            if extents := [limits[name] for name in node.outputs if name in limits]:
                limits[node.inputs[0]] = min(*extents, limits.get(node.inputs[0], extents[0]))
    return limits


def _find_categories(function: Function) -> dict[str, Categories]:
    """Map each value that an encoder of strings reads, directly or through other operators, to the encoder's categories."""
    categories: dict[str, Categories] = {}
    # In reverse: readers first. An ArrayFeatureExtractor selects columns, each of which may have a different encoder.
    for node in reversed(function.nodes):
        inherited = next((categories[name] for name in node.outputs if name in categories), None)
        strings = next(filter(None, map(node.attr, _CATEGORY_ATTRIBUTES)), None)
        if strings is not None:
            categories[node.inputs[0]] = {None: strings}
        elif inherited is not None and has_trait(node, Trait.SELECTS):
            categories[node.inputs[0]] = inherited
        elif inherited is not None and node.op_type == "ArrayFeatureExtractor" and node.inputs[1] in function.constants:
            columns = enumerate(function.constants[node.inputs[1]].array.flat)
            by_column: Categories = {int(column): inherited.get(index, inherited.get(None, ())) for index, column in columns}
            categories[node.inputs[0]] = {**categories.get(node.inputs[0], {}), **by_column}
    return categories


def _sample(value: Value, type_: Type | None, sizes: Mapping[str, int], generator: np.random.Generator, domain: Domain) -> Any:
    """Draw a random value. ``sizes`` maps symbolic dims to extents; other unknown extents are 1, and sequences have two items."""
    if isinstance(type_, OptionalType):
        return _sample(value, type_.element, sizes, generator, domain)
    if isinstance(type_, SequenceType):
        return [_sample(value, type_.element, sizes, generator, domain) for _ in range(2)]
    if isinstance(type_, TensorType) and type_.shape is not None:
        shape = tuple(dim if isinstance(dim, int) else sizes.get(dim or "", 1) for dim in type_.shape)
        return _make_array(value, type_.with_shape(shape), generator, domain)
    kind = "of unknown type" if type_ is None else "of unknown rank"
    if isinstance(type_, MapType):
        kind = "a map"
    raise InputError(f"input {value} is {kind}, so no random value can be made for it; give one")


def _make_array(value: Value, type_: TensorType, generator: np.random.Generator, domain: Domain) -> Array:
    """Generate a random array; raises InputError if it does not fit in memory, where possible before allocating it."""
    shape = tuple(dim for dim in type_.shape or () if isinstance(dim, int))
    needed = math.prod(shape) * BYTES_PER_RANDOM_NUMBER
    if needed > _read_memory_size():
        raise InputError(
            f"input {value.name!r} is {type_}, and random values for it take {needed} bytes, more than there is memory"
        )
    try:
        if type_.dtype is DType.STRING:
            return _draw_strings(shape, generator, domain if isinstance(domain, Mapping) else {})
        numbers = _draw_numbers(type_.dtype, shape, generator, domain if isinstance(domain, int) else None)
        return np.asarray(numbers).astype(type_.dtype.numpy)
    except (MemoryError, OverflowError) as error:
        raise InputError(f"input {value.name!r} is {type_}, and there is no memory for random values of it: {error}") from error


def _read_memory_size() -> int:
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _draw_strings(shape: tuple[int, ...], generator: np.random.Generator, categories: Categories) -> Array:
    strings = np.empty(shape, object)
    for index in np.ndindex(shape):
        column = index[-1] if index else None
        choices = categories.get(column) or categories.get(None) or _DEFAULT_STRINGS
        strings[index] = choices[int(generator.integers(len(choices)))]
    return strings


def _draw_numbers(dtype: DType, shape: tuple[int, ...], generator: np.random.Generator, rows: int | None) -> Any:
    """With ``rows`` of a table, draw indices of it; else 0 to 255 for uint8, 0 or 1 for other integers, and normal floats."""
    if dtype.is_integer or dtype is DType.BOOL:
        default_limit = 256 if dtype is DType.UINT8 else 2
        return generator.integers(0, rows or default_limit, shape)
    if dtype is DType.FLOAT8E8M0:  # the type has only positive powers of two
        return np.exp2(generator.integers(-2, 3, shape))
    if dtype.numpy.kind == "c":
        return generator.standard_normal(shape) + 1j * generator.standard_normal(shape)
    return generator.standard_normal(shape)
