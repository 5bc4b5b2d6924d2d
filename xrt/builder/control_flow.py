"""Bodies of control flow operators: traced from Python callables with the types that the operator passes, or Functions.

The shape of a loop-carried value may change between iterations. The body is then traced again with the changing extents
unknown, until its input and output types agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xrt.builder.symbol import Symbol
from xrt.errors import ModelError
from xrt.graph.function import Function
from xrt.graph.schemas import join_types
from xrt.graph.types import DType, SequenceType, TensorType, Type, Value

if TYPE_CHECKING:
    from xrt.builder.builder import Builder
    from xrt.graph.schemas import Operator


@dataclass(frozen=True, slots=True)
class TracedBodies:
    """The bodies of one operator and the types of its outputs."""

    functions: Mapping[str, Function]
    """By attribute name."""
    outputs: tuple[Type | None, ...]
    is_single: bool
    """Whether the operator returns one tensor instead of a tuple."""


Body = Callable[..., Any] | Function
Symbols = Sequence[Symbol | None]


def trace_bodies(builder: Builder, operator: Operator, inputs: Symbols, attributes: Mapping[str, Any]) -> TracedBodies:
    """Trace the bodies of an operator in `CONTROL_FLOW`; raises ModelError if one does not match the operator."""
    return CONTROL_FLOW[operator.name](builder, inputs, attributes)


def _if(builder: Builder, inputs: Symbols, attributes: Mapping[str, Any]) -> TracedBodies:
    branches = {}
    are_single = []
    for name in ("then_branch", "else_branch"):
        function, is_single = builder.body(name, attributes[name], ())
        branches[name] = function
        are_single.append(is_single)
    outputs = _join_branches(branches["then_branch"].outputs, branches["else_branch"].outputs)
    return TracedBodies(branches, outputs, all(are_single))


def _join_branches(then: Sequence[Value], other: Sequence[Value]) -> tuple[Type | None, ...]:
    if len(then) != len(other):
        raise ModelError(f"then_branch gives {len(then)} outputs and else_branch {len(other)}; they must give as many")
    for index, (a, b) in enumerate(zip(then, other, strict=True)):
        _check_same("output", index, "then_branch", a.type, "else_branch", b.type)
    return tuple(join_types(a.type, b.type) for a, b in zip(then, other, strict=True))


def _check_same(what: str, index: int, left: str, a: Type | None, right: str, b: Type | None) -> None:
    if a is not None and b is not None and join_types(a, b) is None:
        raise ModelError(f"{what} {index + 1} is {a} in {left} and {b} in {right}; the element types must be the same")


def _loop(builder: Builder, inputs: Symbols, attributes: Mapping[str, Any]) -> TracedBodies:
    # Inputs 0 and 1 are the trip count and the condition.
    carried = [None if s is None else s.type for s in inputs[2:]]
    head = [("iteration", TensorType(DType.INT64, ())), ("condition", TensorType(DType.BOOL, ()))]
    function = _trace_until_stable(builder, attributes["body"], head, carried, [], first=1)
    states, scans = _split_outputs(function, 1, len(carried))
    # The number of iterations is known only at run time.
    outputs = (*(v.type for v in states), *(_insert_axis(v.type, None, 0) for v in scans))
    return TracedBodies({"body": function}, outputs, len(outputs) == 1)


def _scan(builder: Builder, inputs: Symbols, attributes: Mapping[str, Any]) -> TracedBodies:
    if builder.version("") < 9:
        raise ModelError("a graph is traced with Scan from opset 9 on; at 8 it works on batches. Raise the graph's opset")
    count = attributes["num_scan_inputs"]
    if not isinstance(count, int) or not 0 < count <= len(inputs):
        raise ModelError(f"num_scan_inputs must be 1 to {len(inputs)}, the number of its inputs; got {count!r}")
    types = [None if s is None else s.type for s in inputs]
    carried, scanned = types[:-count], types[-count:]
    axes = attributes.get("scan_input_axes") or [0] * count
    rows = [("row", _remove_axis(t, axis)) for t, axis in zip(scanned, axes, strict=True)]
    function = _trace_until_stable(builder, attributes["body"], [], carried, rows, first=0)
    states, scans = _split_outputs(function, 0, len(carried))
    out_axes = attributes.get("scan_output_axes") or [0] * len(scans)
    first = scanned[0]
    length = first.shape[axes[0]] if isinstance(first, TensorType) and first.shape is not None else None
    # Scan stacks one row per step, so the length is that of the scanned inputs.
    stacks = (_insert_axis(v.type, length, axis) for v, axis in zip(scans, out_axes, strict=True))
    outputs = (*(v.type for v in states), *stacks)
    return TracedBodies({"body": function}, outputs, len(outputs) == 1)


def _sequence_map(builder: Builder, inputs: Symbols, attributes: Mapping[str, Any]) -> TracedBodies:
    types = [None if s is None else s.type for s in inputs]
    # Inputs that are not sequences are passed to each call unchanged.
    items = [("item", t.element if isinstance(t, SequenceType) else t) for t in types]
    function, single = builder.body("body", attributes["body"], items)
    outputs = tuple(None if v.type is None else SequenceType(v.type) for v in function.outputs)
    return TracedBodies({"body": function}, outputs, single)


CONTROL_FLOW: Mapping[str, Callable[[Builder, Symbols, Mapping[str, Any]], TracedBodies]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
}

Parameter = tuple[str, Type | None]


def _trace_until_stable(
    builder: Builder, body: Body, head: Sequence[Parameter], carried: Sequence[Type | None], tail: Sequence[Parameter], first: int
) -> Function:
    """Trace the body until the types of its carried values do not change between its inputs and outputs.

    ``head`` and ``tail`` are the parameters before and after the carried values, ``first`` is the index of the first carried
    output. Terminates because each round makes at least one extent or rank unknown.
    """
    while True:
        mark = builder.names.mark()
        function, _ = builder.body("body", body, [*head, *(("carried", t) for t in carried), *tail])
        states, _ = _split_outputs(function, first, len(carried))
        for index, (before, after) in enumerate(zip(carried, states, strict=True)):
            _check_same("carried value", index, "the input", before, "the body's output", after.type)
        widened = [b if after.type is None else join_types(b, after.type) for b, after in zip(carried, states, strict=True)]
        # A Function cannot be traced again with wider types.
        if widened == list(carried) or isinstance(body, Function):
            return function
        # The discarded trace must not use up names.
        builder.names.rewind(mark)
        carried = widened


def _split_outputs(function: Function, first: int, count: int) -> tuple[Sequence[Value], Sequence[Value]]:
    """Split the outputs of a body into carried values and scan outputs."""
    if len(function.outputs) < first + count:
        condition = "the condition and " if first else ""
        output_count = len(function.outputs)
        raise ModelError(f"the body gives {output_count} output(s); it must give {condition}{count} carried value(s) first")
    return function.outputs[first : first + count], function.outputs[first + count :]


def _insert_axis(type_: Type | None, length: Any, axis: int) -> Type | None:
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    place = axis if axis >= 0 else axis + len(type_.shape) + 1
    return type_.with_shape((*type_.shape[:place], length, *type_.shape[place:]))


def _remove_axis(type_: Type | None, axis: int) -> Type | None:
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    if not -len(type_.shape) <= axis < len(type_.shape):
        raise ModelError(f"a scan input of rank {len(type_.shape)} has no axis {axis}")
    place = axis % len(type_.shape)
    return type_.with_shape((*type_.shape[:place], *type_.shape[place + 1 :]))
