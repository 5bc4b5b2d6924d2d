"""Pad the dynamic dims of a Function: choose the dims, apply the padding rules, and crop the results to their unpadded sizes."""

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
    MAX_TRACKED_ELEMENTS,
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
"""Operator to the indices of its shape operands, which use padded sizes. An operand that is not listed uses unpadded sizes."""
UNSUPPORTED_SHAPE_OPERANDS = frozenset(SHAPE_OPERANDS).difference(PADDED_SHAPES, ("Squeeze", "Unsqueeze"))
"""Operators whose padding rule does not support padded sizes in the shape operand. Squeeze and Unsqueeze have axes there."""


def propagate_sizes(p: Padder, node: Node) -> bool:
    """Record the contents of a node's output, and return True, if the node computes sizes from known sizes.

    The node needs no replacement, because the nodes that read its output use the recorded extents. The state of the
    output is `SIZE` if padding changes an element, or may change an unknown one.
    """
    if node.domain or not (node.op_type in _SIZES or node.op_type in PROPAGATED):
        return False
    try:
        elements = _SIZES[node.op_type](p, node) if node.op_type in _SIZES else _propagate(p, node)
    except (Unpaddable, IndexError, ValueError, TypeError, AttributeError):
        # The functions of the table do not validate the node. If they cannot handle it, its padding rule is applied.
        return False
    if elements is None or elements.size > MAX_TRACKED_ELEMENTS or all(extent is None for extent in elements.flat):
        return False
    p.set_contents(node.outputs[0], elements)
    if any(extent is None for extent in elements.flat) and any(name in p.states for name in node.inputs):
        p.states[node.outputs[0]] = SIZE  # an unknown element may depend on padding
    return True


def _propagate(p: Padder, node: Node) -> Contents | None:
    """Compute the contents of a node's output with the rules of shape inference. None if unknown, or not integer or boolean."""
    if len(node.outputs) != 1:
        return None
    # Operators that move elements, such as Concat, also support an input with unknown elements, of which only the shape is known.
    # The declared shape of a padded input is not its shape.
    types = [p.function.get_type(name) if node.op_type in MOVES and name not in p.states else None for name in node.inputs]
    outputs = propagate(node, [_read_contents(p, name) for name in node.inputs], types, trusts_names=True)
    result = outputs[0] if outputs else None
    # Sizes are integers; comparisons of sizes are booleans.
    return result.elements if result is not None and result.dtype in (DType.INT64, DType.INT32, DType.BOOL) else None


def _read_contents(p: Padder, name: str) -> contents.Contents | None:
    """Find the contents of an integer tensor, with ints for known Extents as in shape inference; None if they are unknown."""
    extents = p.find_contents(name) if name else None
    if extents is None:
        return None
    elements = [extent if extent is None or extent.number is None else extent.number for extent in extents.flat]
    return contents.Contents(DType.INT64, np.array(elements, object).reshape(extents.shape))


def _shape(p: Padder, node: Node) -> Contents:
    extents = [multiply(axis) for axis in p.get_axes(node.inputs[0])]
    return np.array(extents[slice(node.attr("start", 0), node.attr("end"))] or [], object)


def _size(p: Padder, node: Node) -> Contents:
    return np.array(multiply([multiply(axis) for axis in p.get_axes(node.inputs[0])]), object)


def _divide(p: Padder, node: Node) -> Contents | None:
    """Divide sizes elementwise: exactly if possible, otherwise rounded down if the divisor is a positive number."""

    def divide(dividend: Extent | None, divisor: Extent | None) -> Extent | None:
        if dividend is None or divisor is None:
            return None
        if (exact := dividend.divide(divisor)) is not None:
            return exact
        if divisor.number is None or divisor.number < 1:
            return None
        # Div rounds towards zero, and a Quotient down: equal if the dividend is not negative.
        p.require_nonnegative(dividend)
        return dividend // divisor.number

    dividends, divisors = map(p.find_contents, node.inputs)
    if dividends is None or divisors is None:
        return None
    return np.asarray(np.frompyfunc(divide, 2, 1)(dividends, divisors), object)


_SIZES: Mapping[str, Callable[[Padder, Node], Contents | None]] = {"Div": _divide, "Shape": _shape, "Size": _size}
"""Operators on sizes that shape inference would not handle correctly: Shape and Size read padded axes, Div needs a condition."""


@dataclass(frozen=True)
class PaddedFunction:
    """A Function that accepts padded sizes for some of its dynamic dims."""

    function: Function
    """Its inputs are those of the model, followed by one int64 scalar for each dim in `fed`."""
    dims: tuple[str, ...]
    """Dims that may be padded. An unnamed dim is called by input and axis: ``x[0]``."""
    fed: tuple[str, ...]
    """Dims whose unpadded sizes are passed as the additional inputs."""
    axes: tuple[tuple[Axis, ...] | None, ...]
    """The axes of each output; None for an output that padding does not affect."""
    conditions: tuple[Extent, ...]
    """Extents that must not be negative, for unpadded and for padded sizes."""
    refusals: Mapping[str, PaddingRefusal]
    """For the requested dims that are not in `dims`: dim to the reason why it cannot be padded."""

    def allows(self, sizes: Mapping[str, int], padded: Mapping[str, int]) -> bool:
        """Whether inputs may be padded from the sizes of their dims, ``sizes``, to the sizes `padded`."""
        return all(condition.evaluate(sizes) >= 0 and condition.evaluate(padded) >= 0 for condition in self.conditions)

    def cut(self, results: Sequence[Any], sizes: Mapping[str, int], padded: Mapping[str, int]) -> list[Any]:
        """Crop the results of a call that was padded from `sizes` to `padded`. Cropped arrays are contiguous copies."""
        pairs = zip(results, self.axes, strict=True)
        return [result if axes is None else _crop(result, axes, sizes, padded) for result, axes in pairs]


def _crop(result: Any, axes: Sequence[Axis], sizes: Mapping[str, int], padded: Mapping[str, int]) -> Any:
    """Crop one result with these axes to its unpadded size. Return the array itself if it has that size."""
    padded_dims = {name for name, size in sizes.items() if size != padded[name]}
    # The (unpadded, padded) extents of each axis. A padded axis has several if a reshape merged them.
    extents: list[list[tuple[int, int]]] = []
    for axis, length in zip(axes, result.shape, strict=True):
        is_padded = any(extent.atoms & padded_dims for extent in axis)
        extents.append([(e.evaluate(sizes), e.evaluate(padded)) for e in axis] if is_padded else [(length, length)])
    # Split merged axes, crop each extent, and merge again.
    split = result.reshape([length for pairs in extents for _, length in pairs])
    cropped = split[tuple(slice(length) for pairs in extents for length, _ in pairs)]
    cropped = cropped.reshape([math.prod(length for length, _ in pairs) for pairs in extents])
    return result if cropped.shape == result.shape else np.ascontiguousarray(cropped)


def pad_dims(function: Function, dims: Sequence[str] | None = None) -> PaddedFunction:
    """Make a Function accept padded inputs along `dims`, by default along all dynamic dims of its inputs.

    The leading part of each output equals the result for inputs without padding, for all inputs and all padded sizes. Dims that
    cannot be padded are reported in `PaddedFunction.refusals`.
    """
    candidates = list(_list_dynamic_dims(function) if dims is None else dims)
    refusals, decomposed = _check_inputs(function, candidates), decompose_without_rule(function)
    while True:
        # Repeated after a refusal, because without the refused dims other values are padded.
        p = Padder(decomposed, frozenset(candidates) - frozenset(refusals))
        walk(p)
        states = [_find_output_state(p, value) for value in function.outputs]
        refused = [state for state in states if isinstance(state, PaddingRefusal)]
        # Without padded dims the original Function is returned, whatever was refused.
        if not refused or not p.dims:
            return _assemble(p, function, {dim: refusals[dim] for dim in candidates if dim in refusals})
        for refusal in refused:
            # A refusal that names no padded dim is about all of them.
            refused_dims = (refusal.dims & p.dims) or p.dims
            refusals.update(dict.fromkeys(refused_dims, _name_original(refusal, decomposed, function)))


def decompose_without_rule(function: Function) -> Function:
    """Decompose the nodes that have no padding rule and read or compute a tensor of dynamic shape."""
    from xrt.passes.decomposition import find_decomposition  # imports onnx, which a stored program does not need

    def decompose(node: Node, owner: Function) -> Function | None:
        if node.op in RULES or (not node.domain and node.op_type in PROPAGATED):
            return None
        types = (owner.get_type(name) for name in (*node.uses, *node.defined_names))
        has_static_types = all(isinstance(type_, TensorType) and type_.is_static for type_ in types)
        return None if has_static_types else find_decomposition(node, owner)

    return decompose_nodes(function, decompose)


def _name_original(refusal: PaddingRefusal, decomposed: Function, function: Function) -> PaddingRefusal:
    """Name the node of the model in a refusal, instead of the node of its decomposition."""
    value = next((name for node in decomposed.nodes if node.name == refusal.node for name in node.defined_names), "")
    # The values inside a decomposition are called "<output>/replaced/...".
    node = function.producer(value) or function.producer(value.partition("/replaced/")[0])
    if node is None or (node.name, node.op) == (refusal.node, refusal.op):
        return refusal
    return PaddingRefusal(node.name, node.op, f"in its decomposition, {refusal.op}: {refusal.reason}", refusal.dims)


def _list_dynamic_dims(function: Function) -> dict[str, None]:
    dims: dict[str, None] = {}
    for value in function.inputs:
        shape = value.type.shape if isinstance(value.type, TensorType) else None
        for axis, dim in enumerate(shape or ()):
            if not isinstance(dim, int):
                dims[dim or f"{value.name}[{axis}]"] = None
    return dims


def _check_inputs(function: Function, dims: Sequence[str]) -> dict[str, PaddingRefusal]:
    """Refuse the dims of inputs that are updated in place, or are not tensors."""
    updated = {source for source, _ in function.aliases}
    refusals: dict[str, PaddingRefusal] = {}
    for value in function.inputs:
        reason = "" if isinstance(value.type, TensorType) else f"input {value.name!r} is {value.type}, which is not padded"
        # The caller expects the update in its own buffer, but padding copies the input.
        if value.name in updated:
            reason = f"input {value.name!r} is updated in place, and padding would copy it"
        if reason:
            names = frozenset(list_symbols(Function((value,), ()))) & {*dims}
            refusals |= dict.fromkeys(names, PaddingRefusal("", "", reason, names))
    return refusals


def _find_output_state(p: Padder, value: Value) -> object:
    """Find the state of an output, or a PaddingRefusal if the output cannot be cropped to its unpadded size."""
    state, node = p.states.get(value.name), p.function.producer(value.name)
    name, op = (node.name, node.op) if node else ("", "")
    if state is SIZE:
        return PaddingRefusal(name, op, "its result is a size", p.dims)
    for axis in state.axes if isinstance(state, PaddedTensor) else ():
        # Cropping happens outside of the program, with sizes computed from those of the inputs.
        if p.is_padded(axis) and not all(p.is_known(part) for part in axis):
            reason = f"the extent {'*'.join(map(str, axis))} of its result is known only in a call"
            return PaddingRefusal(name, op, reason, p.find_padded_dims(axis))
    return state


def walk(p: Padder) -> None:
    """Record the inputs of the Function, then apply the padding rules to its nodes in order."""
    for value in p.function.inputs:
        p.add_input(value)
    for node in p.function.nodes:
        p.nodes.append(_visit_node(p, node))


def _visit_node(p: Padder, node: Node) -> Node:
    """Apply the rule of a node: record the states of its outputs, and return the node to use in the padded Function."""
    states = [p.states[name] for name in node.uses if name in p.states]
    refusal = next((state for state in states if isinstance(state, PaddingRefusal)), None)
    if refusal is None:
        try:
            if propagate_sizes(p, node):
                return node
            return _apply_rule(p, node) if states else _record_extents(p, node)
        except Unpaddable as error:
            # Without dims the operator cannot be padded along any padded dim of its inputs.
            padded_inputs = [p.find_padded_dims(*state.axes) if isinstance(state, PaddedTensor) else p.dims for state in states]
            dims = error.dims or frozenset().union(*padded_inputs)
            refusal = PaddingRefusal(node.name, node.op, error.reason, dims)
        except (IndexError, ValueError, TypeError, AttributeError, KeyError):
            # Rules index attributes and shapes without checks, so an unexpected number of inputs or axes raises one of these.
            refusal = PaddingRefusal(node.name, node.op, "the padding rule does not support its inputs or attributes", p.dims)
    p.states.update(dict.fromkeys(node.defined_names, refusal))
    return node


def _record_extents(p: Padder, node: Node) -> Node:
    """Record the extents of the outputs of a node that padding does not affect, if its rule can derive them."""
    rule = RULES.get(node.op)
    if rule is not None and not node.bodies:
        with suppress(Unpaddable, IndexError, ValueError, TypeError, AttributeError, KeyError):
            rule(p, node)
    return node


def _apply_rule(p: Padder, node: Node) -> Node:
    """Apply the rule of a node that reads padded values or sizes; return the node to use instead."""
    if node.bodies:
        raise Unpaddable("padded values that its body reads are not supported")
    rule = p.rules.get(node.name) or RULES.get(node.op)
    if rule is None:
        raise Unpaddable("there is no rule for its operator")
    shape_slots = () if node.domain else PADDED_SHAPES.get(node.op_type, ())
    if node.op_type in UNSUPPORTED_SHAPE_OPERANDS and any(p.states.get(name) is SIZE for name in node.inputs):
        raise Unpaddable("the shape of its result depends on a padded size in an unsupported way")
    names = list(node.inputs)
    for index, name in enumerate(names):
        if p.states.get(name) is SIZE:
            names[index] = p.get_shape_operand(name) if index in shape_slots else p.emit_sizes(name)
    node = replace(node, inputs=tuple(names))
    if not any(name in p.states for name in names):
        return node
    # A rule returns None if the node can stay as it is.
    replacement: Node | None = rule(p, node)
    return node if replacement is None else replacement


def _assemble(p: Padder, original: Function, refusals: Mapping[str, PaddingRefusal]) -> PaddedFunction:
    """Build the padded Function, with added inputs for the unpadded sizes that its nodes read."""
    function = p.function
    sizes = tuple(Value(name, TensorType(DType.INT64, ())) for name in p.fed.values())
    states = [p.states.get(value.name) for value in function.outputs]
    axes = tuple(state.axes if isinstance(state, PaddedTensor) else None for state in states)
    constants = {**function.constants, **p.constants}
    padded = function.replace(inputs=(*function.inputs, *sizes), nodes=tuple(p.nodes), constants=constants)
    result = padded if p.dims else original
    return PaddedFunction(result, tuple(sorted(p.dims)), tuple(p.fed), axes, tuple(p.conditions), refusals)
