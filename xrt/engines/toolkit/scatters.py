"""In-place scatters: operators that update parts of their first input, whose output may share its memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from xrt.graph import Function, Node, TensorType
from xrt.operators import Trait, has_trait, list_operators

SCATTERS = list_operators(Trait.UPDATES)
"""Operators that update parts of their first input."""


def find_inplace_outputs(function: Function) -> dict[int, int]:
    """Map each input that is read by a single scatter only to the output of that scatter, by position.

    The engine's kernels must skip the copy if input and output are one buffer. No other reader can observe the update.
    """
    outputs = [value.name for value in function.outputs]
    pairs = {}
    for place, value in enumerate(function.inputs):
        uses = function.users(value.name)
        # Another reader, or an output with the old contents, would observe the update.
        if len(uses) != 1 or value.name in outputs or not isinstance(value.type, TensorType):
            continue
        node = uses[0].node
        if has_trait(node, Trait.UPDATES) and node.inputs[0] == value.name and node.outputs[0] in outputs:
            pairs[place] = outputs.index(node.outputs[0])
    return pairs


def list_scattered_inputs(node: Node) -> tuple[int, ...]:
    """Positions of inputs over which such an engine can write the node's result."""
    return (0,) if has_trait(node, Trait.UPDATES) else ()


class _WritableMemory:
    """An array interface without the read-only flag. Keeps the owner of the memory alive."""

    def __init__(self, array: np.ndarray[Any, Any], owner: Any) -> None:
        self._owner = owner
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def make_writable_alias(array: np.ndarray[Any, Any], owner: Any = None) -> np.ndarray[Any, Any]:
    """A writable view of a read-only array; nothing is copied.

    The caller guarantees that no other code relies on the contents. The result keeps ``owner`` alive, by default the array. Types
    of ml_dtypes, which the array interface cannot describe, are viewed as integers of their size in between.
    """
    memory_owner = array if owner is None else owner
    # ml_dtypes register their types as user types.
    if array.dtype.isbuiltin == 1:
        return np.asarray(_WritableMemory(array, memory_owner))
    return np.asarray(_WritableMemory(array.view(f"u{array.itemsize}"), memory_owner)).view(array.dtype)
