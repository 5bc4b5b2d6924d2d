"""What XRT allows and ONNX does not, put right with Identity nodes before an engine sees it."""

from __future__ import annotations

from xrt.formats.onnx.names import FreshNames
from xrt.graph import Function, Node, Type, Value, latest_opset
from xrt.graph.op_schema import require_operator
from xrt.graph.type_strings import onnx_spelling

__all__ = ["identity_opset", "normalize"]


def normalize(function: Function) -> Function:
    """Return an equivalent Function in which no output is listed twice and no body returns a value from outside.

    Where something must change, an Identity is inserted. The outputs keep their places, and of a repeated one the first keeps its
    name. If nothing must change, the function itself is returned.
    """
    if not _is_odd(function) and not any(_is_odd(body, is_body=True) for _, node in function.walk() for body in node.bodies):
        return function
    return _plain(function, FreshNames(function), is_body=False)


def _is_odd(function: Function, *, is_body: bool = False) -> bool:
    names = [value.name for value in function.outputs]
    return len(set(names)) < len(names) or (is_body and not set(names).isdisjoint(function.captures))


def _plain(function: Function, fresh: FreshNames, *, is_body: bool) -> Function:
    nodes = [node.map_bodies(lambda body: _plain(body, fresh, is_body=True)) for node in function.nodes]
    taken = set(function.captures) if is_body else set()
    outputs = []
    for value in function.outputs:
        name = value.name
        if name in taken:
            name = fresh.like(value.name)
            nodes.append(Node("Identity", (value.name,), (name,)))
        taken.add(name)
        outputs.append(Value(name, value.type))
    opsets = function.opsets if "" in function.opsets else {**function.opsets, "": 1}
    return function.replace(nodes=tuple(nodes), outputs=tuple(outputs), opsets=opsets, aliases=())


def identity_opset(type_: Type | None) -> int:
    """Return the first opset of ai.onnx whose Identity takes that type; 1 where the type is unknown."""
    text = None if type_ is None else onnx_spelling(type_)
    versions = range(1, latest_opset() + 1)
    return next((v for v in versions if text in require_operator("Identity", v).inputs[0].types), 1)
