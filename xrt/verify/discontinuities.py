"""Where two right results may differ: the evidence for every output that a stepping operator makes.

The evidence is what the operator read when the expected result was computed, so the reference engine is asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from xrt.comparison import Ambiguity, IndexAmbiguity, StepAmbiguity
from xrt.graph import Function, Node
from xrt.verify.execution import Run, expose_inner_values

__all__ = ["find_ambiguity"]

Array: TypeAlias = np.ndarray[Any, Any]
Evidence: TypeAlias = Callable[[Node, Mapping[str, Array]], Ambiguity | None]


def find_ambiguity(function: Function, inputs: Sequence[Any], run: Run) -> list[Ambiguity | None]:
    """Return the ties that each output admits; None for one that admits none.

    Only outputs of a stepping operator admit ties: after further computation, such a difference looks like an error. ``run`` is
    how the expected outputs are computed.
    """
    makers = {v.name: function.producer(v.name) for v in function.outputs}
    stepping = {name: node for name, node in makers.items() if node is not None and node.op in _EVIDENCE}
    if not stepping:
        return [None] * len(function.outputs)
    read = list(dict.fromkeys(name for node in stepping.values() for name in node.uses))
    values = dict(zip(read, run(expose_inner_values(function, read), inputs), strict=True))
    found = {name: _EVIDENCE[node.op](node, values) for name, node in stepping.items() if _steps(node, name, values)}
    return [found.get(value.name) for value in function.outputs]


def _steps(node: Node, output: str, values: Mapping[str, Array]) -> bool:
    """Whether that output jumps: it is read from floats, and it is not the values of a TopK or a scale."""
    place = {"TopK": 1, "DynamicQuantizeLinear": 0}.get(node.op)
    return values[node.inputs[0]].dtype.kind == "f" and (place is None or output == node.outputs[place])


def _rounding(node: Node, values: Mapping[str, Array]) -> Ambiguity | None:
    return StepAmbiguity.from_rounding(values[node.inputs[0]], "halves")


def _cast(node: Node, values: Mapping[str, Array]) -> Ambiguity | None:
    """A cast between floats, or to text, does not step."""
    to_integer = node.attr("to") in _INTEGERS
    return StepAmbiguity.from_rounding(values[node.inputs[0]], "integers") if to_integer else None


def _truncation(node: Node, values: Mapping[str, Array]) -> Ambiguity | None:
    return StepAmbiguity.from_rounding(values[node.inputs[0]], "integers")


def _threshold(node: Node, values: Mapping[str, Array]) -> Ambiguity | None:
    return StepAmbiguity.from_threshold(values[node.inputs[0]], values[node.inputs[1]])


def _index(node: Node, values: Mapping[str, Array]) -> Ambiguity | None:
    read = values[node.inputs[0]]
    axis = int(node.attr("axis", -1 if node.op == "TopK" else 0))
    return IndexAmbiguity(read, axis % read.ndim)


def _quantization(node: Node, values: Mapping[str, Array]) -> Ambiguity | None:
    """A quotient that is as near to two integers becomes either."""
    x = values[node.inputs[0]].astype(np.float64)
    if node.op == "DynamicQuantizeLinear":
        return StepAmbiguity.from_rounding(x * 255 / ((x.max(initial=0) - x.min(initial=0)) or 255), "halves")
    scale = values[node.inputs[1]].astype(np.float64)
    if scale.ndim == 1 and scale.size > 1:
        shape = [1] * x.ndim
        shape[node.attr("axis", 1)] = -1
        scale = scale.reshape(shape)
    has_blocks = scale.ndim == x.ndim > 1 and scale.size > 1 and bool(node.attr("block_size", 0))
    return None if has_blocks else StepAmbiguity.from_rounding(x / scale, "halves")


_INTEGERS = (2, 3, 4, 5, 6, 7, 12, 13)
"""The numbers of ONNX's integer types."""

_EVIDENCE: dict[str, Evidence] = {
    "Round": _rounding,
    "Floor": _truncation,
    "Ceil": _truncation,
    "Cast": _cast,
    **dict.fromkeys(("QuantizeLinear", "DynamicQuantizeLinear"), _quantization),
    **dict.fromkeys(("Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal"), _threshold),
    **dict.fromkeys(("ArgMax", "ArgMin", "TopK"), _index),
}
