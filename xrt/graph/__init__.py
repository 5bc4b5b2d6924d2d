"""The graph: Function, Node, Value and what they are made of.

A model comes in as nodes over named values; what goes out is a frozen Function that knows its producers, users, order
and fingerprint. Nothing here reads a file, runs an operator or knows an engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.graph.attributes import Attribute as Attribute
    from xrt.graph.attributes import AttrKind as AttrKind
    from xrt.graph.attributes import FrozenDict as FrozenDict
    from xrt.graph.constants import Constant as Constant
    from xrt.graph.function import Function as Function
    from xrt.graph.function import Use as Use
    from xrt.graph.hashing import fingerprint as fingerprint
    from xrt.graph.hashing import hash_values as hash_values
    from xrt.graph.hashing import shape_key as shape_key
    from xrt.graph.node import Node as Node
    from xrt.graph.node import NodePattern as NodePattern
    from xrt.graph.node import read_attributes as read_attributes
    from xrt.graph.schemas import find_schema as find_schema
    from xrt.graph.schemas import is_deterministic as is_deterministic
    from xrt.graph.schemas import is_training as is_training
    from xrt.graph.schemas import latest_opset as latest_opset
    from xrt.graph.schemas import since_version as since_version
    from xrt.graph.state import State as State
    from xrt.graph.state import declare_states as declare_states
    from xrt.graph.state import list_states as list_states
    from xrt.graph.types import Dim as Dim
    from xrt.graph.types import DType as DType
    from xrt.graph.types import MapType as MapType
    from xrt.graph.types import OptionalType as OptionalType
    from xrt.graph.types import SequenceType as SequenceType
    from xrt.graph.types import Shape as Shape
    from xrt.graph.types import TensorType as TensorType
    from xrt.graph.types import Type as Type
    from xrt.graph.types import Value as Value
    from xrt.graph.types import is_static as is_static

_MODULES = {
    "AttrKind": "xrt.graph.attributes",
    "Attribute": "xrt.graph.attributes",
    "Constant": "xrt.graph.constants",
    "DType": "xrt.graph.types",
    "Dim": "xrt.graph.types",
    "FrozenDict": "xrt.graph.attributes",
    "Function": "xrt.graph.function",
    "MapType": "xrt.graph.types",
    "Node": "xrt.graph.node",
    "NodePattern": "xrt.graph.node",
    "OptionalType": "xrt.graph.types",
    "SequenceType": "xrt.graph.types",
    "Shape": "xrt.graph.types",
    "State": "xrt.graph.state",
    "TensorType": "xrt.graph.types",
    "Type": "xrt.graph.types",
    "Use": "xrt.graph.function",
    "Value": "xrt.graph.types",
    "declare_states": "xrt.graph.state",
    "find_schema": "xrt.graph.schemas",
    "fingerprint": "xrt.graph.hashing",
    "hash_values": "xrt.graph.hashing",
    "is_deterministic": "xrt.graph.schemas",
    "is_static": "xrt.graph.types",
    "is_training": "xrt.graph.schemas",
    "latest_opset": "xrt.graph.schemas",
    "list_states": "xrt.graph.state",
    "read_attributes": "xrt.graph.node",
    "shape_key": "xrt.graph.hashing",
    "since_version": "xrt.graph.schemas",
}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
