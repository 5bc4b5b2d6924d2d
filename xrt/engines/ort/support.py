"""Whether ONNX Runtime supports a node.

Checks, in order: known issues (`tables`), types of inputs and outputs, opset, the library's schema and attributes, and kernels
for the types. Without a kernel the library may still expand a function or cast to a type that has one; then a session of the node
alone decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

from xrt.engines.ort.executable import why_not_carried
from xrt.engines.ort.export import export_model
from xrt.engines.ort.session import (
    LIBRARY,
    OrtKernelDef,
    OrtParameter,
    OrtSchema,
    kernels,
    newest_opset,
    plain_type,
    schema,
    type_name,
    why_not_opened,
)
from xrt.engines.ort.tables import find_known_issue
from xrt.engines.toolkit.node_query import close_over
from xrt.formats.onnx import why_not_downgradable
from xrt.graph import Constant, Function, Node, OptionalType, SequenceType, TensorType, Type, Value, since_version

__all__ = ["check_conversion", "why_not"]

Types: TypeAlias = tuple[str | None, ...]
Bound: TypeAlias = Mapping[str, frozenset[str]]

_CPU = "CPUExecutionProvider"
_WITHOUT_KERNEL = frozenset({"Constant"})
"""Operators that the library replaces while it reads a model."""
_CHECKED_AT_OPENING = frozenset({"StringNormalizer"})
"""Operators whose kernels check attributes against the system (its locales) when a session opens."""


def why_not(node: Node, function: Function, providers: tuple[str, ...]) -> str | None:
    """Explain why ONNX Runtime does not support the node with those execution providers; None if it does."""
    if node.domain not in function.opsets:
        return f"the function imports no opset for domain {node.domain!r}"
    reason = why_not_downgradable(node, function, newest_opset())
    if reason:
        return f"{LIBRARY} reads opsets up to {newest_opset()}: {reason}"
    return _why_not_inside(node, function, providers)


def _why_not_inside(node: Node, function: Function, providers: tuple[str, ...]) -> str | None:
    """Explain for the node, then for the nodes in its bodies, which see the types of outer values."""
    reason = _why_not_itself(node, function, providers)
    if reason or not node.bodies:
        return reason
    for body in node.bodies:
        closed = close_over(body, function)
        for inner in closed.nodes:
            reason = _why_not_inside(inner, closed, providers)
            if reason:
                return f"in its body, node {inner.name!r} ({inner.op}): {reason}"
    return None


def _why_node_has_no_kernel(
    node: Node, function: Function, inputs: Types, outputs: Types, providers: tuple[str, ...]
) -> str | None:
    attributes = tuple(attribute.name for attribute in node.attributes)
    return _why_no_kernel(node.domain, node.op_type, _since(node, function), inputs, outputs, attributes, providers)


def _why_not_itself(node: Node, function: Function, providers: tuple[str, ...]) -> str | None:
    reason = find_known_issue(node, function) or _why_not_crossing(node, function)
    if reason:
        return reason
    inputs, outputs = _names(node.inputs, function), _names(node.outputs, function)
    reason = _why_node_has_no_kernel(node, function, inputs, outputs, providers)
    # The list of kernels decides if there is a kernel; only otherwise a session is tried.
    if reason is None and node.op not in _CHECKED_AT_OPENING:
        return None
    # A trial session needs the types of all inputs.
    if any(name and type_ is None for name, type_ in zip(node.inputs, inputs, strict=True)):
        return reason
    refusal = check_conversion(node, function, providers)
    return None if refusal is None else _joined(reason, refusal, node)


def _why_not_crossing(node: Node, function: Function) -> str | None:
    """Explain why a value of the node cannot be an input or output, as required if the node forms a region alone."""
    for name in (*node.uses, *node.defines):
        reason = None if name in function.constants else why_not_carried(name, function.get_type(name))
        if reason:
            return reason
    return None


def _since(node: Node, function: Function) -> int:
    """The version that introduced the operator's current definition, by onnx or, in other domains, by the library."""
    since = since_version(node, function)
    if since is not None:
        return since
    version = function.opsets.get(node.domain, 1)
    definition = schema(node.domain, node.op_type, version)
    return definition.since if definition else version


def _names(values: Sequence[str], function: Function) -> Types:
    types = map(function.get_type, values)
    return tuple(None if type_ is None else type_name(type_) for type_ in types)


def _joined(reason: str | None, refusal: str, node: Node) -> str:
    """Combine the reason from the list of kernels with the error of the trial session."""
    if reason is None:
        return refusal
    # The library expanded the node as a function and lacks a kernel inside.
    missing = re.search(r"implementation for (\w+)\(\d+\)", refusal)
    if missing and missing[1] != node.op_type:
        return f"{reason}, and to expand it none for {missing[1]} on these types"
    return reason


# ---------------------------------------------------------------------- what the list of kernels says


@lru_cache(maxsize=16384)
def _why_no_kernel(
    domain: str, op_type: str, since: int, inputs: Types, outputs: Types, attributes: tuple[str, ...], providers: tuple[str, ...]
) -> str | None:
    """Explain why no kernel of the providers supports the operator with these types; unknown types count as supported."""
    op = f"{domain}.{op_type}" if domain else op_type
    if op in _WITHOUT_KERNEL:
        return None
    definition = schema(domain, op_type, since)
    if definition is None:
        return f"{LIBRARY} does not know {op}"
    unread = sorted(set(attributes) - definition.attributes)
    if unread:
        return f"{LIBRARY} knows {op} as of opset {definition.since}, which has no attribute {unread[0]!r}"
    served = [k for k in kernels(domain, op_type) if k.serves(definition.since) and k.provider in (*providers, _CPU)]
    if definition.deprecated or not served:
        return f"{LIBRARY} has no kernel for {op} as of opset {since}"
    bound = _bound(definition, inputs, outputs)
    if any(all(bound[name] <= types for name, types in k.types.items() if name in bound) for k in served):
        return None
    return f"{LIBRARY} computes {op} {_for_which_types(definition, served, bound)}"


def _bound(definition: OrtSchema, inputs: Types, outputs: Types) -> Bound:
    """Types by constraint and by parameter name: kernels refer to either."""
    constraints: dict[str, set[str]] = {}
    for formal, type_ in (*_paired(definition.inputs, inputs), *_paired(definition.outputs, outputs)):
        if type_ is not None:
            constraints.setdefault(formal.constraint, set()).add(type_)
            constraints.setdefault(formal.name, set()).add(type_)
    return {name: frozenset(types) for name, types in constraints.items()}


def _paired(formals: Sequence[OrtParameter], types: Types) -> Iterator[tuple[OrtParameter, str | None]]:
    """Pair each type with its formal parameter; the last one is variadic."""
    for index, type_ in enumerate(types):
        if formals:
            yield formals[min(index, len(formals) - 1)], type_


def _for_which_types(definition: OrtSchema, served: Sequence[OrtKernelDef], bound: Bound) -> str:
    """The supported and the actual types of the first constraint that no kernel satisfies."""
    for name, types in bound.items():
        offered: frozenset[str] = frozenset().union(*(kernel.types[name] for kernel in served if name in kernel.types))
        if offered and not types <= offered:
            return f"for {_parameter(definition, name)} of {_listed(offered)}, and here it is {_listed(types)}"
    names = sorted({name for kernel in served for name in kernel.types} & set(bound))
    return f"for other types together than {', '.join(f'{_parameter(definition, n)} of {_listed(bound[n])}' for n in names)}"


def _parameter(definition: OrtSchema, constraint: str) -> str:
    """The first parameter with this constraint."""
    return next(f.name for f in (*definition.inputs, *definition.outputs) if constraint in (f.constraint, f.name))


def _listed(types: frozenset[str]) -> str:
    return ", ".join(sorted(plain_type(name) for name in types))


# ---------------------------------------------------------------------- a session over the node alone

REMEMBERED = 4096
"""Cached answers, for nodes that differ in more than their shapes."""
SMALL = 64
"""Constants up to this many elements are axes, shapes or scales, not weights."""


class SessionQuery:
    """A one-node Function as a cache key, compared by fingerprint."""

    __slots__ = ("function",)

    def __init__(self, function: Function) -> None:
        self.function = function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SessionQuery) and self.function.fingerprint == other.function.fingerprint

    def __hash__(self) -> int:
        return hash(self.function.fingerprint)


def check_conversion(node: Node, function: Function, providers: tuple[str, ...]) -> str | None:
    """Explain why the library rejects the node in isolation; None if it opens a session.

    Takes about a millisecond, to open the session, for the first node of a kind.
    """
    read = dict.fromkeys(node.uses)
    constants = {name: function.constants[name] for name in read if _is_small(function.constants.get(name))}
    inputs = tuple(Value(name, _known_any_size(function.get_type(name))) for name in read if name not in constants)
    outputs = tuple(Value(name, _known_any_size(function.get_type(name))) for name in node.defines)
    alone = Function(inputs, outputs, (replace(node, control=()),), constants, function.opsets)
    return _answer(SessionQuery(alone), providers)


def _is_small(constant: Constant | None) -> bool:
    """Whether support may depend on the constant. Large ones would only make each node a separate cache entry."""
    return constant is not None and constant.array.size <= SMALL


@lru_cache(maxsize=REMEMBERED)
def _answer(kind: SessionQuery, providers: tuple[str, ...]) -> str | None:
    try:
        handed = export_model(kind.function)
    except ValueError as error:  # ModelError, or a name that is not valid UTF-8
        return str(error)
    return why_not_opened(handed, providers)


def _known_any_size(type_: Type | None) -> Type | None:
    return None if type_ is None else _any_size(type_)


def _any_size(type_: Type) -> Type:
    """The type with unknown extents, so that nodes of different sizes share a cache entry."""
    if isinstance(type_, TensorType):
        return type_ if type_.shape is None else type_.with_shape((None,) * len(type_.shape))
    if isinstance(type_, SequenceType):
        return SequenceType(_any_size(type_.element))
    if isinstance(type_, OptionalType):
        return OptionalType(_any_size(type_.element))
    return type_
