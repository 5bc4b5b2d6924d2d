"""The table of rules, and what a rule is given: one node with the gradients of its outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import numpy as np

from xrt.builder.record_op import apply, emit
from xrt.errors import ModelError
from xrt.graph import Node, OptionalType, SequenceType, TensorType, Type

if TYPE_CHECKING:
    from xrt.builder.builder import Builder
    from xrt.builder.tensor import Tensor
    from xrt.graph import DType

__all__ = [
    "RULES",
    "Rule",
    "RuleContext",
    "add_axes",
    "add_up",
    "cast",
    "count",
    "expand_to",
    "extent",
    "fill_like",
    "find_rule",
    "flatten",
    "gather_axis",
    "get_shape",
    "integers",
    "may_have_gradient",
    "number",
    "reduce_sum",
    "refuse",
    "reshape_to",
    "rule",
    "split",
    "sum_to",
    "transpose",
    "zeros",
    "zeros_like",
]


def integers(*items: int) -> np.ndarray[Any, Any]:
    """Return a row of integers as operators take axes and shapes."""
    return np.asarray(items, np.int64)


def number(value: float, like: Tensor) -> np.ndarray[Any, Any]:
    """Return a number as a scalar of the tensor's element type."""
    return np.asarray(value, like.dtype.numpy)


def cast(x: Tensor, dtype: DType) -> Tensor:
    """Return the tensor in that element type; itself where it has it."""
    return x if x.dtype is dtype else emit("Cast", x, to=dtype.onnx)


# ---------------------------------------------------------------------- shapes


def get_shape(x: Tensor) -> Any:
    """Return the shape as an array where it is known, as a tensor elsewhere."""
    return integers(*x.shape) if x.tensor_type.is_static else emit("Shape", x)  # type: ignore[arg-type]  # static: all are integers


def extent(x: Tensor, axis: int) -> Any:
    """Return one extent as an array of one element where it is known, as a tensor of one elsewhere."""
    shape = x.tensor_type.shape
    known = None if shape is None else shape[axis]
    if isinstance(known, int):
        return integers(known)
    end = {} if axis == -1 else {"end": axis + 1}
    return emit("Shape", x, start=axis, **end)


def reshape_to(x: Tensor, like: Tensor) -> Tensor:
    """Return the tensor in the shape of another one of as many elements."""
    if x.type == like.type and x.tensor_type.is_static:
        return x
    wanted = get_shape(like)
    may_be_empty = not like.tensor_type.is_static or 0 in like.shape
    return emit("Reshape", x, wanted, allowzero=1 if may_be_empty else None)


def flatten(x: Tensor) -> Tensor:
    """Return the elements as one row."""
    return emit("Reshape", x, integers(-1))


def expand_to(x: Tensor, like: Tensor) -> Tensor:
    """Return the tensor broadcast to the shape of another one."""
    if x.tensor_type.is_static and like.tensor_type.is_static and x.shape == like.shape:
        return x
    return emit("Expand", x, get_shape(like))


def transpose(x: Tensor, order: Sequence[int]) -> Tensor:
    """Return the tensor with its axes in that order; itself where they are in it."""
    return x if list(order) == list(range(len(order))) else emit("Transpose", x, perm=list(order))


def add_axes(x: Tensor, *axes: int) -> Tensor:
    """Return the tensor with new axes of extent 1 at those places of the result."""
    return emit("Unsqueeze", x, integers(*axes)) if axes else x


def split(x: Tensor, sizes: Any, axis: int, parts: int) -> Sequence[Tensor]:
    """Return the tensor in parts of those sizes."""
    found: Any = (x,) if parts == 1 else apply("Split", (x, sizes), {"axis": axis}, outputs=parts)
    return tuple(found)


def gather_axis(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """Return the part of the tensor at one index of an axis, which is gone then."""
    return emit("Gather", x, index, axis=axis)


# ---------------------------------------------------------------------- numbers


def zeros(shape: Any, dtype: DType) -> Tensor:
    """Return zeros of a shape."""
    return emit("ConstantOfShape", shape, value=np.zeros(1, dtype.numpy))


def zeros_like(x: Tensor) -> Tensor:
    """Return zeros of the tensor's type and shape."""
    return zeros(get_shape(x), x.dtype)


def fill_like(x: Tensor, value: float) -> Tensor:
    """Return a tensor of the same type and shape all of whose elements are the number."""
    return emit("ConstantOfShape", get_shape(x), value=np.full(1, value, x.dtype.numpy))


def count(whole: Tensor, part: Tensor) -> Any:
    """Return how many elements of one tensor come to one of the other, as a number of their type."""
    if whole.tensor_type.is_static and part.tensor_type.is_static:
        return number(math.prod(whole.shape) / max(math.prod(part.shape), 1), whole)  # type: ignore[arg-type]  # static
    return cast(emit("Div", emit("Size", whole), emit("Size", part)), whole.dtype)


def add_up(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape."""
    if len(parts) == 1:
        return parts[0]
    return emit("Add", *parts) if len(parts) == 2 else emit("Sum", *parts)


def reduce_sum(x: Tensor, axes: Sequence[int], *, keepdims: bool = False) -> Tensor:
    """Return the sums over the axes; the tensor itself for none."""
    return emit("ReduceSum", x, integers(*axes), keepdims=int(keepdims)) if axes else x


def sum_to(g: Tensor, like: Tensor) -> Tensor:
    """Return the sums of ``g`` over the axes along which ``like`` was broadcast to its shape: the gradient of broadcasting.

    The axes are known where the types say which extents are 1; elsewhere they are computed from both shapes at run time.
    """
    source, target = g.tensor_type.shape, like.tensor_type.shape
    if source is None or target is None or len(source) < len(target):
        return _sum_to_at_run_time(g, like)
    lead = len(source) - len(target)
    pairs = list(enumerate(zip(source[lead:], target, strict=True), lead))
    if any(_may_be_broadcast(a, b) is None for _, (a, b) in pairs):
        return _sum_to_at_run_time(g, like)
    axes = [axis for axis, (a, b) in pairs if _may_be_broadcast(a, b)]
    summed = reduce_sum(g, axes, keepdims=True)
    return reduce_sum(summed, range(lead))


def _may_be_broadcast(whole: Any, part: Any) -> bool | None:
    """Whether an extent was broadcast from the other; None where the types do not say."""
    if part == 1 and isinstance(part, int):
        return not (whole == 1 and isinstance(whole, int))
    if isinstance(part, int):
        return False
    return False if part is not None and part == whole else None


def _sum_to_at_run_time(g: Tensor, like: Tensor) -> Tensor:
    source, target = emit("Shape", g), emit("Shape", like)
    lead = emit("Sub", emit("Shape", source), emit("Shape", target))
    padded = emit("Concat", emit("ConstantOfShape", lead, value=np.ones(1, np.int64)), target, axis=0)
    differs = emit("Not", emit("Equal", source, padded))
    axes = emit("Reshape", emit("NonZero", differs), integers(-1))
    return emit("Reshape", emit("ReduceSum", g, axes, keepdims=1, noop_with_empty_axes=1), target, allowzero=1)


Rule: TypeAlias = Callable[["RuleContext"], "Sequence[Tensor | None]"]
"""Returns the gradient of each input in its place; None, or a missing place at the end, where there is none."""
RULES: dict[str, Rule] = {}
"""The rule of each operator, by its name with the domain as in `Node.op`."""
_CONDITIONS: dict[str, Callable[[Node], bool]] = {}
"""Of a rule that is not for every node of its operator: whether it is for a node. Others have a definition."""
_Rule = TypeVar("_Rule", bound=Rule)


def rule(*operators: str, when: Callable[[Node], bool] | None = None) -> Callable[[_Rule], _Rule]:
    """Register a function as the rule of those operators; with ``when``, of the nodes for which that is true."""

    def register(function: _Rule) -> _Rule:
        for operator in operators:
            RULES[operator] = function
            if when is not None:
                _CONDITIONS[operator] = when
        return function

    return register


def find_rule(node: Node) -> Rule | None:
    """Return the rule for a node, None where there is none."""
    condition = _CONDITIONS.get(node.op)
    return RULES.get(node.op) if condition is None or condition(node) else None


def may_have_gradient(type_: Type | None) -> bool:
    """Whether a value of the type can have a gradient: floats can, integers, booleans and strings cannot."""
    if isinstance(type_, SequenceType | OptionalType):
        return may_have_gradient(type_.element)
    return type_ is None or (isinstance(type_, TensorType) and type_.dtype.is_float)


def refuse(node: Node, reason: str) -> NoReturn:
    """Raise the ModelError for a node that cannot be differentiated."""
    raise ModelError(
        f"node {node.name!r} ({node.op}) has no gradient: {reason}. Leave out of with_respect_to what reaches `of` through it, "
        f"or write it with other operators"
    )


class RuleContext:
    """A node, its inputs and outputs as tensors of the graph that is recorded, and the gradients of its outputs."""

    def __init__(
        self,
        node: Node,
        tensors: MutableMapping[str, Tensor],
        gradients: Sequence[Tensor | None],
        active: frozenset[str],
        builder: Builder,
    ) -> None:
        self.node = node
        self.tensors = tensors
        """Every value that the node may read, by its name."""
        self.gradients = tuple(gradients)
        """By output; None where no gradient arrives."""
        self.active = active
        """The values whose gradients are wanted."""
        self.builder = builder
        self.inputs = tuple(tensors[name] if name else None for name in node.inputs)
        self.outputs = tuple(tensors[name] if name else None for name in node.outputs)
        self.captured: dict[str, Tensor] = {}
        """Gradients of what the node's bodies capture; the rule fills it in."""

    @property
    def x(self) -> Tensor:
        """The first input."""
        return self.input(0)

    @property
    def y(self) -> Tensor:
        """The first output."""
        return self.tensors[self.node.outputs[0]]

    @property
    def g(self) -> Tensor:
        """The gradient of the first output; zeros where none arrives."""
        return self.gradient(0)

    def input(self, index: int) -> Tensor:
        """Return an input that the operator requires."""
        return self.tensors[self.node.inputs[index]]

    def optional(self, index: int) -> Tensor | None:
        """Return an input, None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def gradient(self, index: int) -> Tensor:
        """Return the gradient of an output; zeros where none arrives."""
        found = self.gradients[index]
        return zeros_like(self.tensors[self.node.outputs[index]]) if found is None else found

    def wants(self, index: int) -> bool:
        """Whether the gradient of that input is wanted."""
        return index < len(self.node.inputs) and self.node.inputs[index] in self.active

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attr(name, default)

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """Return the array that an input is known to be, None where it is left out or computed."""
        symbol = self.optional(index)
        found = None if symbol is None else symbol.builder.find_constant(symbol)
        return None if found is None else found.array

    def rank(self, tensor: Tensor) -> int:
        """Return the number of axes; refuse the node where it is not known."""
        rank = tensor.tensor_type.rank
        if rank is None:
            self.refuse(f"the rank of {tensor.name!r} is not known")
        return rank

    def refuse(self, reason: str) -> NoReturn:
        """Raise the ModelError that names the node and the reason."""
        refuse(self.node, reason)

    def output(self, index: int, type_: Type) -> Tensor:
        """Return an optional output of that type; where the node leaves it out, it is made to give it."""
        names = [*self.node.outputs, *[""] * (index + 1 - len(self.node.outputs))]
        if not names[index]:
            names[index] = self.builder.fresh(f"{self.node.name}_output_{index + 1}")
            self.replace_node(replace(self.node, outputs=tuple(names)), {names[index]: type_})
        return self.tensors[names[index]]

    def replace_node(self, node: Node, types: Mapping[str, Type | None]) -> None:
        """Put a node that gives more in the place of this one in the graph; ``types`` are those of the new outputs."""
        place = next(index for index, known in enumerate(self.builder.nodes) if known.name == self.node.name)
        self.builder.nodes[place] = self.node = node
        self.builder.types.update((name, type_) for name, type_ in types.items() if type_ is not None)
        self.tensors.update((name, self.builder.tensor(name, type_)) for name, type_ in types.items())
