"""What ONNX infers of a whole Function, merged with what the model declares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from xrt.formats.onnx.inference import InferredTypes, infer_types
from xrt.graph import Dim, Function, Node, OptionalType, SequenceType, TensorType, Type, Value, since_version
from xrt.passes.symbolic_dims import list_symbols

__all__ = ["combine", "infer_by_onnx"]


def infer_by_onnx(function: Function) -> Function:
    """Return the Function with the types that onnx infers; declarations count as `xrt.passes.infer_shapes` says. Linear."""
    symbols = frozenset(list_symbols(function))
    inferred = infer_types(_without_claims(function), symbols)
    if inferred is None:
        return function
    merged = _merged(function, inferred)
    if _declares_more(function, inferred):
        # The declaration knows what the operators do not say; what follows from it is still to be found.
        again = infer_types(merged, symbols)
        merged = merged if again is None else _merged(merged, again)
    return function if merged == function else merged


def _without_claims(function: Function) -> Function:
    """Return the Function without what it declares about values that onnx can judge by itself."""
    types = {name: type_ for name, type_ in function.types.items() if not _is_judged(name, function)}
    outputs = [Value(v.name) if _is_judged(v.name, function) else _as_defined(v, function) for v in function.outputs]
    return function.with_types(types, outputs, _changed(function, [node.map_bodies(_without_claims) for node in function.nodes]))


def _as_defined(value: Value, function: Function) -> Value:
    """Return an output that is an input or a constant with its type: of two declarations onnx heeds the last that it meets."""
    if value.name in function.constants:
        return Value(value.name, function.constants[value.name].type)
    return next((given for given in function.inputs if given.name == value.name), value)


def _is_judged(name: str, function: Function) -> bool:
    """Whether the value comes from an operator that onnx describes."""
    node = function.producer(name)
    return node is not None and since_version(node, function) is not None


def _changed(function: Function, nodes: list[Node]) -> list[Node] | None:
    """Return the nodes, None where they are the Function's own."""
    return None if all(new is old for new, old in zip(nodes, function.nodes, strict=True)) else nodes


def _merged(function: Function, inferred: InferredTypes) -> Function:
    """Return the Function with what is inferred about its outputs and inner values."""
    types = dict(function.types)
    for name in _inner_values(function):
        type_ = combine(inferred.types.get(name), types.get(name))
        if type_ is not None:
            types[name] = type_
    outputs = [_merged_value(value, inferred) for value in function.outputs]
    nodes = [_with_merged_bodies(node, inferred) for node in function.nodes]
    return function.with_types(types, outputs, _changed(function, nodes))


def _merged_value(value: Value, inferred: InferredTypes) -> Value:
    return Value(value.name, combine(inferred.types.get(value.name), value.type))


def _inner_values(function: Function) -> Iterator[str]:
    outputs = {value.name for value in function.outputs}
    return (name for node in function.nodes for name in node.outputs if name and name not in outputs)


def _with_merged_bodies(node: Node, inferred: InferredTypes) -> Node:
    if not node.attributes:
        return node
    bodies = iter(inferred.bodies.get(node.name, ()))
    return node.map_bodies(lambda body: _merged_body(body, next(bodies)))


def _merged_body(body: Function, inferred: InferredTypes) -> Function:
    """Return the body merged; its inputs too, as the node around it decides what they are."""
    inputs = tuple(_merged_value(value, inferred) for value in body.inputs)
    merged = _merged(body, inferred)
    return merged if inputs == body.inputs else merged.replace(inputs=inputs)


def _declares_more(function: Function, inferred: InferredTypes) -> bool:
    """Whether a declaration of an inner value, in bodies too, says what the operators do not."""
    for name, declared in function.types.items():
        found = inferred.types.get(name)
        if _is_judged(name, function) and combine(found, declared) != found:
            return True
    return any(
        _declares_more(body, inner)
        for node in function.nodes
        if node.bodies
        for body, inner in zip(node.bodies, inferred.bodies[node.name], strict=True)
    )


def combine(inferred: Type | None, declared: Type | None) -> Type | None:
    """Return all that two sources know of one value; where they contradict each other, what is inferred."""
    if inferred is None or inferred == declared:
        return declared  # the same object where it is the same type: comparing it with itself is quick
    if declared is None:
        return inferred
    if isinstance(inferred, TensorType) and isinstance(declared, TensorType):
        return _combine_tensors(inferred, declared)
    if isinstance(inferred, SequenceType | OptionalType) and type(inferred) is type(declared):
        element = combine(inferred.element, declared.element)
        return inferred if element is None else replace(inferred, element=element)
    return inferred


def _combine_tensors(inferred: TensorType, declared: TensorType) -> TensorType:
    if inferred.dtype is not declared.dtype or declared.shape is None:
        return inferred
    if inferred.shape is None:
        return declared
    if len(inferred.shape) != len(declared.shape):
        return inferred
    return TensorType(inferred.dtype, tuple(map(_combine_dims, inferred.shape, declared.shape)))


def _combine_dims(inferred: Dim, declared: Dim) -> Dim:
    if isinstance(inferred, int) or declared is None:
        return inferred
    return declared
