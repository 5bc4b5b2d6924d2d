"""A Scan of few steps written as these, one after the other, for engines where a turn costs more than the operators in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from xrt.graph import Constant, Function, Node, TensorType, Type
from xrt.graph.rename import rename_node

__all__ = ["unroll_scans"]

_SINCE = 9
"""The opset from which a Scan has no axis of a batch."""


def unroll_scans(function: Function, most_nodes: int) -> Function:
    """Return the Function with each Scan as its steps, where these are at most so many nodes; itself where there is none such.

    The number of steps and the shapes of what is stacked must be known; a Scan with other bodies in its body stays, and one that
    is ordered by control edges.
    """
    if function.opset() < _SINCE:
        return function
    awaited = {name for node in function.nodes for name in node.control}
    nodes: list[Node] = []
    constants, types = dict(function.constants), dict(function.types)
    for node in function.nodes:
        steps = _count_steps(node, function)
        is_free = not node.control and node.name not in awaited
        if steps and is_free and steps * _count_nodes(node) <= most_nodes and _is_plain(node):
            nodes += _Steps(node, steps, constants, types).write()
        else:
            nodes.append(node)
    if len(nodes) == len(function.nodes):
        return function
    return function.replace(nodes=tuple(nodes), constants=constants, types=types)


def _count_steps(node: Node, function: Function) -> int | None:
    """Return how many steps a Scan has, None where it is not known, and for other nodes."""
    if node.op != "Scan":
        return None
    count = node.attr("num_scan_inputs")
    for name, axis in zip(node.inputs[-count:], node.attr("scan_input_axes") or [0] * count, strict=True):
        type_ = function.get_type(name)
        steps = type_.shape[axis] if isinstance(type_, TensorType) and type_.shape else None
        if isinstance(steps, int):
            return steps
    return None


def _count_nodes(node: Node) -> int:
    return len(node.attr("body").nodes) + int(node.attr("num_scan_inputs"))


def _is_plain(node: Node) -> bool:
    """Whether the steps can be written: no bodies in the body, and stacks along the first axis of values whose shape is known."""
    body: Function = node.attr("body")
    stacked = body.outputs[len(node.inputs) - node.attr("num_scan_inputs") :]
    known = all(isinstance(value.type, TensorType) and value.type.is_static for value in stacked)
    return known and not any(inner.bodies for inner in body.nodes) and not any(node.attr("scan_output_axes") or ())


class _Steps:
    """The steps of one Scan, to be written; constants and types of theirs are added to those given."""

    def __init__(self, node: Node, steps: int, constants: dict[str, Constant], types: dict[str, Type]) -> None:
        self._node, self._steps, self._constants, self._types = node, steps, constants, types
        self._body: Function = node.attr("body")
        self._prefix = next(iter(node.defines))
        self._shared = {name: f"{self._prefix}/{name}" for name in self._body.constants}
        constants |= {self._shared[name]: constant for name, constant in self._body.constants.items()}

    def write(self) -> Iterator[Node]:
        """Yield the nodes in order; the last results have the names of the Scan's."""
        count, body = self._node.attr("num_scan_inputs"), self._body
        carried = list(self._node.inputs[:-count])
        ways = self._node.attr("scan_input_directions") or [0] * count
        axes = self._node.attr("scan_input_axes") or [0] * count
        stacks: list[list[str]] = [[] for _ in body.outputs[len(carried) :]]
        for step in range(self._steps):
            names = dict(self._shared)
            names.update(zip((value.name for value in body.inputs), carried, strict=False))
            for value, source, axis, way in zip(body.inputs[len(carried) :], self._node.inputs[-count:], axes, ways, strict=True):
                place = self._steps - 1 - step if way else step
                names[value.name] = self._name(step, value.name, value.type)
                yield Node("Gather", (source, self._make_index(place)), (names[value.name],)).with_attributes(axis=axis)
            for inner in body.nodes:
                for name in inner.defines:
                    names[name] = self._name(step, name, body.get_type(name))
                yield replace(rename_node(inner, names, {}), name="", control=(), device=self._node.device)
            results = [names.get(value.name, value.name) for value in body.outputs]
            carried = results[: len(carried)]
            for stack, name in zip(stacks, results[len(carried) :], strict=True):
                stack.append(name)
        yield from self._write_results(carried, stacks)

    def _write_results(self, carried: list[str], stacks: list[list[str]]) -> Iterator[Node]:
        outputs = self._node.outputs
        for name, output in zip(carried, outputs, strict=False):
            if output:
                yield Node("Identity", (name,), (output,))
        back = self._node.attr("scan_output_directions") or [0] * len(stacks)
        values = self._body.outputs[len(carried) :]
        for stack, output, way, value in zip(stacks, outputs[len(carried) :], back, values, strict=False):
            if not output:
                continue
            assert isinstance(value.type, TensorType)
            assert value.type.shape is not None
            shape = [int(size) for size in value.type.shape if isinstance(size, int)]
            # Joined along the first axis of the parts, which the stack's axis is in front of.
            parts = stack[::-1] if way else stack
            if not shape:
                rows = [f"{output}/row_{step}" for step in range(len(parts))]
                for part, row in zip(parts, rows, strict=True):
                    yield Node("Reshape", (part, self._make_shape([1])), (row,))
                parts = rows
            joined = f"{output}/joined"
            yield Node("Concat", tuple(parts), (joined,)).with_attributes(axis=0)
            yield Node("Reshape", (joined, self._make_shape([self._steps, *shape])), (output,))

    def _name(self, step: int, name: str, type_: Type | None) -> str:
        new = f"{self._prefix}/step_{step}/{name}"
        if type_ is not None:
            self._types[new] = type_
        return new

    def _make_index(self, place: int) -> str:
        name = f"xrt/scan/step/{place}"
        self._constants.setdefault(name, Constant(np.asarray(place, np.int64)))
        return name

    def _make_shape(self, shape: list[int]) -> str:
        name = f"xrt/scan/shape/{','.join(map(str, shape))}"
        self._constants.setdefault(name, Constant(np.asarray(shape, np.int64)))
        return name
