"""Sizes of symbolic dims: in options, in the values of a call, and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from xrt.graph import FrozenDict, TensorType, Value

Sizes: TypeAlias = Mapping[str, int]
"""Size by symbolic dim; an unnamed extent is called by its input and axis, ``x[0]``."""


def format_sizes(sizes: Sizes) -> str:
    """Format sizes as text.

    >>> format_sizes({"batch": 1, "s": 128})
    'batch=1, s=128'
    """
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def list_open_axes(inputs: Sequence[Value]) -> Iterator[tuple[int, int, str]]:
    """Yield input index, axis and name of each symbolic extent."""
    for place, value in enumerate(inputs):
        if isinstance(value.type, TensorType):
            for axis, dim in enumerate(value.type.shape or ()):
                if not isinstance(dim, int):
                    yield place, axis, dim or f"{value.name}[{axis}]"


def read_sizes(inputs: Sequence[Value], values: Sequence[Any]) -> Sizes:
    """Read the sizes of the symbolic dims from the values of a call."""
    return FrozenDict({name: values[place].shape[axis] for place, axis, name in list_open_axes(inputs)})


def resize_values(inputs: Sequence[Value], values: Sequence[Any], sizes: Sizes) -> list[Any]:
    """Cut or repeat the values of a call to other sizes of the symbolic dims, so that they stay plausible."""
    resized = list(values)
    for place, axis, name in list_open_axes(inputs):
        # Zeros instead would be implausible data, such as a sequence of padding.
        have, want = resized[place].shape[axis], sizes[name]
        if have != want:
            resized[place] = (
                np.take(resized[place], np.arange(want) % have, axis=axis)
                if have
                else np.zeros((*resized[place].shape[:axis], want, *resized[place].shape[axis + 1 :]), resized[place].dtype)
            )
    return resized
