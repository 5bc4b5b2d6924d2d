"""Sizes of symbolic dims: read them from the values of a call, resize values, and format sizes as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from xrt.graph import FrozenDict, TensorType, Value

Sizes: TypeAlias = Mapping[str, int]
"""Size by name of the symbolic dim. An unnamed dim is called by its input and axis, such as ``x[0]``."""


def format_sizes(sizes: Sizes) -> str:
    """Format sizes as text.

    >>> format_sizes({"batch": 1, "s": 128})
    'batch=1, s=128'
    """
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def list_open_axes(inputs: Sequence[Value]) -> Iterator[tuple[int, int, str]]:
    """Yield (input index, axis, name) of each symbolic dim in the shapes of the inputs."""
    for input_index, value in enumerate(inputs):
        if isinstance(value.type, TensorType):
            for axis, dim in enumerate(value.type.shape or ()):
                if not isinstance(dim, int):
                    yield input_index, axis, dim or f"{value.name}[{axis}]"


def read_sizes(inputs: Sequence[Value], values: Sequence[Any]) -> Sizes:
    return FrozenDict({name: values[input_index].shape[axis] for input_index, axis, name in list_open_axes(inputs)})


def resize_values(inputs: Sequence[Value], values: Sequence[Any], sizes: Sizes) -> list[Any]:
    """Cut or repeat the values of a call to other sizes of the symbolic dims, so that they stay plausible."""
    resized = list(values)
    for input_index, axis, name in list_open_axes(inputs):
        array = resized[input_index]
        size, new_size = array.shape[axis], sizes[name]
        if size and size != new_size:
            resized[input_index] = np.take(array, np.arange(new_size) % size, axis=axis)
        elif size != new_size:  # nothing to repeat
            resized[input_index] = np.zeros((*array.shape[:axis], new_size, *array.shape[axis + 1 :]), array.dtype)
    return resized
