"""Writes what one node does as other nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from xrt.graph import Attribute, Constant, DType, Function, Node, TensorType, read_attributes

__all__ = ["NodeWriter", "write_nodes"]


@dataclass(slots=True)
class NodeWriter:
    """What one node is written out as, so far; values go by their names."""

    node: Node
    function: Function
    """In which the node is."""
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)

    def op(self, op_type: str, *inputs: str, output: str = "", attributes: Iterable[Attribute] = (), **more: Any) -> str:
        """Write an operator of one result, and return the name of that.

        ``attributes`` are those of a node, ``more`` further ones by name.
        """
        name = output or f"{self._prefix}/spelled/{len(self.nodes)}"
        self.nodes.append(Node(op_type, inputs, (name,), (*attributes, *read_attributes(more)), name=name))
        return name

    def constant(self, array: np.ndarray[Any, Any]) -> str:
        """Write a constant, and return its name."""
        name = f"{self._prefix}/spelled/constant/{len(self.constants)}"
        self.constants[name] = Constant(array)
        return name

    def number(self, value: float) -> str:
        """Write a scalar constant of the first input's type, and return its name."""
        return self.constant(np.array(value, self.dtype(self.x).numpy))

    def cast(self, name: str, dtype: DType) -> str:
        """Write a cast, and return the name of its result."""
        return self.op("Cast", name, to=dtype.onnx)

    def find_constant(self, name: str) -> Constant | None:
        """Return the constant of that name, of the Function or written; None for other values."""
        return self.constants.get(name) or self.function.constants.get(name)

    def get_type(self, name: str) -> TensorType:
        """Return the type of a tensor of the Function; raises ValueError where its shape is unknown."""
        type_ = self.function.get_type(name)
        if not isinstance(type_, TensorType) or type_.shape is None:
            raise ValueError(f"{name!r} has the type {type_}")
        return type_

    def dtype(self, name: str) -> DType:
        """Return the element type of a tensor of the Function; raises ValueError for what is not known to be one."""
        type_ = self.function.get_type(name)
        if not isinstance(type_, TensorType):
            raise ValueError(f"{name!r} has the type {type_}")
        return type_.dtype

    @property
    def _prefix(self) -> str:
        return next(iter(self.node.defines))

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return self.function.opset()

    @property
    def x(self) -> str:
        """The first input."""
        return self.node.inputs[0]


def write_nodes(function: Function, write: Callable[[NodeWriter], bool]) -> Function:
    """Return the Function with each node that ``write`` writes as other nodes; itself where it writes none.

    ``write`` returns whether it has written the node. The last node that it writes makes the node's result, and has its name.
    """
    nodes: list[Node] = []
    constants: dict[str, Constant] = {}
    for node in function.nodes:
        writer = NodeWriter(node, function)
        if not write(writer):
            nodes.append(node)
            continue
        nodes += [*writer.nodes[:-1], replace(writer.nodes[-1], name=node.name, control=node.control, device=node.device)]
        constants |= writer.constants
    unchanged = len(nodes) == len(function.nodes) and all(new is old for new, old in zip(nodes, function.nodes, strict=True))
    return function if unchanged else function.replace(nodes=tuple(nodes), constants={**function.constants, **constants})
