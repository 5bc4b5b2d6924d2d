"""What an engine is asked about a node, as a key that means the same in every model and every process."""

from __future__ import annotations

import hashlib

from xrt.graph import Attribute, AttrKind, Function, Node
from xrt.graph.constants import Constant

# Keys include the content of constants up to this many elements; larger ones are weights, of which only the type matters.
SMALL = 1024
OF_TYPES = frozenset({"Shape", "Size"})
"""Operators whose result may depend only on the type of their input."""
_BODIES = frozenset({AttrKind.GRAPH, AttrKind.GRAPHS})


class QuestionKeys:
    """Keys of the nodes of one Function, to be computed in topological order.

    Nodes with equal keys have the same operator, opset, attributes, types and small constants, and the same outputs are read. A
    value computed only from constants or types is identified by its computation. An answer that depends on the values of a large
    weight may differ in another model: a caller that stores answers by these keys must accept that.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._made: dict[str, str] = {}
        """Keys of values computed only from constants or types."""
        self._read = {value.name for value in function.outputs}
        self._read.update(name for node in function.nodes for name in node.uses)

    def key(self, node: Node) -> str | None:
        """The key; None for a node with a body."""
        function = self._function
        attributes = [_attribute(one) for one in node.attributes]
        looks = [self._look(name) for name in node.inputs]
        if None in attributes:
            return None
        made = [f"{function.get_type(name)} {name in self._read}" if name else "" for name in node.outputs]
        # Which inputs are the same value: Add(x, x) differs from Add(x, y).
        same = list(map(node.inputs.index, node.inputs))
        opset = function.opsets.get(node.domain)
        facts = (node.domain, node.op_type, opset, node.device, sorted(map(str, attributes)), looks, same, made)
        key = hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
        if node.op_type in OF_TYPES or all(self._is_known(name) for name in node.inputs):
            self._made.update((name, f"{key}:{place}") for place, name in enumerate(node.outputs))
        return key

    def _look(self, name: str) -> str:
        if not name:
            return ""
        constant = self._function.constants.get(name)
        if constant is None:
            return self._made.get(name) or str(self._function.get_type(name))
        return f"{constant.type} {constant.digest.hex() if constant.array.size <= SMALL else ''}"

    def _is_known(self, name: str) -> bool:
        return not name or name in self._function.constants or name in self._made


def _attribute(attribute: Attribute) -> str | None:
    """An attribute as text; None for a body."""
    if attribute.kind in _BODIES:
        return None
    value = attribute.value
    tensors = value if isinstance(value, tuple | list) else [value]
    if all(isinstance(one, Constant) for one in tensors):
        return f"{attribute.name} {[one.digest.hex() for one in tensors]}"
    return f"{attribute.name} {attribute.kind} {value!r}"
