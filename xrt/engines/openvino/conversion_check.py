"""Whether OpenVINO's frontend converts one node: its own answer, and what can be read off the model that it makes.

The frontend takes any opset, ignores inputs and attributes that it does not know of, and says nothing. What a node's inputs
and outputs have become tells some of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from xrt.engines.openvino.errors import summarize_error
from xrt.engines.openvino.export import read_model
from xrt.engines.openvino.library import LIBRARY
from xrt.engines.openvino.values import type_from
from xrt.engines.toolkit.node_query import NodeQuery
from xrt.graph import Constant, Function, Node, TensorType, Value, since_version

__all__ = ["check_conversion"]

REMEMBERED = 8192
"""Nodes whose answers are kept."""
SMALL = 64
"""Elements up to which a constant is an axis, a shape or a scale, rather than a weight."""

_IMMATERIAL = frozenset({"CastLike", "Dropout", "EyeLike", "ConstantOfShape"})
"""Operators whose further inputs say something that is known without their values."""


def check_conversion(node: Node, function: Function) -> str | None:
    """Return why the frontend does not convert the node as a Function of its own, or converts another; None when it does.

    Costs about a millisecond for the first node of a kind. The types of inputs must be known.
    """
    tensors = [name for name in node.outputs if isinstance(function.get_type(name) if name else None, TensorType)]
    version = since_version(node, function) or function.opsets[""]
    return _answer(NodeQuery.of(node, function, version, _find_constant, tensors))


def _find_constant(name: str, function: Function) -> Constant | None:
    """Return a small constant; None for other values."""
    constant = function.constants.get(name)
    return constant if constant is not None and constant.array.size <= SMALL else None


@lru_cache(maxsize=REMEMBERED)
def _answer(question: NodeQuery) -> str | None:
    alone = question.to_function()
    try:
        model = read_model(alone)
    except (RuntimeError, ValueError, TypeError) as error:
        return f"{LIBRARY} does not convert this {question.op_type}: {summarize_error(error)}"
    return _ignored(question, alone, model) or _disagreement(question, alone.outputs, model)


def _ignored(question: NodeQuery, alone: Function, model: Any) -> str | None:
    """Return that the frontend dropped an input, so that whatever it says does not matter; None where it must not."""
    kept = len(model.get_parameters())
    holds_nothing = sum(1 for value in alone.inputs if isinstance(value.type, TensorType) and value.type.nbytes == 0)
    if kept >= len(alone.inputs) - holds_nothing or question.op_type in _IMMATERIAL:
        return None
    return f"{LIBRARY} ignores an input of this {question.op_type}: it keeps {kept} of {len(alone.inputs)}"


def _disagreement(question: NodeQuery, outputs: Sequence[Value], model: Any) -> str | None:
    for port, value in zip(model.outputs, outputs, strict=True):
        got, want = type_from(port.element_type, port.partial_shape), value.type
        if got is None or not _agrees(got, want):
            shown = got or port.element_type.get_type_name()
            return f"{LIBRARY} takes the result of this {question.op_type} for {shown}, where ONNX says {want}"
    return None


def _agrees(got: TensorType, want: Any) -> bool:
    if got.dtype is not want.dtype or got.shape is None or want.shape is None:
        return got.dtype is want.dtype
    both = zip(got.shape, want.shape, strict=False)
    return len(got.shape) == len(want.shape) and all(g == w for g, w in both if isinstance(g, int) and isinstance(w, int))
