"""Operators brought to an older opset than the one that gave them their present meaning, by onnx's version converter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from onnx import shape_inference, version_converter

from xrt.errors import ModelError
from xrt.formats.onnx.error_text import summarize_error
from xrt.formats.onnx.external_data import ExternalData
from xrt.formats.onnx.inference import can_propagate
from xrt.formats.onnx.names import FreshNames
from xrt.formats.onnx.reading import read_function
from xrt.formats.onnx.versions import lowest_ir, newest_nodes
from xrt.formats.onnx.writing import Style, write_model
from xrt.graph import Constant, Function, Node, TensorType, Type, Value, since_version
from xrt.graph.op_schema import find_operator
from xrt.graph.type_strings import onnx_spelling

__all__ = ["ConversionScope", "as_function", "check_convertible", "convert", "convert_function", "splice"]

SMALL = 64
"""Integer constants of at most this many elements are axes and shapes, which a conversion may have to look at."""

PER_AXIS_OPSET = 13
"""Since this opset Softmax takes one axis; before, it flattened the tensor from that axis on."""

_OLDEST_CONTROL = 11
"""Since this opset the revisions of If, Loop and Scan only widened the types that they take."""


@dataclass(frozen=True, slots=True)
class ConversionScope:
    """The Functions around a node, the nearest first: what its inputs are."""

    functions: tuple[Function, ...]

    def inside(self, body: Function) -> ConversionScope:
        return ConversionScope((body, *self.functions))

    def get_type(self, name: str) -> Type | None:
        return next((known for function in self.functions if (known := function.get_type(name)) is not None), None)

    def constant(self, name: str) -> Constant | None:
        """Return a constant that a conversion may look at: a small one of integers."""
        found = next((function.constants[name] for function in self.functions if name in function.constants), None)
        return found if found is not None and found.dtype.is_integer and found.array.size <= SMALL else None


def convert_function(function: Function, max_opset: int) -> Function:
    """Return an equivalent Function whose operators, bodies included, took their meaning at or before an opset of ai.onnx.

    The function itself is returned where it is so already. Raises ModelError naming the first operator that is
    newer and cannot be converted, and why.
    """
    if next(newest_nodes(function, max_opset), None) is None:
        return function
    return _converted(function, ConversionScope((function,)), max_opset, FreshNames(function))


def _converted(function: Function, scope: ConversionScope, max_opset: int, fresh: FreshNames) -> Function:
    nodes: list[Node] = []
    constants = dict(function.constants)
    for node in function.nodes:
        older = _convert_node(node, scope, max_opset)
        if older is None:
            nodes.append(node.map_bodies(lambda body: _converted(body, scope.inside(body), max_opset, fresh)))
        else:
            own = splice(older, node, fresh)
            nodes += own.nodes
            constants.update(own.constants)
    opsets = {**function.opsets, "": min(max_opset, function.opset())}
    return function.replace(nodes=tuple(nodes), constants=constants, opsets=opsets)


def _convert_node(node: Node, scope: ConversionScope, max_opset: int) -> Function | None:
    """Return a Function that does at ``max_opset`` what the node does; None where the node may stay as it is.

    The Function's inputs and outputs are the node's, in order, left-out ones included, under names of its own. Raises
    ModelError where there is no such Function.
    """
    since = since_version(node, scope.functions[0])
    if node.domain or since is None or since <= max_opset:
        return None
    if node.bodies:
        reason = _why_not_older_control(node, scope, max_opset)
        result = None
    else:
        result, reason = convert(as_function(node, scope), max_opset)
    if reason:
        raise ModelError(
            f"node {node.name!r} ({node.op}) took its meaning at opset {since}; the limit is {max_opset}, "
            f"and it cannot be converted: {reason}"
        )
    return result


def check_convertible(node: Node, scope: ConversionScope, max_opset: int) -> None:
    """Raise ModelError when the node, or one in its bodies, cannot be brought to an opset of ai.onnx."""
    _convert_node(node, scope, max_opset)
    for body in node.bodies:
        for inner in body.nodes:
            check_convertible(inner, scope.inside(body), max_opset)


def _why_not_older_control(node: Node, scope: ConversionScope, max_opset: int) -> str:
    """Return why a node with bodies cannot be taken for its older self."""
    operator = find_operator(node.op_type, max_opset)
    if operator is None or operator.since_version < _OLDEST_CONTROL:
        return f"opset {max_opset} has no such operator, or one that means something else"
    allowed = frozenset().union(*(formal.types for formal in (*operator.inputs, *operator.outputs)))
    for name in (*node.inputs, *node.outputs):
        type_ = scope.get_type(name) if name else None
        text = None if type_ is None else onnx_spelling(type_)
        if text is not None and text not in allowed:
            return f"opset {max_opset} does not take {text}"
    return ""


def as_function(node: Node, scope: ConversionScope) -> Function:
    """Return the node as a Function with names that do not depend on its position, so that equal nodes are equal."""
    names = {name: f"i{k}" for k, name in enumerate(dict.fromkeys(n for n in node.inputs if n))}
    constants = {new: constant for old, new in names.items() if (constant := scope.constant(old)) is not None}
    outputs = {name: f"o{k}" for k, name in enumerate(node.outputs) if name}
    return Function(
        inputs=tuple(Value(new, scope.get_type(old)) for old, new in names.items() if new not in constants),
        outputs=tuple(Value(new, scope.get_type(old)) for old, new in outputs.items()),
        nodes=(
            replace(
                node,
                inputs=tuple(names.get(n, "") for n in node.inputs),
                outputs=tuple(outputs.get(n, "") for n in node.outputs),
                name="node",
                control=(),
                device="",
            ),
        ),
        constants=constants,
        opsets={"": scope.functions[-1].opset()},
    )


@lru_cache(maxsize=1024)
def convert(function: Function, max_opset: int) -> tuple[Function | None, str]:
    """Return a one-node Function converted, or the reason why it cannot be."""
    if any(value.type is None for value in function.inputs):
        return None, "the types of its inputs are not known; infer shapes first"
    if not can_propagate(function):
        return None, "its inputs are too long for onnx's converter"
    if max_opset < PER_AXIS_OPSET <= function.opset() and _is_per_axis(function):
        return None, f"before opset {PER_AXIS_OPSET} it takes all axes from the given one on together"
    model = write_model(function, function.opsets, lowest_ir(function, function.opsets), Style(carries=False))
    try:
        older = version_converter.convert_version(model, max_opset)
        shape_inference.infer_shapes(older, check_type=True, strict_mode=True)
        result = read_function(older, ExternalData())
    except Exception as error:  # noqa: BLE001  # the converter raises whatever its C++ does; all of it says that it cannot
        return None, summarize_error(error)
    if [v.name for v in result.outputs] != [v.name for v in function.outputs]:
        return None, "onnx's converter changes its outputs"
    if newest := next(newest_nodes(result, max_opset), None):
        return None, f"onnx's converter leaves {newest[1].op}"
    return result, ""


def _is_per_axis(function: Function) -> bool:
    """Whether the node is a Softmax over another axis than the last, which onnx's converter turns into something else."""
    node, type_ = function.nodes[0], function.inputs[0].type if function.inputs else None
    if node.op_type not in ("Softmax", "LogSoftmax"):
        return False
    rank = type_.rank if isinstance(type_, TensorType) else None
    return rank is None or node.attr("axis", -1) not in (-1, rank - 1)


def splice(older: Function, node: Node, fresh: FreshNames) -> Function:
    """Return the converted Function under the names of the Function around the node."""
    given = {f"i{k}": name for k, name in enumerate(dict.fromkeys(n for n in node.inputs if n))}
    names = dict(given)
    names.update((f"o{k}", name) for k, name in enumerate(node.outputs) if name)
    for own in older.value_names():
        if own not in names:
            names[own] = fresh.like(node.name)
    return Function(
        inputs=tuple(Value(names[v.name], v.type) for v in older.inputs),
        outputs=tuple(Value(names[v.name], v.type) for v in older.outputs),
        nodes=tuple(
            replace(
                part,
                inputs=tuple(names.get(n, "") for n in part.inputs),
                outputs=tuple(names.get(n, "") for n in part.outputs),
                name=node.name if part.op_type == node.op_type else "",
                control=node.control,
                device=node.device,
            )
            for part in older.nodes
        ),
        constants={names[own]: constant for own, constant in older.constants.items() if own not in given},
        opsets=older.opsets,
    )
