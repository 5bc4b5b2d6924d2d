"""The graph IR: Function, Node, Value, and their types, attributes, constants, schemas and hashes.

A model is read into nodes over named values, and becomes a frozen Function that knows its producers, users, order and
fingerprint. This package reads no files, runs no operators and does not depend on any engine.
"""

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.graph.attributes import Attribute as Attribute, AttrKind as AttrKind, FrozenDict as FrozenDict
    from xrt.graph.constants import Constant as Constant
    from xrt.graph.function import Function as Function, Use as Use
    from xrt.graph.hashing import fingerprint as fingerprint, hash_values as hash_values, shape_key as shape_key
    from xrt.graph.node import Node as Node, NodePattern as NodePattern, read_attributes as read_attributes
    from xrt.graph.schemas import (
        find_schema as find_schema,
        latest_opset as latest_opset,
        since_version as since_version,
    )
    from xrt.graph.state import State as State, declare_states as declare_states, list_states as list_states
    from xrt.graph.types import (
        Dim as Dim,
        DType as DType,
        MapType as MapType,
        OptionalType as OptionalType,
        SequenceType as SequenceType,
        Shape as Shape,
        TensorType as TensorType,
        Type as Type,
        Value as Value,
        is_static as is_static,
        may_equal as may_equal,
    )

__all__, __getattr__, __dir__ = load_lazily(__name__)
