"""Control edges as values: OpenVINO has none, and computes equal nodes once, whatever they wait for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from xrt.graph import Attribute, Constant, DType, Function, Node, TensorType
from xrt.graph.rename import Names

__all__ = ["write_waits"]

LEAST_OPSET = 13
"""From here on the operators below take what they are given."""


def write_waits(function: Function) -> Function:
    """Return the Function in which a node that waits, and is equal to another one, is not equal to it any more.

    It reads its smallest input through a Where, which reads what it waits for too. The condition is true, which only the run
    shows: ``b or not b``, where b is the first element of a result as a boolean. So a value that is computed again for a gradient
    is not the first one, kept. Other nodes that wait stay as they are: the library runs a region as a whole. Linear.
    """
    if not any(node.control for node in function.nodes) or function.opset() < LEAST_OPSET:
        return function
    return _Waits(function).write()


class _Waits:
    def __init__(self, function: Function) -> None:
        self.function = function
        self.constants: dict[str, Constant] = {}
        self._equal = Counter(map(_identify, function.nodes))
        self.names = Names()
        for name in (*function.value_names(), *(node.name for node in function.nodes)):
            self.names.take(name)

    def write(self) -> Function:
        nodes = tuple(new for node in self.function.nodes for new in self._delay(node))
        return self.function.replace(nodes=nodes, constants={**self.function.constants, **self.constants})

    def _delay(self, node: Node) -> Iterator[Node]:
        if not node.control or self._equal[_identify(node)] == 1:
            yield node
            return
        read = {name: size for name in node.inputs if (size := self._get_size(name))}
        awaited = [name for other in node.control for name in self.function.node(other).defines if self._get_size(name)]
        if not read or not awaited:
            yield node
            return
        flags: list[str] = []
        for name in awaited:
            made = list(self._compare(name, node))
            yield from made
            flags.append(made[-1].outputs[0])
        while len(flags) > 1:
            both = self._make(node, "And", flags.pop(), flags.pop())
            yield both
            flags.append(both.outputs[0])
        value = min(read, key=read.__getitem__)
        type_ = self.function.get_type(value)
        assert isinstance(type_, TensorType)  # it has a size
        delayed = self._make(node, "Where", flags[0], value, self._add_constant(node, np.zeros((), type_.dtype.numpy)))
        yield delayed
        yield replace(node, inputs=tuple(delayed.outputs[0] if name == value else name for name in node.inputs))

    def _compare(self, name: str, node: Node) -> Iterator[Node]:
        """Yield nodes that make a condition of a value, which may be empty; it is always true."""
        flat = self._make(node, "Reshape", name, self._add_constant(node, np.array([-1])))
        ends = (self._add_constant(node, np.array([place])) for place in (0, 1))
        first = self._make(node, "Slice", flat.outputs[0], *ends)
        flags = replace(self._make(node, "Cast", first.outputs[0]), attributes=(Attribute.of("to", DType.BOOL.onnx),))
        some = self._make(node, "Concat", flags.outputs[0], self._add_constant(node, np.array([True])))
        flag = self._make(node, "Gather", some.outputs[0], self._add_constant(node, np.array(0)))
        other = self._make(node, "Not", flag.outputs[0])
        either = self._make(node, "Or", flag.outputs[0], other.outputs[0])
        yield from (flat, first, flags, replace(some, attributes=(Attribute.of("axis", 0),)), flag, other, either)

    def _make(self, node: Node, op: str, *inputs: str) -> Node:
        name = self.names.plain(f"{node.name}/wait/{op.lower()}")
        return Node(op, inputs, (name,), name=name)

    def _add_constant(self, node: Node, array: np.ndarray[Any, Any]) -> str:
        name = self.names.plain(f"{node.name}/wait/constant")
        self.constants[name] = Constant(array)
        return name

    def _get_size(self, name: str) -> float:
        """Return the bytes of a value that is computed or given, infinity for unknown ones; 0 where it cannot be read so."""
        type_ = self.function.get_type(name)
        is_constant = not name or name in self.function.constants
        if is_constant or not isinstance(type_, TensorType) or type_.dtype is DType.STRING:
            return 0
        return math.inf if type_.nbytes is None else type_.nbytes


def _identify(node: Node) -> tuple[object, ...]:
    """Return what nodes that the library computes once have in common; attributes may still differ."""
    return node.domain, node.op, node.inputs
