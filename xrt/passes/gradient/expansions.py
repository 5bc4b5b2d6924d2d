"""Operators by element read what is repeated as it was before: the gradient of a mean is one number for many elements."""

from __future__ import annotations

from dataclasses import replace

from xrt.graph import Function, Node, TensorType
from xrt.graph.rename import Names
from xrt.passes.gradient.recording import list_names

__all__ = ["read_before_expansion"]

_BROADCASTING = frozenset({"Add", "Div", "Mul", "Sub", "Sum"})
Shape = tuple[object, ...]


def read_before_expansion(function: Function) -> Function:
    """Return the Function with Add, Div, Mul, Sub and Sum on what an Expand was given, where they repeat it themselves.

    They do where another operand has the shape of the result. With scalars alone, what they give is expanded after them. Extents
    must be known. An Expand that is not read any more stays, for `drop_dead_nodes`.
    """
    rewriter = _Rewriter(function)
    nodes = [made for node in function.nodes for made in rewriter.rewrite(node)]
    if not rewriter.changed:
        return function
    return function.replace(nodes=tuple(nodes), types=rewriter.types)


class _Rewriter:
    def __init__(self, function: Function) -> None:
        self.changed = False
        self._function = function
        self.types = dict(function.types)
        self._before: dict[str, str] = {}
        """What was expanded, by the name of the result."""
        self._names: Names | None = None

    def rewrite(self, node: Node) -> list[Node]:
        if node.op == "Expand":
            if self._find_shape(node.outputs[0]) is not None and self._find_shape(node.inputs[0]) is not None:
                self._before[node.outputs[0]] = node.inputs[0]
            return [node]
        expanded = [name for name in node.inputs if name in self._before]
        if node.op not in _BROADCASTING or not expanded:
            return [node]
        result, rest = self._find_shape(node.outputs[0]), [name for name in node.inputs if name not in self._before]
        if result is None:
            return [node]
        inputs = tuple(self._before.get(name, name) for name in node.inputs)
        if any(self._find_shape(name) == result for name in rest):
            self.changed = True
            return [replace(node, inputs=inputs)]
        small = {self._find_shape(self._before[name]) for name in expanded}
        if len(small) == 1 and all(self._find_shape(name) == () for name in rest):
            return [self._compute_before(node, inputs, small.pop()), node]
        return [node]

    def _compute_before(self, node: Node, inputs: tuple[str, ...], shape: Shape | None) -> Node:
        """Return the operator on what was expanded; the result of the node itself is that, expanded."""
        if self._names is None:
            self._names = Names()
            for name in list_names(self._function):
                self._names.take(name)
        type_ = self._function.get_type(node.outputs[0])
        assert isinstance(type_, TensorType)
        assert shape is not None
        name = self._names.plain(f"{node.outputs[0]}_before")
        self.types[name] = type_.with_shape(shape)  # type: ignore[arg-type]  # as _find_shape has them
        self._before[node.outputs[0]] = name
        return replace(node, inputs=inputs, outputs=(name,), name=self._names.plain(f"{node.name}_before"))

    def _find_shape(self, name: str) -> Shape | None:
        """Return the shape of a value, None where an extent is not known."""
        type_ = self.types.get(name) or self._function.get_type(name)
        return type_.shape if isinstance(type_, TensorType) and type_.is_static else None
