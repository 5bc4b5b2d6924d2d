"""Sizes of symbolic dims: in options, in the values of a call, and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from xrt.errors import OptionError
from xrt.graph import FrozenDict, TensorType, Value
from xrt.graph.types import LARGEST_EXTENT

__all__ = ["Sizes", "format_sizes", "list_open_axes", "parse_sizes", "read_sizes", "resize_values"]

Sizes: TypeAlias = Mapping[str, int]
"""Symbolic dim to size; an extent without a name is called by its input and axis, ``x[0]``."""


def parse_sizes(asked: Any, option: str) -> Mapping[str, tuple[int, ...]]:
    """Parse an option of sizes: by symbolic dim, ascending. Raises OptionError for another value."""
    if asked is None:
        return FrozenDict()
    if not isinstance(asked, Mapping):
        raise OptionError(f'{option} must map symbolic dims to sizes, such as {option}={{"s": [16, 128]}}; got {asked!r}')
    found = {}
    for name, given in asked.items():
        several = list(given) if isinstance(given, list | tuple | range) else [given]
        if not several or not all(type(size) is int and 0 < size <= LARGEST_EXTENT for size in several):
            raise OptionError(f"{option}[{name!r}] must be a positive integer or several; got {given!r}")
        found[str(name)] = tuple(sorted(set(several)))
    return FrozenDict(found)


def format_sizes(sizes: Sizes) -> str:
    """Return sizes as text.

    >>> format_sizes({"batch": 1, "s": 128})
    'batch=1, s=128'
    """
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def list_open_axes(inputs: Sequence[Value]) -> Iterator[tuple[int, int, str]]:
    """Yield input, axis and name of each extent that is not a number."""
    for place, value in enumerate(inputs):
        if isinstance(value.type, TensorType):
            for axis, dim in enumerate(value.type.shape or ()):
                if not isinstance(dim, int):
                    yield place, axis, dim or f"{value.name}[{axis}]"


def read_sizes(inputs: Sequence[Value], values: Sequence[Any]) -> Sizes:
    """Return the sizes that the values of a call give to the symbolic dims of these inputs."""
    return FrozenDict({name: values[place].shape[axis] for place, axis, name in list_open_axes(inputs)})


def resize_values(inputs: Sequence[Value], values: Sequence[Any], sizes: Sizes) -> list[Any]:
    """Return the values of a call cut or repeated to other sizes of the symbolic dims, so that they stay plausible."""
    found = list(values)
    for place, axis, name in list_open_axes(inputs):
        have, want = found[place].shape[axis], sizes[name]
        if have != want:
            found[place] = (
                np.take(found[place], np.arange(want) % have, axis=axis)
                if have
                else np.zeros((*found[place].shape[:axis], want, *found[place].shape[axis + 1 :]), found[place].dtype)
            )
    return found
