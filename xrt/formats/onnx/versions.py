"""Opset and IR versions: the lowest ones that preserve the semantics of a Function, and the bounds of old Clip operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

import numpy as np
from onnx import OperatorSetIdProto, helper

from xrt.errors import ModelError
from xrt.graph import AttrKind, DType, Function, OptionalType, TensorType, Type, find_schema, since_version
from xrt.graph.node import Node, read_attributes
from xrt.graph.schemas import latest_version
from xrt.graph.types import MapType, SequenceType

__all__ = [
    "BOUNDS_ARE_INPUTS",
    "add_clip_bounds",
    "check_same_meaning",
    "find_content_ir",
    "lowest_ir",
    "lowest_opsets",
    "newest_nodes",
    "node_ir",
    "read_clip_bounds",
]

# Before this version, initializers must also be inputs; XRT does not write them so.
INITIALISERS_IR = 4
# IR versions that introduced element types (`Version` in onnx.proto); all others are older than INITIALISERS_IR.
_DTYPE_IR = {
    DType.FLOAT8E4M3FN: 9,
    DType.FLOAT8E4M3FNUZ: 9,
    DType.FLOAT8E5M2: 9,
    DType.FLOAT8E5M2FNUZ: 9,
    DType.UINT4: 10,
    DType.INT4: 10,
    DType.FLOAT4E2M1: 11,
    DType.FLOAT8E8M0: 12,
    DType.UINT2: 13,
    DType.INT2: 13,
    DType.FLOAT6E2M3: 14,
    DType.FLOAT6E3M2: 14,
}
_OPTIONAL_IR = 8


def check_same_meaning(function: Function, opsets: Mapping[str, int]) -> None:
    """Raise ModelError unless every operator, including bodies, has the same semantics at these opsets."""
    for holder, node in function.walk():
        asked = opsets.get(node.domain)
        if asked == holder.opsets.get(node.domain):
            continue
        schema = None if asked is None else find_schema(node.op_type, asked, node.domain)
        since = since_version(node, holder)
        if schema is None or schema.since_version != since:
            domain = node.domain or "ai.onnx"
            raise ModelError(
                f"node {node.name!r} ({node.op}) means something else at opset {asked} of {domain} than at the declared "
                f"{holder.opset(node.domain)}"
            )


def lowest_opsets(function: Function) -> dict[str, int]:
    """For each domain in use, the lowest version that preserves the semantics of every operator.

    This is the maximum of `since_version`: an operator is unchanged from there to the declared version, so the maximum is in all
    of these intervals. Domains that onnx does not describe are unchanged. ai.onnx is always included, because some readers
    require it.
    """
    lowest = {"": 1}
    for holder, node in function.walk():
        since = since_version(node, holder)
        if since is None:
            since = holder.opset(node.domain)
        if since > lowest.get(node.domain, 0):
            lowest[node.domain] = since
    return lowest


def newest_nodes(function: Function, max_opset: int) -> Iterator[tuple[Function, Node, int]]:
    """Yield the ai.onnx nodes, including bodies, introduced after ``max_opset``, with their `since_version`."""
    for holder, node in function.walk():
        since = since_version(node, holder)
        if not node.domain and since is not None and since > max_opset:
            yield holder, node, since


def lowest_ir(function: Function, opsets: Mapping[str, int], *, floor: int = 0, ceiling: int | None = None) -> int:
    """The lowest IR version that can represent the contents and was released no later than these opsets.

    Pairing IR versions with opsets is a convention (each ONNX release has one of each), so ``ceiling`` overrides it.
    """
    known = [OperatorSetIdProto(domain=d, version=v) for d, v in opsets.items() if latest_version(d)]
    paired: int = helper.find_min_ir_version_for(known, ignore_unknown=True)
    if ceiling is not None:
        paired = min(paired, ceiling)
    return max(INITIALISERS_IR, floor, paired, find_content_ir(function)[0])


def find_content_ir(function: Function) -> tuple[int, str]:
    """The lowest IR version with all types in the Function, and the value that requires it."""
    return _greatest(_typed(function))


def node_ir(node: Node, function: Function) -> tuple[int, str]:
    """Like `find_content_ir`, for the values of one node including its bodies."""
    touched = ((f"value {name!r}", function.get_type(name)) for name in (*node.uses, *node.defines))
    return _greatest(chain(touched, _typed_inside(node)))


def _greatest(typed: Iterable[tuple[str, Type | None]]) -> tuple[int, str]:
    what, type_ = max(typed, key=lambda each: _type_ir(each[1]), default=("", None))
    return _type_ir(type_), f"{what} of type {type_}"


def _typed(function: Function) -> Iterator[tuple[str, Type | None]]:
    """Yield everything with a type, including bodies, with a description for errors."""
    for value in (*function.inputs, *function.outputs):
        yield f"value {value.name!r}", value.type
    for name, type_ in function.types.items():
        yield f"value {name!r}", type_
    for name, constant in function.constants.items():
        yield f"value {name!r}", constant.type
    for node in function.nodes:
        if node.attributes:
            yield from _typed_inside(node)


def _typed_inside(node: Node) -> Iterator[tuple[str, Type | None]]:
    for attribute in node.attributes:
        if attribute.kind is AttrKind.TENSOR:
            yield f"attribute {attribute.name!r} of node {node.name!r}", attribute.value.type
    for body in node.bodies:
        yield from _typed(body)


def _type_ir(type_: Type | None) -> int:
    if type(type_) is TensorType:
        return _DTYPE_IR.get(type_.dtype, INITIALISERS_IR)
    if isinstance(type_, OptionalType):
        return max(_OPTIONAL_IR, _type_ir(type_.element))
    if isinstance(type_, SequenceType):
        return _type_ir(type_.element)
    if isinstance(type_, MapType):
        return _type_ir(type_.value)
    return INITIALISERS_IR


BOUNDS_ARE_INPUTS = 11
"""The first opset with the bounds of Clip as inputs. An omitted bound is then unlimited, as in ONNX's definition."""
MOST = float(np.finfo(np.float32).max)
"""Default bound in ONNX's schema of version 6, for all element types.

It replaces infinities by a finite number, except in float16, where it is infinite.
"""


def read_clip_bounds(node: Node) -> tuple[float, float]:
    """The lower and the upper bound."""
    return float(node.attr("min", -MOST)), float(node.attr("max", MOST))


def add_clip_bounds(node: Node) -> Node:
    """Add both attributes to a Clip; returns the node unchanged if it has them."""
    if node.attr("min") is not None and node.attr("max") is not None:
        return node
    low, high = read_clip_bounds(node)
    return replace(node, attributes=read_attributes({"min": low, "max": high}))
