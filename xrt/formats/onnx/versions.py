"""Opset and IR versions: at which ones a Function means the same, and which is the lowest."""

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

INITIALISERS_IR = 4
"""The IR version since which an initialiser need not be an input too, which is how XRT writes them."""
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
"""The IR version that brought an element type (onnx.proto, `Version`); 4 or less for all others."""
_OPTIONAL_IR = 8


def check_same_meaning(function: Function, opsets: Mapping[str, int]) -> None:
    """Raise ModelError unless every operator, bodies included, means the same at these opsets as at the declared ones."""
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
    """Return, for each domain in use, the lowest version at which every operator means what it means at the declared one.

    That is the newest `since_version` among them: each operator keeps its meaning from its own one to the declared version, so
    the newest is in all of these intervals. Domains that onnx does not describe stay as declared. The result always contains
    ai.onnx, since some readers require it.
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
    """Yield each node of ai.onnx, bodies included, whose present meaning is newer than a version, and since when it is."""
    for holder, node in function.walk():
        since = since_version(node, holder)
        if not node.domain and since is not None and since > max_opset:
            yield holder, node, since


def lowest_ir(function: Function, opsets: Mapping[str, int], *, floor: int = 0, ceiling: int | None = None) -> int:
    """Return the lowest IR version that has words for the content, and that came no later than these opsets.

    The pairing with opsets is a custom (each release of ONNX has one of each) and no rule: it yields to the ceiling.
    """
    known = [OperatorSetIdProto(domain=d, version=v) for d, v in opsets.items() if latest_version(d)]
    paired: int = helper.find_min_ir_version_for(known, ignore_unknown=True)
    if ceiling is not None:
        paired = min(paired, ceiling)
    return max(INITIALISERS_IR, floor, paired, find_content_ir(function)[0])


def find_content_ir(function: Function) -> tuple[int, str]:
    """Return the lowest IR version that has words for every type in the Function, and which value needs it."""
    return _greatest(_typed(function))


def node_ir(node: Node, function: Function) -> tuple[int, str]:
    """Return the same for one node, bodies included, and the values that it touches."""
    touched = ((f"value {name!r}", function.get_type(name)) for name in (*node.uses, *node.defines))
    return _greatest(chain(touched, _typed_inside(node)))


def _greatest(typed: Iterable[tuple[str, Type | None]]) -> tuple[int, str]:
    what, type_ = max(typed, key=lambda each: _type_ir(each[1]), default=("", None))
    return _type_ir(type_), f"{what} of type {type_}"


def _typed(function: Function) -> Iterator[tuple[str, Type | None]]:
    """Yield everything in the Function that has a type, bodies included, and what to call it."""
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
"""The first opset in which they are. There one that is left out bounds nothing, as in the operator's own function body."""
MOST = float(np.finfo(np.float32).max)
"""What ONNX's schema of version 6 has for a bound that is left out, in every element type: it makes a number of an infinity, but
in float16, where it is one.
"""


def read_clip_bounds(node: Node) -> tuple[float, float]:
    """Return the lower and the upper bound."""
    return float(node.attr("min", -MOST)), float(node.attr("max", MOST))


def add_clip_bounds(node: Node) -> Node:
    """Return the Clip with both of its attributes; itself where it has them."""
    if node.attr("min") is not None and node.attr("max") is not None:
        return node
    low, high = read_clip_bounds(node)
    return replace(node, attributes=read_attributes({"min": low, "max": high}))
