"""The table of gradient rules, the context that a rule receives, and helpers to write rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import numpy as np

from xrt.builder.record_op import apply, emit
from xrt.builder.tensor import Tensor
from xrt.errors import ModelError
from xrt.graph import Node, OptionalType, SequenceType, TensorType, Type

if TYPE_CHECKING:
    from xrt.builder.builder import Builder
    from xrt.graph import Dim, DType


def make_vector(*items: int) -> np.ndarray[Any, Any]:
    """Create a 1-D int64 array, as operators read axes and shapes."""
    return np.asarray(items, np.int64)


def cast(x: Tensor, dtype: DType) -> Tensor:
    return x if x.dtype is dtype else emit("Cast", x, to=dtype.onnx)


def get_shape(x: Tensor) -> Any:
    """Get the shape of a tensor: an array if it is static, otherwise a tensor that Shape computes at run time."""
    return make_vector(*x.shape) if x.tensor_type.is_static else emit("Shape", x)  # type: ignore[arg-type]  # static: all are integers


def get_extent(x: Tensor, axis: int) -> Any:
    """Get the extent of an axis as a vector of one element: an array if it is static, otherwise a tensor."""
    shape = x.tensor_type.shape
    size = None if shape is None else shape[axis]
    if isinstance(size, int):
        return make_vector(size)
    end = {} if axis == -1 else {"end": axis + 1}  # without an end, Shape includes the last axis
    return emit("Shape", x, start=axis, **end)


def join_extents(*extents: Any) -> Any:
    """Concatenate vectors of extents; the result is an array if all are arrays, otherwise a tensor."""
    if all(isinstance(size, np.ndarray) for size in extents):
        return np.concatenate(extents)
    return emit("Concat", *extents, axis=0)


def reshape(x: Tensor, shape: Any) -> Tensor:
    """Reshape to exactly these extents. An extent of 0 is zero; it does not copy the extent of the input."""
    has_no_zeros = isinstance(shape, np.ndarray) and shape.all()
    return emit("Reshape", x, shape, allowzero=None if has_no_zeros else 1)


def reshape_to(x: Tensor, like: Tensor) -> Tensor:
    if x.type == like.type and x.tensor_type.is_static:
        return x
    return reshape(x, get_shape(like))


def flatten(x: Tensor) -> Tensor:
    return emit("Reshape", x, make_vector(-1))


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
    return emit("Unsqueeze", x, make_vector(*axes)) if axes else x


def split(x: Tensor, sizes: Any, axis: int, count: int) -> Sequence[Tensor]:
    """Split along an axis into `count` tensors. `sizes` (array or tensor) has their extents; None splits into equal parts."""
    if count == 1:
        return (x,)
    operands = (x,) if sizes is None else (x, sizes)
    parts: Any = apply("Split", operands, {"axis": axis}, outputs=count)
    return tuple(parts)


def count_up_to(length: Any) -> Tensor:
    """Create the int64 vector 0, 1, ..., length - 1; ``length`` is an int64 scalar, as an array or a tensor."""
    return emit("Range", np.asarray(0, np.int64), length, np.asarray(1, np.int64))


def make_zeros(shape: Any, dtype: DType) -> Tensor:
    """Create zeros of a shape, which may be an array or a tensor."""
    return emit("ConstantOfShape", shape, value=np.zeros(1, dtype.numpy))


def zeros_like(x: Tensor) -> Tensor:
    return make_zeros(get_shape(x), x.dtype)


def count_reduced(x: Tensor, y: Tensor) -> Any:
    """Count the elements of `x` that a reduction to the shape of `y` combines: a number, or a scalar of the type of `x`."""
    if x.tensor_type.is_static and y.tensor_type.is_static:
        # The maximum avoids a division by zero for empty tensors.
        return math.prod(x.shape) / max(math.prod(y.shape), 1)  # type: ignore[arg-type]  # static
    return cast(emit("Div", emit("Size", x), emit("Size", y)), x.dtype)


def sum_tensors(parts: Sequence[Tensor]) -> Tensor:
    """Add tensors of equal shape; a single one is returned unchanged."""
    if len(parts) == 1:
        return parts[0]
    return emit("Add", *parts) if len(parts) == 2 else emit("Sum", *parts)


def reduce_sum(x: Tensor, axes: Sequence[int], *, keepdims: bool = False) -> Tensor:
    """Sum over the axes; without axes, `x` is returned unchanged."""
    return emit("ReduceSum", x, make_vector(*axes), keepdims=int(keepdims)) if axes else x


def sum_to(g: Tensor, like: Tensor) -> Tensor:
    """Sum `g` over the axes along which ``like`` was broadcast, to the shape of ``like``: the gradient of broadcasting.

    If the types do not determine which extents are 1, the axes are computed from both shapes at run time.
    """
    source, target = g.tensor_type.shape, like.tensor_type.shape
    if source is None or target is None or len(source) < len(target):
        return _sum_to_at_run_time(g, like)
    lead = len(source) - len(target)
    flags = [_is_broadcast(result, operand) for result, operand in zip(source[lead:], target, strict=True)]
    if None in flags:
        return _sum_to_at_run_time(g, like)
    # Reduce twice: axes of extent 1 must remain, leading axes that `like` does not have must be removed.
    summed = reduce_sum(g, [lead + index for index, flag in enumerate(flags) if flag], keepdims=True)
    return reduce_sum(summed, range(lead))


def _is_broadcast(result: Dim, operand: Dim) -> bool | None:
    """Whether an operand's extent is broadcast to the extent of the result. None if that is known only at run time."""
    if operand == 1:
        return result != 1
    # A symbol may be 1 at run time, except if the result has the same one.
    is_equal = isinstance(operand, int) or (operand is not None and operand == result)
    return False if is_equal else None


def _sum_to_at_run_time(g: Tensor, like: Tensor) -> Tensor:
    """Sum as `sum_to` does, along axes that are computed from the shapes in each call."""
    source, target = emit("Shape", g), emit("Shape", like)
    # Align the ranks with leading ones. The axes to sum are those whose extents differ.
    lead = emit("Sub", emit("Shape", source), emit("Shape", target))
    padded = emit("Concat", emit("ConstantOfShape", lead, value=np.ones(1, np.int64)), target, axis=0)
    differs = emit("Not", emit("Equal", source, padded))
    axes = emit("Reshape", emit("NonZero", differs), make_vector(-1))
    return emit("Reshape", emit("ReduceSum", g, axes, keepdims=1, noop_with_empty_axes=1), target, allowzero=1)


Gradients: TypeAlias = Sequence["Tensor | None"]
"""The gradients of the inputs of a node, in order; None, or missing at the end, for an input without a gradient. Gradients of
inputs that do not need one are ignored."""
Rule: TypeAlias = Callable[["RuleContext"], Gradients]
RULES: dict[str, Rule] = {}
"""Gradient rules by qualified operator name, as in `Node.op`."""
_Rule = TypeVar("_Rule", bound=Rule)


def rule(*operators: str) -> Callable[[_Rule], _Rule]:
    """Decorate a function to register it as the gradient rule of operators."""

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
        f"node {node.name!r} ({node.op}) has no gradient: {reason}. Omit from with_respect_to the values that reach `of` through "
        "this node, or replace it by other operators"
    )


class RuleContext:
    """The arguments of a rule: the node, its inputs and outputs as tensors, and the gradients of its outputs."""

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
        self.captured: dict[str, Tensor] = {}
        """Gradients of values that the node's bodies capture. The rule fills this in."""

    @property
    def x(self) -> Tensor:
        return self.input(0)

    @property
    def y(self) -> Tensor:
        return self.tensors[self.node.outputs[0]]

    @property
    def g(self) -> Tensor:
        """The gradient of the first output; zeros if no reader contributed one."""
        return self.gradient(0)

    def input(self, index: int) -> Tensor:
        """Get an input that is present."""
        return self.tensors[self.node.inputs[index]]

    def optional(self, index: int) -> Tensor | None:
        """Get an input; None if it is omitted."""
        name = self.node.inputs[index] if index < len(self.node.inputs) else ""
        return self.tensors[name] if name else None

    def gradient(self, index: int) -> Tensor:
        """Get the gradient of an output; zeros if no reader contributed one."""
        gradient = self.gradients[index]
        return zeros_like(self.tensors[self.node.outputs[index]]) if gradient is None else gradient

    def wants(self, index: int) -> bool:
        """Whether the gradient of this input is needed."""
        return index < len(self.node.inputs) and self.node.inputs[index] in self.active

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attr(name, default)

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """Get the elements of a constant input; None if it is omitted or computed."""
        symbol = self.optional(index)
        constant = None if symbol is None else symbol.builder.find_constant(symbol)
        return None if constant is None else constant.array

    def rank(self, tensor: Tensor) -> int:
        """Get the rank of a tensor. Raises ModelError if it is unknown."""
        rank = tensor.tensor_type.rank
        if rank is None:
            self.refuse(f"the rank of {tensor.name!r} is not known")
        return rank

    def refuse(self, reason: str) -> NoReturn:
        """Raise ModelError for this node."""
        refuse(self.node, reason)

    def output(self, index: int, type_: Type) -> Tensor:
        """Get an output of the forward node. If the node omits it, the output is added to the node, with type ``type_``."""
        names = [*self.node.outputs, *[""] * (index + 1 - len(self.node.outputs))]
        if not names[index]:
            names[index] = self.builder.fresh(f"{self.node.name}_output_{index + 1}")
            self.replace_node(replace(self.node, outputs=tuple(names)), {names[index]: type_})
        return self.tensors[names[index]]

    def replace_node(self, node: Node, types: Mapping[str, Type]) -> None:
        """Replace the forward node by one with more outputs; ``types`` maps the new outputs to their types."""
        node_index = next(index for index, other in enumerate(self.builder.nodes) if other.name == self.node.name)
        self.builder.nodes[node_index] = self.node = node
        self.builder.types.update(types)
        self.tensors.update((name, Tensor(self.builder, name, type_)) for name, type_ in types.items())
