"""Pad the dynamic dims of a Function: choose the dims, walk the nodes, and crop the results to their true sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.operators import SHAPE_OPERANDS, decompose_nodes
from xrt.passes import contents
from xrt.passes.contents import MOVES, PROPAGATED, propagate
from xrt.passes.extents import Extent, multiply
from xrt.passes.padding import elementwise, movement, windows  # noqa: F401  # they register their rules
from xrt.passes.padding.padder import (
    MOST_ELEMENTS,
    RULES,
    SIZE,
    Axis,
    Contents,
    PaddedTensor,
    Padder,
    PaddingRefusal,
    Unpaddable,
)
from xrt.passes.shape_inference import list_symbols

PADDED_SHAPES: Mapping[str, tuple[int, ...]] = {
    **{op: SHAPE_OPERANDS[op] for op in ("ConstantOfShape", "Expand", "Range", "Reshape", "Tile")},
    "Slice": (1, 2),
}
"""Inputs that describe shapes and so use padded sizes; in all other inputs a size is a value and must be the true one."""
SIZED = frozenset(SHAPE_OPERANDS).difference(PADDED_SHAPES, ("Squeeze", "Unsqueeze"))
"""Operators that must not read padded sizes: no rule follows these. Squeeze and Unsqueeze read axes."""


def propagate_sizes(p: Padder, node: Node) -> bool:
    """Compute the contents of a node's output if it is integer arithmetic on sizes; return whether it was.

    Such a node stays as it is, and its readers use the recorded extents.
    """
    if node.domain or not (node.op_type in _SIZES or node.op_type in PROPAGATED):
        return False
    try:
        elements = _SIZES[node.op_type](p, node) if node.op_type in _SIZES else _propagate(p, node)
    except (Unpaddable, IndexError, ValueError, TypeError, AttributeError):
        # The table checks nothing: a node that it does not cover is handled by its rule.
        return False
    if elements is None or elements.size > MOST_ELEMENTS or all(extent is None for extent in elements.flat):
        return False
    p.set_contents(node.outputs[0], elements)
    if any(extent is None for extent in elements.flat) and any(name in p.states for name in node.inputs):
        p.states[node.outputs[0]] = SIZE  # an unknown element may depend on padding
    return True


def _propagate(p: Padder, node: Node) -> Contents | None:
    """Compute the contents of a node's output with the rules of shape inference; None if they are unknown or no sizes."""
    if len(node.outputs) != 1:
        return None
    # A Concat needs the shape of a part of unknown contents. The shape of a padded input is not that of its type.
    is_typed = [node.op_type in MOVES and name not in p.states for name in node.inputs]
    types = [p.function.get_type(name) if typed else None for name, typed in zip(node.inputs, is_typed, strict=True)]
    result = (propagate(node, [_read_contents(p, name) for name in node.inputs], types, trusts_names=True) or [None])[0]
    # Sizes are integers; comparisons of sizes are booleans.
    return result.elements if result is not None and result.dtype in (DType.INT64, DType.INT32, DType.BOOL) else None


def _read_contents(p: Padder, name: str) -> contents.Contents | None:
    """The contents of an integer tensor as shape inference represents them: numbers, other extents, and None."""
    elements = p.contents(name) if name else None
    if elements is None:
        return None
    numbers = [extent if extent is None or extent.number is None else extent.number for extent in elements.flat]
    return contents.Contents(DType.INT64, np.array(numbers, object).reshape(elements.shape))


def _shape(p: Padder, node: Node) -> Contents:
    extents = [multiply(axis) for axis in p.axes(node.inputs[0])]
    return np.array(extents[slice(node.attr("start", 0), node.attr("end"))] or [], object)


def _size(p: Padder, node: Node) -> Contents:
    return np.array(multiply([multiply(axis) for axis in p.axes(node.inputs[0])]), object)


def _divide(p: Padder, node: Node) -> Contents | None:
    """Integer division: exact, or by a positive number."""

    def divide(dividend: Extent | None, divisor: Extent | None) -> Extent | None:
        if dividend is None or divisor is None:
            return None
        if (exact := dividend.divide(divisor)) is not None:
            return exact
        if divisor.number is None or divisor.number < 1:
            return None
        # Both are equal for numbers that are not negative.
        p.require(dividend)  # Div rounds towards zero, Quotient down
        return dividend // divisor.number

    dividends, divisors = map(p.contents, node.inputs)
    if dividends is None or divisors is None:
        return None
    return np.asarray(np.frompyfunc(divide, 2, 1)(dividends, divisors), object)


_SIZES: Mapping[str, Callable[[Padder, Node], Contents | None]] = {"Div": _divide, "Shape": _shape, "Size": _size}
"""Operators with a rule here: shapes consist of padded axes, and a Div adds the condition that its dividend is not negative."""


@dataclass(frozen=True)
class PaddedFunction:
    """A Function that accepts padded sizes for some of its dynamic dims."""

    function: Function
    """Its inputs are those of the model, then one int64 scalar for each dim in `fed`."""
    dims: tuple[str, ...]
    """Dims that may be padded; an unnamed extent is named by input and axis, ``x[0]``."""
    fed: tuple[str, ...]
    """Dims whose true sizes are the additional inputs."""
    axes: tuple[tuple[Axis, ...] | None, ...]
    """Extents of each output; None if padding does not affect it."""
    conditions: tuple[Extent, ...]
    """Extents that must not be negative, for both the true and the padded sizes."""
    refusals: Mapping[str, PaddingRefusal]
    """Why each of the other dims cannot be padded."""

    def allows(self, sizes: Mapping[str, int], padded: Mapping[str, int]) -> bool:
        """Whether inputs of these sizes may be padded to `padded`."""
        return all(condition.at(sizes) >= 0 and condition.at(padded) >= 0 for condition in self.conditions)

    def cut(self, results: Sequence[Any], sizes: Mapping[str, int], padded: Mapping[str, int]) -> list[Any]:
        """Crop the results to their true sizes; the arrays are contiguous copies where cropped."""
        pairs = zip(results, self.axes, strict=True)
        return [result if axes is None else _crop(result, axes, sizes, padded) for result, axes in pairs]


def _crop(result: Any, axes: Sequence[Axis], sizes: Mapping[str, int], padded: Mapping[str, int]) -> Any:
    """Crop one result to its true size. ``axes`` are its extents; the array is returned unchanged if nothing is cut."""
    changed = {name for name, size in sizes.items() if size != padded[name]}
    parts = [
        [(part.at(sizes), part.at(padded)) for part in axis] if any(part.atoms & changed for part in axis) else [(size, size)]
        for axis, size in zip(axes, result.shape, strict=True)
    ]
    # Split merged axes, crop each extent, and merge again.
    front = result.reshape([whole for axis in parts for _, whole in axis])
    front = front[tuple(slice(true) for axis in parts for true, _ in axis)]
    front = front.reshape([math.prod(true for true, _ in axis) for axis in parts])
    return result if front.shape == result.shape else np.ascontiguousarray(front)


def pad_dims(function: Function, dims: Sequence[str] | None = None) -> PaddedFunction:
    """Make a Function accept padded sizes of its dynamic dims: of `dims`, or of all.

    The leading part of each output equals the result for inputs without padding, for all inputs and all padded sizes. The walk
    is repeated once per dim that cannot be padded.
    """
    candidates = list(_list_open(function) if dims is None else dims)
    refusals, decomposed = _check_inputs(function, candidates), decompose_without_rule(function)
    while True:
        # A refused dim changes which values are padded, so walk again.
        p = Padder(decomposed, frozenset(candidates) - frozenset(refusals))
        walk(p)
        refused = [state for value in function.outputs if isinstance(state := _find_output_state(p, value), PaddingRefusal)]
        # Without dims to pad, a node that no rule can read changes nothing.
        if not refused or not p.dims:
            return _finish(p, function, {dim: refusals[dim] for dim in candidates if dim in refusals})
        for refusal in refused:
            refusals.update(dict.fromkeys((refusal.dims & p.dims) or p.dims, _name_original(refusal, decomposed, function)))


def decompose_without_rule(function: Function) -> Function:
    """Decompose the nodes without a rule that read or compute a tensor of dynamic shape."""
    from xrt.passes.decomposition import find_decomposition  # imports onnx, which a stored program does not need

    def decompose(node: Node, holder: Function) -> Function | None:
        if node.op in RULES or (not node.domain and node.op_type in PROPAGATED):
            return None
        types = (holder.get_type(name) for name in (*node.uses, *node.defines))
        is_static = all(isinstance(type_, TensorType) and type_.is_static for type_ in types)
        return None if is_static else find_decomposition(node, holder)

    return decompose_nodes(function, decompose)


def _name_original(refusal: PaddingRefusal, decomposed: Function, function: Function) -> PaddingRefusal:
    """Name the node of the model in a refusal, instead of the node of its decomposition.

    The values of a decomposition are called ``<output>/replaced/...``.
    """
    value = next((name for node in decomposed.nodes if node.name == refusal.node for name in node.defines), "")
    node = function.producer(value) or function.producer(value.partition("/replaced/")[0])
    if node is None or (node.name, node.op) == (refusal.node, refusal.op):
        return refusal
    return PaddingRefusal(node.name, node.op, f"in its decomposition, {refusal.op}: {refusal.reason}", refusal.dims)


def _list_open(function: Function) -> dict[str, None]:
    """Dynamic dims of the inputs."""
    dims: dict[str, None] = {}
    for value in function.inputs:
        for axis, dim in enumerate(value.type.shape or () if isinstance(value.type, TensorType) else ()):
            if not isinstance(dim, int):
                dims[dim or f"{value.name}[{axis}]"] = None
    return dims


def _check_inputs(function: Function, dims: Sequence[str]) -> dict[str, PaddingRefusal]:
    """The refusals, by dim, of inputs that cannot be padded: those updated in place and those that are not tensors."""
    updated = {before for before, _ in function.aliases}
    out: dict[str, PaddingRefusal] = {}
    for value in function.inputs:
        # A caller sees updates in its own buffer, and padding would make a copy.
        reason = "" if isinstance(value.type, TensorType) else f"input {value.name!r} is {value.type}, which is not padded"
        if value.name in updated:
            reason = f"input {value.name!r} is updated in place, and padding is a copy"
        if reason:
            names = frozenset(list_symbols(Function((value,), ()))) & {*dims}
            out |= dict.fromkeys(names, PaddingRefusal("", "", reason, names))
    return out


def _find_output_state(p: Padder, value: Value) -> object:
    """The state of an output; a PaddingRefusal if the output cannot be cropped to its true size."""
    state, node = p.states.get(value.name), p.function.producer(value.name)
    name, op = (node.name, node.op) if node else ("", "")
    if state is SIZE:
        return PaddingRefusal(name, op, "its result is a size", p.dims)
    for axis in state.axes if isinstance(state, PaddedTensor) else ():
        # Cropping happens outside of the program, with sizes computed from those of the inputs.
        if p.is_padded(axis) and not all(p.is_known(part) for part in axis):
            dims = frozenset().union(*(part.atoms for part in axis)) & p.dims
            return PaddingRefusal(name, op, f"the extent {'*'.join(map(str, axis))} of its result is known only in a call", dims)
    return state


def walk(p: Padder) -> None:
    """Register the inputs, then visit each node."""
    for value in p.function.inputs:
        p.open_input(value)
    for node in p.function.nodes:
        p.nodes.append(_visit_node(p, node))


def _visit_node(p: Padder, node: Node) -> Node:
    """Return the replacement of a node and record the state of its outputs."""
    states = [p.states[name] for name in node.uses if name in p.states]
    refusal = next((state for state in states if isinstance(state, PaddingRefusal)), None)
    if refusal is None:
        try:
            if propagate_sizes(p, node):
                return node
            return _apply_rule(p, node) if states else _record_extents(p, node)
        except Unpaddable as error:
            dims = error.dims or frozenset().union(*(_find_dims(p, state) for state in states))
            refusal = PaddingRefusal(node.name, node.op, error.reason, dims)
        except (IndexError, ValueError, TypeError, AttributeError, KeyError):
            # Rules index attributes and shapes without checks; a malformed node ends here.
            refusal = PaddingRefusal(node.name, node.op, "its inputs do not have the form that the rule knows", p.dims)
    p.states.update(dict.fromkeys(node.defines, refusal))
    return node


def _record_extents(p: Padder, node: Node) -> Node:
    """Record the extents of outputs that padding does not affect, where a rule can derive them; return the node unchanged."""
    rule = RULES.get(node.op)
    if rule is not None and not node.bodies:
        with suppress(Unpaddable, IndexError, ValueError, TypeError, AttributeError, KeyError):
            rule(p, node)
    return node


def _find_dims(p: Padder, state: object) -> frozenset[str]:
    if not isinstance(state, PaddedTensor):
        return p.dims
    return frozenset().union(*(part.atoms for axis in state.axes for part in axis)) & p.dims


def _apply_rule(p: Padder, node: Node) -> Node:
    """Apply the rule of a node that reads padded values or sizes; return its replacement."""
    if node.bodies:
        raise Unpaddable("what its body does with padded values is not followed")
    rule = p.rules.get(node.name) or RULES.get(node.op)
    if rule is None:
        raise Unpaddable("there is no rule for its operator")
    shapes = () if node.domain else PADDED_SHAPES.get(node.op_type, ())
    if node.op_type in SIZED and any(p.states.get(name) is SIZE for name in node.inputs):
        raise Unpaddable("the shape of its result depends on a size in a way that is not followed")
    names = [
        x if p.states.get(x) is not SIZE else p.shape_operand(x) if n in shapes else p.exact(x) for n, x in enumerate(node.inputs)
    ]
    node = replace(node, inputs=tuple(names))
    if not any(name in p.states for name in names):
        return node
    # A rule returns None if the node can stay as it is.
    replacement: Node | None = rule(p, node)
    return node if replacement is None else replacement


def _finish(p: Padder, original: Function, refusals: Mapping[str, PaddingRefusal]) -> PaddedFunction:
    """Assemble the padded Function, with inputs for the true sizes that it reads."""
    function = p.function
    sizes = tuple(Value(name, TensorType(DType.INT64, ())) for name in p.fed.values())
    states = [p.states.get(value.name) for value in function.outputs]
    padded = function.replace(
        inputs=(*function.inputs, *sizes), nodes=tuple(p.nodes), constants={**function.constants, **p.constants}
    )
    return PaddedFunction(
        padded if p.dims else original,
        tuple(sorted(p.dims)),
        tuple(p.fed),
        tuple(state.axes if isinstance(state, PaddedTensor) else None for state in states),
        tuple(p.conditions),
        refusals,
    )
