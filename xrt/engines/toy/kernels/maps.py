"""Maps, which are dictionaries of Python's own numbers and texts, to tensors and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toy.kernels.scores import ML
from xrt.engines.toy.table import CPU, Array, Run, ops
from xrt.graph import MapType, Node, SequenceType, TensorType, Type

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext

__all__: list[str] = []


@ops("ZipMap", domain=ML, devices=CPU)
def zip_map(node: Node, env: KernelContext) -> Run:
    """Return one map for each row, with the node's labels as keys. A tensor of rank 1 is one row."""
    keys = _labels(node, "classlabels_int64s", "classlabels_strings")

    def run(x: Array) -> list[dict[int | str, float]]:
        rows = x[None] if x.ndim == 1 else x
        if rows.ndim != 2 or rows.shape[1] != len(keys):
            raise ValueError(f"the tensor has shape {list(x.shape)}; it must have one column for each of {len(keys)} keys")
        return [dict(zip(keys, row, strict=True)) for row in rows.tolist()]

    return run


@ops("DictVectorizer", domain=ML, devices=CPU)
def dict_vectorizer(node: Node, env: KernelContext) -> Run:
    """Return a row with the value of each key of the vocabulary, zero or an empty text where the map has none.

    The standard speaks of a tensor of rank 1. Here it is [1, keys], as ONNX Runtime makes it and as converters, which stack
    such rows, rely on. A key that the vocabulary lacks is left out. A list of maps gives a row for each.
    """
    keys = _labels(node, "int64_vocabulary", "string_vocabulary")
    dtype = _element(env.function.get_type(node.inputs[0]))

    def run(x: Mapping[Any, Any] | Sequence[Mapping[Any, Any]]) -> Array:
        maps = [x] if isinstance(x, Mapping) else x
        kind = np.dtype(dtype or _seen(maps))
        absent: Any = "" if kind.hasobject else 0
        rows = [[given.get(key, absent) for key in keys] for given in maps]
        return np.array(rows, dtype=kind).reshape(len(maps), len(keys))

    return run


def _labels(node: Node, *names: str) -> list[Any]:
    """Return the keys that one of two attributes lists; raises ValueError where neither does."""
    for name in names:
        if found := node.attr(name):
            return list(found)
    raise ValueError(f"neither {' nor '.join(names)} is given")


def _element(type_: Type | None) -> Any:
    """Return NumPy's type of a map's values; None where it is not known."""
    inside = type_.element if isinstance(type_, SequenceType) else type_
    if not isinstance(inside, MapType) or not isinstance(inside.value, TensorType):
        return None
    return inside.value.dtype.numpy


def _seen(maps: Sequence[Mapping[Any, Any]]) -> Any:
    """Return the type of values whose declared one is not known: texts, integers, else the floats of ONNX's maps."""
    first = next((value for given in maps for value in given.values()), 0.0)
    return object if isinstance(first, str) else np.int64 if isinstance(first, int) else np.float32


@ops("CastMap", domain=ML, devices=CPU)
def cast_map(node: Node, env: KernelContext) -> Run:
    """Return the values [1, count] in the order of their keys; sparse, each in the column that its key names.

    Sparse, a key from ``max_map`` on is left out. Of texts the standard says nothing: numbers are written with six digits and
    columns without a key as ONNX Runtime writes them.
    """
    convert, dtype, absent = _CASTS[node.attr("cast_to", "TO_FLOAT")]
    columns = node.attr("max_map", 1) if node.attr("map_form", "DENSE") == "SPARSE" else None

    def run(x: Mapping[int, float | str]) -> Array:
        if columns is None:
            return np.array([[convert(x[key]) for key in sorted(x)]], dtype=dtype).reshape(1, len(x))
        if x and min(x) < 0:
            raise ValueError(f"the map has the key {min(x)}; a sparse one names columns from 0 on")
        return np.array([[convert(x[key]) if key in x else absent for key in range(columns)]], dtype=dtype).reshape(1, columns)

    return run


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:f}"


_CASTS: Mapping[str, tuple[Any, Any, Any]] = {
    "TO_FLOAT": (float, np.float32, 0.0),
    "TO_INT64": (int, np.int64, 0),
    "TO_STRING": (_text, object, "0.f"),
}
"""How a value is converted, the element type, and what a column without a key holds."""


@ops("CategoryMapper", domain=ML, devices=CPU)
def category_mapper(node: Node, env: KernelContext) -> Run:
    """Return the text for each integer, or the integer for each text."""
    numbers, texts = node.attr("cats_int64s", ()), node.attr("cats_strings", ())
    to_number = dict(zip(texts, numbers, strict=True))
    to_text = dict(zip(numbers, texts, strict=True))

    def run(x: Array) -> Array:
        if x.dtype.kind == "O":
            default = node.attr("default_int64", -1)
            return np.array([to_number.get(text, default) for text in x.reshape(-1)], dtype=np.int64).reshape(x.shape)
        default = node.attr("default_string", "_Unused")
        return np.array([to_text.get(number, default) for number in x.reshape(-1).tolist()], dtype=object).reshape(x.shape)

    return run
