"""Outputs that an engine may write over an input: those of operators that write parts of their first input and keep the rest."""

from __future__ import annotations

from typing import Any

import numpy as np

from xrt.graph import Function, Node, TensorType

__all__ = ["SCATTERS", "find_inplace_outputs", "list_scattered_inputs", "make_writable_alias"]

SCATTERS = ("Scatter", "ScatterElements", "ScatterND", "TensorScatter")
"""Operators that write parts of their first input, with other inputs of any shape."""


def find_inplace_outputs(function: Function) -> dict[int, int]:
    """Return, by the place of an input that one scatter alone reads, the place of that scatter's output.

    An engine whose kernels of these skip the copy of the first input, where input and output are one buffer, may write it there.
    No other reader can find it changed.
    """
    outputs = [value.name for value in function.outputs]
    found = {}
    for place, value in enumerate(function.inputs):
        uses = function.users(value.name)
        if len(uses) != 1 or value.name in outputs or not isinstance(value.type, TensorType):
            continue
        node = uses[0].node
        if node.op_type in SCATTERS and not node.domain and node.inputs[0] == value.name and node.outputs[0] in outputs:
            found[place] = outputs.index(node.outputs[0])
    return found


def list_scattered_inputs(node: Node) -> tuple[int, ...]:
    """Return the inputs, by place, over which such an engine may write the node's result."""
    return (0,) if node.op_type in SCATTERS and not node.domain else ()


class _WritableMemory:
    """The memory of an array without its read-only mark. The owner of the memory lives as long as this."""

    def __init__(self, array: np.ndarray[Any, Any], owner: Any) -> None:
        self._owner = owner
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def make_writable_alias(array: np.ndarray[Any, Any], owner: Any = None) -> np.ndarray[Any, Any]:
    """Return an array over the same memory that may be written to; nothing is copied.

    The caller guarantees that no other code writes to it, or that the memory is its own. ``owner`` is kept alive with the
    result, by default the array. Types of ml_dtypes, for which the array interface has no name, pass through integers of their
    size.
    """
    own = array if owner is None else owner
    if array.dtype.isbuiltin == 1:
        return np.asarray(_WritableMemory(array, own))
    return np.asarray(_WritableMemory(array.view(f"u{array.itemsize}"), own)).view(array.dtype)
