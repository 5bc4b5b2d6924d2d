"""The table of gradient rules, the context that a rule receives, and helpers to write rules."""

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


def integers(*items: int) -> np.ndarray[Any, Any]:
    """Create a 1-D int64 array, the form of axes and shapes."""
    return np.asarray(items, np.int64)


def number(value: float, like: Tensor) -> np.ndarray[Any, Any]:
    """Create a scalar constant of the element type of `like`."""
    return np.asarray(value, like.dtype.numpy)


def cast(x: Tensor, dtype: DType) -> Tensor:
    """Cast to `dtype`, if necessary."""
    return x if x.dtype is dtype else emit("Cast", x, to=dtype.onnx)


# ---------------------------------------------------------------------- shapes


def get_shape(x: Tensor) -> Any:
    """The shape of a tensor: an array if it is static, otherwise a tensor computed at run time."""
    return integers(*x.shape) if x.tensor_type.is_static else emit("Shape", x)  # type: ignore[arg-type]  # static: all are integers


def extent(x: Tensor, axis: int) -> Any:
    """The extent of an axis as a vector of one element: an array if it is static, otherwise a tensor computed at run time."""
    shape = x.tensor_type.shape
    size = None if shape is None else shape[axis]
    if isinstance(size, int):
        return integers(size)
    end = {} if axis == -1 else {"end": axis + 1}  # without an end, Shape includes the last axis
    return emit("Shape", x, start=axis, **end)


def calculate(op: str, a: Any, b: Any) -> Any:
    """Apply ``op`` (Add, Sub, Mul or Div) to extents; the result is an array if both are arrays, otherwise a tensor."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return _ARITHMETIC[op](a, b)
    return emit(op, a, b)


_ARITHMETIC = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.floor_divide}


def join(*extents: Any) -> Any:
    """Concatenate vectors of extents; the result is an array if all are arrays, otherwise a tensor."""
    if all(isinstance(size, np.ndarray) for size in extents):
        return np.concatenate(extents)
    return emit("Concat", *extents, axis=0)


def reshape(x: Tensor, shape: Any) -> Tensor:
    """Reshape to exactly these extents: 0 is an extent of zero; it does not copy the extent of the input."""
    return emit("Reshape", x, shape, allowzero=None if isinstance(shape, np.ndarray) and shape.all() else 1)


def reshape_to(x: Tensor, like: Tensor) -> Tensor:
    """Reshape `x` to the shape of `like`, if necessary."""
    if x.type == like.type and x.tensor_type.is_static:
        return x
    return reshape(x, get_shape(like))


def flatten(x: Tensor) -> Tensor:
    """Reshape to one dimension."""
    return emit("Reshape", x, integers(-1))


def expand_to(x: Tensor, like: Tensor) -> Tensor:
    """Broadcast `x` to the shape of `like`, if necessary."""
    if x.tensor_type.is_static and like.tensor_type.is_static and x.shape == like.shape:
        return x
    return emit("Expand", x, get_shape(like))


def transpose(x: Tensor, order: Sequence[int]) -> Tensor:
    """Permute the axes, if necessary."""
    return x if list(order) == list(range(len(order))) else emit("Transpose", x, perm=list(order))


def add_axes(x: Tensor, *axes: int) -> Tensor:
    """Insert axes of extent 1 at these positions of the result."""
    return emit("Unsqueeze", x, integers(*axes)) if axes else x


def split(x: Tensor, sizes: Any, axis: int, parts: int) -> Sequence[Tensor]:
    """Split along an axis into `parts` tensors; `sizes` (array or tensor) has the extent of each."""
    pieces: Any = (x,) if parts == 1 else apply("Split", (x, sizes), {"axis": axis}, outputs=parts)
    return tuple(pieces)


# ---------------------------------------------------------------------- numbers


def zeros(shape: Any, dtype: DType) -> Tensor:
    """Create zeros of a shape, which may be an array or a tensor."""
    return emit("ConstantOfShape", shape, value=np.zeros(1, dtype.numpy))


def zeros_like(x: Tensor) -> Tensor:
    """Create zeros of the shape and type of `x`."""
    return zeros(get_shape(x), x.dtype)


def fill_like(x: Tensor, value: float) -> Tensor:
    """Create a tensor of the shape and type of `x`, filled with `value`."""
    return emit("ConstantOfShape", get_shape(x), value=np.full(1, value, x.dtype.numpy))


def count(whole: Tensor, part: Tensor) -> Any:
    """Compute the number of elements of `whole` per element of `part`, as a scalar of the element type of `whole`."""
    if whole.tensor_type.is_static and part.tensor_type.is_static:
        # The maximum avoids a division by zero for empty tensors.
        return number(math.prod(whole.shape) / max(math.prod(part.shape), 1), whole)  # type: ignore[arg-type]  # static
    return cast(emit("Div", emit("Size", whole), emit("Size", part)), whole.dtype)


def add_up(parts: Sequence[Tensor]) -> Tensor:
    """Add tensors of equal shape; a single one is returned unchanged."""
    if len(parts) == 1:
        return parts[0]
    return emit("Add", *parts) if len(parts) == 2 else emit("Sum", *parts)


def reduce_sum(x: Tensor, axes: Sequence[int], *, keepdims: bool = False) -> Tensor:
    """Sum over the axes; without axes, `x` is returned unchanged."""
    return emit("ReduceSum", x, integers(*axes), keepdims=int(keepdims)) if axes else x


def sum_to(g: Tensor, like: Tensor) -> Tensor:
    """Sum `g` over the axes along which ``like`` was broadcast, to the shape of ``like``: the gradient of broadcasting.

    If the types do not tell which extents are 1, the axes are computed from both shapes at run time.
    """
    source, target = g.tensor_type.shape, like.tensor_type.shape
    if source is None or target is None or len(source) < len(target):
        return _sum_to_at_run_time(g, like)
    lead = len(source) - len(target)
    pairs = list(enumerate(zip(source[lead:], target, strict=True), lead))
    if any(_is_broadcast(a, b) is None for _, (a, b) in pairs):
        return _sum_to_at_run_time(g, like)
    axes = [axis for axis, (a, b) in pairs if _is_broadcast(a, b)]
    # Reduce twice: axes of extent 1 must remain, leading axes that `like` does not have must be removed.
    summed = reduce_sum(g, axes, keepdims=True)
    return reduce_sum(summed, range(lead))


def _is_broadcast(whole: Any, part: Any) -> bool | None:
    """Whether the extent `part` was broadcast to `whole`; None if that is only known at run time."""
    if part == 1 and isinstance(part, int):
        return not (whole == 1 and isinstance(whole, int))
    if isinstance(part, int):
        return False
    return False if part is not None and part == whole else None


def _sum_to_at_run_time(g: Tensor, like: Tensor) -> Tensor:
    """Like `sum_to`, with the axes computed from the shapes in each call."""
    source, target = emit("Shape", g), emit("Shape", like)
    # Align the ranks with leading ones, then reduce where the extents differ.
    lead = emit("Sub", emit("Shape", source), emit("Shape", target))
    padded = emit("Concat", emit("ConstantOfShape", lead, value=np.ones(1, np.int64)), target, axis=0)
    differs = emit("Not", emit("Equal", source, padded))
    axes = emit("Reshape", emit("NonZero", differs), integers(-1))
    return emit("Reshape", emit("ReduceSum", g, axes, keepdims=1, noop_with_empty_axes=1), target, allowzero=1)


Rule: TypeAlias = Callable[["RuleContext"], "Sequence[Tensor | None]"]
"""Returns the gradients of the inputs in order; an input has no gradient if its entry is None or missing at the end."""
RULES: dict[str, Rule] = {}
"""Gradient rules by qualified operator name, as in `Node.op`."""
_Rule = TypeVar("_Rule", bound=Rule)


def rule(*operators: str) -> Callable[[_Rule], _Rule]:
    """Decorator that registers a function as the gradient rule of operators."""

    def register(function: _Rule) -> _Rule:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return register


def may_have_gradient(type_: Type | None) -> bool:
    """Whether values of the type can have a gradient: floats can, integers, booleans and strings cannot."""
    if isinstance(type_, SequenceType | OptionalType):
        return may_have_gradient(type_.element)
    # A value of unknown type is treated as a float, so that no gradient is lost.
    return type_ is None or (isinstance(type_, TensorType) and type_.dtype.is_float)


def refuse(node: Node, reason: str) -> NoReturn:
    """Raise ModelError for a node that cannot be differentiated."""
    raise ModelError(
        f"node {node.name!r} ({node.op}) has no gradient: {reason}. Leave out of with_respect_to what reaches `of` through it, "
        f"or write it with other operators"
    )


class RuleContext:
    """Everything a rule needs: the node, its inputs and outputs as tensors, and the gradients of its outputs."""

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
        """All values in scope, by name."""
        self.gradients = tuple(gradients)
        """The gradient of each output; None if no reader of the output contributed one."""
        self.active = active
        """Names of the values whose gradients are needed."""
        self.builder = builder
        self.inputs = tuple(tensors[name] if name else None for name in node.inputs)
        self.outputs = tuple(tensors[name] if name else None for name in node.outputs)
        self.captured: dict[str, Tensor] = {}
        """Gradients of values captured by the bodies, filled in by the rule."""

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
        """The gradient of the first output, zeros if none arrives."""
        return self.gradient(0)

    def input(self, index: int) -> Tensor:
        """A required input."""
        return self.tensors[self.node.inputs[index]]

    def optional(self, index: int) -> Tensor | None:
        """An input, or None if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def gradient(self, index: int) -> Tensor:
        """The gradient of an output, zeros if none arrives."""
        arriving = self.gradients[index]
        return zeros_like(self.tensors[self.node.outputs[index]]) if arriving is None else arriving

    def wants(self, index: int) -> bool:
        """Whether the gradient of this input is needed."""
        return index < len(self.node.inputs) and self.node.inputs[index] in self.active

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attr(name, default)

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """The value of a constant input; None if it is omitted or computed."""
        symbol = self.optional(index)
        constant = None if symbol is None else symbol.builder.find_constant(symbol)
        return None if constant is None else constant.array

    def rank(self, tensor: Tensor) -> int:
        """The rank of a tensor; raises ModelError if it is unknown."""
        rank = tensor.tensor_type.rank
        if rank is None:
            self.refuse(f"the rank of {tensor.name!r} is not known")
        return rank

    def refuse(self, reason: str) -> NoReturn:
        """Raise ModelError for this node."""
        refuse(self.node, reason)

    def output(self, index: int, type_: Type) -> Tensor:
        """An output of the forward node; an omitted optional output is added to the node, with type ``type_``."""
        names = [*self.node.outputs, *[""] * (index + 1 - len(self.node.outputs))]
        if not names[index]:
            names[index] = self.builder.fresh(f"{self.node.name}_output_{index + 1}")
            self.replace_node(replace(self.node, outputs=tuple(names)), {names[index]: type_})
        return self.tensors[names[index]]

    def replace_node(self, node: Node, types: Mapping[str, Type | None]) -> None:
        """Replace the forward node by one with more outputs; ``types`` maps the new outputs to their types."""
        # The node is in the graph already: replace it at its index.
        node_index = next(index for index, other in enumerate(self.builder.nodes) if other.name == self.node.name)
        self.builder.nodes[node_index] = self.node = node
        self.builder.types.update((name, type_) for name, type_ in types.items() if type_ is not None)
        self.tensors.update((name, self.builder.tensor(name, type_)) for name, type_ in types.items())
