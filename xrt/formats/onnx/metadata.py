"""Properties without an ONNX equivalent, stored in ``metadata_props`` under ``xrt.``: control edges, aliases, devices.

They are stored on the node or graph they belong to. The metadata of a whole model is stored on the model, that of a body on
its graph, so a body's metadata cannot use the names reserved here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onnx import GraphProto, NodeProto

from xrt.errors import ModelError
from xrt.formats.onnx.names import text

if TYPE_CHECKING:
    from xrt.graph import Function, Node

__all__ = ["METADATA_IR", "needs_metadata", "read_graph", "read_node", "read_props", "write_graph", "write_node", "write_props"]

METADATA_IR = 10
"""The IR version that introduced ``metadata_props`` of nodes and graphs."""

_ALIASES, _NAME = "xrt.aliases", "xrt.name"
_CONTROL, _DEVICE = "xrt.control", "xrt.device"


def read_props(proto: Any) -> dict[str, str]:
    """The ``metadata_props`` of a message."""
    return {
        text(entry.key, "a key of the metadata"): text(entry.value, "a value of the metadata") for entry in proto.metadata_props
    }


def write_props(values: Mapping[str, str], proto: Any) -> None:
    """Append to the ``metadata_props`` of a message."""
    for key, value in values.items():
        proto.metadata_props.add(key=key, value=value)


def read_node(proto: NodeProto) -> tuple[tuple[str, ...], str]:
    """The control predecessors and the device of a node."""
    props = read_props(proto)
    if _CONTROL not in props:
        return (), props.get(_DEVICE, "")
    names = _parsed(props[_CONTROL], _CONTROL)
    if not _is_texts(names):
        raise _malformed(_CONTROL, props[_CONTROL], 'a list of node names, like ["a", "b"]')
    return tuple(names), props.get(_DEVICE, "")


def write_node(node: Node, proto: NodeProto) -> None:
    """Store the control predecessors and the device of a node."""
    if node.control:
        proto.metadata_props.add(key=_CONTROL, value=json.dumps(node.control, ensure_ascii=False))
    if node.device:
        proto.metadata_props.add(key=_DEVICE, value=node.device)


def read_graph(proto: GraphProto) -> tuple[str, tuple[tuple[str, str], ...], dict[str, str]]:
    """The name, aliases, and remaining metadata of a graph."""
    props = read_props(proto)
    name = text(props.pop(_NAME, proto.name), "the name of a graph")
    stored = props.pop(_ALIASES, "[]")
    pairs = _parsed(stored, _ALIASES)
    if not isinstance(pairs, list) or not all(_is_texts(pair) and len(pair) == 2 for pair in pairs):
        raise _malformed(_ALIASES, stored, 'a list of pairs, like [["input", "output"]]')
    return name, tuple((source, target) for source, target in pairs), props


def write_graph(function: Function, proto: GraphProto, *, with_metadata: bool) -> None:
    """Store aliases, an empty name, which ONNX does not allow, and for a body its metadata."""
    if not function.name:
        proto.metadata_props.add(key=_NAME, value="")
    if function.aliases:
        proto.metadata_props.add(key=_ALIASES, value=json.dumps(function.aliases, ensure_ascii=False))
    if not with_metadata:
        return
    reserved = function.metadata.keys() & {_NAME, _ALIASES}
    if reserved:
        raise ModelError(f"the metadata of body {function.name!r} uses {min(reserved)!r}, which is reserved for XRT's own use")
    write_props(function.metadata, proto)


def needs_metadata(function: Function) -> bool:
    """Whether the Function or a body has properties that are stored as metadata of nodes and graphs."""
    if function.aliases or not function.name:
        return True
    for _, node in function.walk():
        if node.control or node.device or any(body.metadata or needs_metadata(body) for body in node.bodies):
            return True
    return False


def _parsed(stored: str, key: str) -> Any:
    try:
        return json.loads(stored)
    except (ValueError, RecursionError):
        raise _malformed(key, stored, "JSON") from None


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _malformed(key: str, stored: str, wanted: str) -> ModelError:
    return ModelError(f"metadata {key!r} is {stored[:80]!r}; it must be {wanted}")
