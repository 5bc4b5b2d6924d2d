"""Caches in buffers of one size, of which a call reads a front: what a buffer of that smaller capacity would be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from xrt.errors import ModelError
from xrt.graph import Constant, Function, Node, TensorType, Value, declare_states, list_states
from xrt.graph.rename import rename_node
from xrt.graph.state import declare_capacity, find_capacity
from xrt.passes.padding.caches import CAPACITY, NEXT_LENGTH
from xrt.passes.shape_inference import infer_shapes

__all__ = ["LEAST_FRONT", "read_fronts"]

LEAST_FRONT = 64
"""The smallest front; larger ones are twice as long each."""
FRONT = "xrt.front"
"""The value that says how much of the caches a call reads."""


def read_fronts(function: Function, capacity: int) -> Function:
    """Return a Function with caches of a named capacity with buffers of ``capacity``, whose calls read a front of them.

    The function is one of `make_static_caches` without a capacity. A front is the first power of two, from `LEAST_FRONT` on, that
    holds what the cache has after the call. To write to a buffer and read its front is to write to a buffer of the front's size,
    since nothing behind the front is valid: so whatever has been shown of the named capacity holds. An engine must take a value
    for the size of a Slice. Raises ModelError for a capacity that the model cannot have.
    """
    declared = find_capacity(function)
    assert declared is not None  # it is one of static caches
    if capacity > declared.size:
        raise ModelError(f"capacity={capacity} is more than the {declared.size} entries that a table of {function.name!r} has")
    states = list_states(function)
    axes = {state.output: axis for state in states if (axis := _find_axis(function, state.input)) is not None}
    fronts = {name: f"{name}.front" for name in axes}
    nodes = [replace(rename_node(node, fronts, {}), outputs=node.outputs) for node in function.nodes]
    constants = dict(function.constants)
    nodes += _choose_front(capacity, constants)
    for name, axis in axes.items():
        constants[f"{FRONT}.axis.{axis}"] = Constant(np.array([axis], np.int64))
        inputs = (name, f"{FRONT}.start", FRONT, f"{FRONT}.axis.{axis}")
        nodes.append(Node("Slice", inputs, (fronts[name],), name=f"{FRONT}.{name}"))
    made = function.replace(
        inputs=tuple(_resize(value, capacity) for value in function.inputs),
        outputs=tuple(_resize(value, capacity) for value in function.outputs),
        nodes=tuple(nodes),
        constants=constants,
        types={},
    )
    made = declare_states(infer_shapes(made), states)
    return declare_capacity(made, replace(declared, size=capacity, dim=""))


def _find_axis(function: Function, name: str) -> int | None:
    """Return the axis along which a state has the capacity; None where it has none."""
    type_ = function.get_type(name)
    shape = type_.shape if isinstance(type_, TensorType) else None
    return shape.index(CAPACITY) if shape is not None and CAPACITY in shape else None


def _choose_front(capacity: int, constants: dict[str, Constant]) -> list[Node]:
    """Return the nodes that choose a front, and put what they read among the constants."""
    sizes, size = [], LEAST_FRONT
    while size < capacity:
        sizes.append(size)
        size *= 2
    made = {
        "sizes": np.array([*sizes, capacity], np.int64),
        "most": np.array(capacity, np.int64),
        "start": np.array([0], np.int64),
    }
    constants.update({f"{FRONT}.{name}": Constant(value) for name, value in made.items()})
    return [
        Node("Less", (f"{FRONT}.sizes", NEXT_LENGTH), (f"{FRONT}.short",)),
        Node("Where", (f"{FRONT}.short", f"{FRONT}.most", f"{FRONT}.sizes"), (f"{FRONT}.fitting",)),
        Node("ReduceMin", (f"{FRONT}.fitting",), (FRONT,)).with_attributes(keepdims=1),
    ]


def _resize(value: Value, capacity: int) -> Value:
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.shape is None or CAPACITY not in type_.shape:
        return value
    return Value(value.name, type_.with_shape(tuple(capacity if dim == CAPACITY else dim for dim in type_.shape)))
