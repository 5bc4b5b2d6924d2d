"""The graph: Function, Node, Value and what they are made of.

A model comes in as nodes over named values; what goes out is a frozen Function that knows its producers, users, order
and fingerprint. Nothing here reads a file, runs an operator or knows an engine.
"""

from xrt.graph.attributes import Attribute, AttrKind
from xrt.graph.constants import Constant
from xrt.graph.dtypes import DType
from xrt.graph.frozen import FrozenDict
from xrt.graph.function import Function, Use
from xrt.graph.hashing import fingerprint, shape_key
from xrt.graph.node import Node, attributes_of
from xrt.graph.schemas import is_deterministic, is_training, latest_opset, schema_of, since_version
from xrt.graph.types import Dim, MapType, OptionalType, SequenceType, Shape, TensorType, Type, Value, is_static

__all__ = [
    "AttrKind",
    "Attribute",
    "Constant",
    "DType",
    "Dim",
    "FrozenDict",
    "Function",
    "MapType",
    "Node",
    "OptionalType",
    "SequenceType",
    "Shape",
    "TensorType",
    "Type",
    "Use",
    "Value",
    "attributes_of",
    "fingerprint",
    "is_deterministic",
    "is_static",
    "is_training",
    "latest_opset",
    "schema_of",
    "shape_key",
    "since_version",
]
