"""A Function with padded dims: which dims can be padded, and how results are cut to what they are without padding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.passes.padding.extents import Axis, Extent
from xrt.passes.padding.padder import Padder
from xrt.passes.padding.rules import RULES, SHAPE_SLOTS, SIZED
from xrt.passes.padding.sizes import follow
from xrt.passes.padding.states import SIZE, Padded, PaddingRefusal, Refused
from xrt.passes.symbolic_dims import list_symbols

__all__ = ["PaddedFunction", "pad_dims", "walk"]


@dataclass(frozen=True)
class PaddedFunction:
    """A Function some of whose open dims may be given larger sizes than those that are meant."""

    function: Function
    """The inputs of the model, then an input for each size that it must know."""
    dims: tuple[str, ...]
    """The dims that may be padded; an extent without a name is called by its input and axis, ``x[0]``."""
    fed: tuple[str, ...]
    """The dims whose sizes without padding are the further inputs."""
    axes: tuple[tuple[Axis, ...] | None, ...]
    """The extents of each output; None where padding does not change it."""
    conditions: tuple[Extent, ...]
    """What must not be negative, for the sizes with padding and for those without."""
    refusals: Mapping[str, PaddingRefusal]
    """Why the other dims cannot be padded."""

    def allows(self, sizes: Mapping[str, int], padded: Mapping[str, int]) -> bool:
        """Whether these sizes may be padded to those."""
        return all(one.at(sizes) >= 0 and one.at(padded) >= 0 for one in self.conditions)

    def cut(self, results: Sequence[Any], sizes: Mapping[str, int], padded: Mapping[str, int]) -> list[Any]:
        """Return the results without padding: arrays of their own."""
        pairs = zip(results, self.axes, strict=True)
        return [result if axes is None else _cut(result, axes, sizes, padded) for result, axes in pairs]


def _cut(result: Any, axes: Sequence[Axis], sizes: Mapping[str, int], padded: Mapping[str, int]) -> Any:
    changed = {name for name, size in sizes.items() if size != padded[name]}
    parts = [
        [(one.at(sizes), one.at(padded)) for one in axis] if any(one.atoms & changed for one in axis) else [(size, size)]
        for axis, size in zip(axes, result.shape, strict=True)
    ]
    front = result.reshape([whole for axis in parts for _, whole in axis])
    front = front[tuple(slice(kept) for axis in parts for kept, _ in axis)]
    front = front.reshape([math.prod(kept for kept, _ in axis) for axis in parts])
    return result if front.shape == result.shape else np.ascontiguousarray(front)


def pad_dims(function: Function, dims: Sequence[str] | None = None) -> PaddedFunction:
    """Return the Function for padded sizes of its open dims: of those given, or of all.

    The result's ``function`` gives, in front of its outputs, what the model gives for inputs without padding: whatever the
    inputs are, and whatever a padded size is. Linear for each dim that cannot be padded.
    """
    left = list(_list_open(function) if dims is None else dims)
    refusals = _check_inputs(function, left)
    while True:
        p = Padder(function, frozenset(left) - frozenset(refusals))
        walk(p)
        found = [state for value in function.outputs if isinstance(state := _find_output_state(p, value), PaddingRefusal)]
        if not found:
            return _finish(p, {dim: refusals[dim] for dim in left if dim in refusals})
        for refusal in found:
            refusals.update(dict.fromkeys((refusal.dims & p.dims) or p.dims, refusal))


def _list_open(function: Function) -> dict[str, None]:
    """Return the dims of the inputs that are no numbers."""
    found: dict[str, None] = {}
    for value in function.inputs:
        for axis, dim in enumerate(value.type.shape or () if isinstance(value.type, TensorType) else ()):
            if not isinstance(dim, int):
                found[dim or f"{value.name}[{axis}]"] = None
    return found


def _check_inputs(function: Function, dims: Sequence[str]) -> dict[str, PaddingRefusal]:
    """Return the refusals of dims of inputs that cannot be padded; of one that is updated in place, a copy would be."""
    updated = {before for before, _ in function.aliases}
    found: dict[str, PaddingRefusal] = {}
    for value in function.inputs:
        own = frozenset(list_symbols(Function((value,), ()))) & {*dims}
        if value.name in updated:
            found |= dict.fromkeys(
                own, PaddingRefusal("", "", f"input {value.name!r} is updated in place, and padding is a copy", own)
            )
        elif not isinstance(value.type, TensorType):
            found |= dict.fromkeys(own, PaddingRefusal("", "", f"input {value.name!r} is {value.type}, which is not padded", own))
    return found


def _find_output_state(p: Padder, value: Value) -> object:
    """Return the state of an output; a refusal where it cannot be cut."""
    state, node = p.states.get(value.name), p.function.producer(value.name)
    name, op = (node.name, node.op) if node else ("", "")
    if state is SIZE:
        return PaddingRefusal(name, op, "its result is a size", p.dims)
    for axis in state.axes if isinstance(state, Padded) else ():
        if p.is_padded(axis) and not all(p.is_known(part) for part in axis):
            dims = frozenset().union(*(part.atoms for part in axis)) & p.dims
            return PaddingRefusal(name, op, f"the extent {'*'.join(map(str, axis))} of its result is known only in a call", dims)
    return state


def walk(p: Padder) -> None:
    """Pad the inputs, and visit each node."""
    for value in p.function.inputs:
        p.open_input(value)
    for node in p.function.nodes:
        p.nodes.append(_visit(p, node))


def _visit(p: Padder, node: Node) -> Node:
    """Return the node to use in place of a node, and take note of what it gives."""
    states = [p.states[name] for name in node.uses if name in p.states]
    refusal = next((state for state in states if isinstance(state, PaddingRefusal)), None)
    if refusal is None:
        try:
            if follow(p, node):
                return node
            return _apply(p, node) if states else _note(p, node)
        except Refused as error:
            dims = error.dims or frozenset().union(*(_find_dims(p, state) for state in states))
            refusal = PaddingRefusal(node.name, node.op, error.reason, dims)
        except (IndexError, ValueError, TypeError, AttributeError, KeyError):
            refusal = PaddingRefusal(node.name, node.op, "its inputs do not have the form that the rule knows", p.dims)
    p.states.update(dict.fromkeys(node.defines, refusal))
    return node


def _note(p: Padder, node: Node) -> Node:
    """Return a node that padding does not change, and take note of the extents of its outputs where they have names."""
    rule = RULES.get((node.domain, node.op_type))
    if rule is not None and not node.bodies:
        with suppress(Refused, IndexError, ValueError, TypeError, AttributeError, KeyError):
            rule(p, node)
    return node


def _find_dims(p: Padder, state: object) -> frozenset[str]:
    if not isinstance(state, Padded):
        return p.dims
    return frozenset().union(*(part.atoms for axis in state.axes for part in axis)) & p.dims


def _apply(p: Padder, node: Node) -> Node:
    if node.bodies:
        raise Refused("what its body does with padded values is not followed")
    rule = p.rules.get(node.name) or RULES.get((node.domain, node.op_type))
    if rule is None:
        raise Refused("there is no rule for its operator")
    own = SHAPE_SLOTS.get(node.op_type, frozenset()) if not node.domain else frozenset()
    if node.op_type in SIZED and any(p.states.get(name) is SIZE for name in node.inputs):
        raise Refused("the shape of its result depends on a size in a way that is not followed")
    names = [
        x if p.states.get(x) is not SIZE else p.shape_operand(x) if n in own else p.exact(x) for n, x in enumerate(node.inputs)
    ]
    node = replace(node, inputs=tuple(names))
    if not any(name in p.states for name in names):
        return node
    made: Node | None = rule(p, node)
    return node if made is None else made


def _finish(p: Padder, refusals: Mapping[str, PaddingRefusal]) -> PaddedFunction:
    function = p.function
    sizes = tuple(Value(name, TensorType(DType.INT64, ())) for name in p.fed.values())
    states = [p.states.get(value.name) for value in function.outputs]
    made = function.replace(
        inputs=(*function.inputs, *sizes), nodes=tuple(p.nodes), constants={**function.constants, **p.constants}
    )
    return PaddedFunction(
        made if p.dims else function,
        tuple(sorted(p.dims)),
        tuple(p.fed),
        tuple(state.axes if isinstance(state, Padded) else None for state in states),
        tuple(p.conditions),
        refusals,
    )
