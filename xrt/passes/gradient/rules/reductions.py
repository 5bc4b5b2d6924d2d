"""Reductions over axes, cumulative sums and the norms along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xrt.builder.record_op import emit
from xrt.graph import DType, TensorType
from xrt.passes.gradient.definitions import definition
from xrt.passes.gradient.table import RuleContext, rule
from xrt.passes.gradient.tensors import cast, count, expand_to, number, zeros_like

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

Gradients = Sequence["Tensor | None"]


def _is_copy(at: RuleContext) -> bool:
    """Whether no axes are named, and that means none instead of all."""
    axes = at.constant(1)
    return (at.optional(1) is None or (axes is not None and axes.size == 0)) and at.attr("noop_with_empty_axes", 0) == 1


def _with_axes(at: RuleContext, reduced: Tensor) -> Tensor:
    """Return a result of the reduction with the reduced axes, each of extent 1; or so that it broadcasts to the input."""
    axes = at.optional(1)
    if at.attr("keepdims", 1) or axes is None or _is_copy(at):
        return reduced
    known = at.constant(1)
    return reduced if known is not None and known.size == 0 else emit("Unsqueeze", reduced, axes)


def _sum(at: RuleContext, x: Tensor) -> Tensor:
    """Return the sums over the node's axes with extents of 1 in their places."""
    if _is_copy(at):
        return x
    axes = at.optional(1)
    return emit("ReduceSum", x, keepdims=1) if axes is None else emit("ReduceSum", x, axes, keepdims=1)


def _check_reduces(at: RuleContext) -> None:
    """Refuse a node that names no axes where that means none: what it then gives differs between versions of ONNX."""
    if _is_copy(at):
        at.refuse("it reduces no axes (noop_with_empty_axes=1)")


@rule("ReduceSum")
def sum_elements(at: RuleContext) -> Gradients:
    """Each element has the gradient of its sum."""
    return (expand_to(_with_axes(at, at.g), at.x),)


@rule("ReduceMean")
def take_mean(at: RuleContext) -> Gradients:
    """Each element has the gradient of its mean, divided by the number of elements."""
    return (expand_to(_with_axes(at, at.g) / count(at.x, at.y), at.x),)


@rule("ReduceSumSquare")
def sum_squares(at: RuleContext) -> Gradients:
    """Here d sum x^2 = 2 x."""
    _check_reduces(at)
    return (_with_axes(at, at.g) * (at.x * 2),)


@rule("ReduceL1")
def take_l1_norm(at: RuleContext) -> Gradients:
    """Here d sum |x| = sign x."""
    _check_reduces(at)
    return (_with_axes(at, at.g) * emit("Sign", at.x),)


@rule("ReduceL2")
def take_l2_norm(at: RuleContext) -> Gradients:
    """Here d sqrt(sum x^2) = x / sqrt(sum x^2); 0 at 0."""
    _check_reduces(at)
    g, y = _with_axes(at, at.g), _with_axes(at, at.y)
    is_zero = emit("Equal", y, number(0, y))
    scale = emit("Where", is_zero, number(0, y), g / emit("Where", is_zero, number(1, y), y))
    return (scale * at.x,)


@rule("ReduceLogSum")
def take_log_of_sum(at: RuleContext) -> Gradients:
    """Here d log sum x = 1 / sum x."""
    _check_reduces(at)
    return (expand_to(_with_axes(at, at.g) / _sum(at, at.x), at.x),)


@rule("ReduceLogSumExp")
def take_log_of_sum_of_exponentials(at: RuleContext) -> Gradients:
    """Here d log sum exp x = exp(x - log sum exp x)."""
    _check_reduces(at)
    return (_with_axes(at, at.g) * emit("Exp", at.x - _with_axes(at, at.y)),)


@rule("ReduceMax", "ReduceMin")
def take_extreme(at: RuleContext) -> Gradients:
    """The gradient goes to the extreme element; elements that are equal share it."""
    mask = cast(emit("Equal", at.x, _with_axes(at, at.y)), at.x.dtype)
    return (_with_axes(at, at.g) / _sum(at, mask) * mask,)


@rule("ReduceProd")
def multiply_elements(at: RuleContext) -> Gradients:
    """Here d prod x = the product of the other elements: of those that are not 0 where one element is 0.

    Its own derivative is right where no element is 0.
    """
    x = at.x
    is_zero = emit("Equal", x, number(0, x))
    zeros_in = _sum(at, cast(is_zero, x.dtype))
    others = emit("Where", is_zero, number(1, x), x)
    axes = () if _is_copy(at) or at.optional(1) is None else (at.optional(1),)
    product: Any = others if _is_copy(at) else emit("ReduceProd", others, *axes, keepdims=1)
    at_zero = emit("Where", emit("Equal", zeros_in, number(1, x)), product, number(0, x))
    elsewhere = emit("Where", emit("Equal", zeros_in, number(0, x)), product / others, number(0, x))
    return (_with_axes(at, at.g) * emit("Where", is_zero, at_zero, elsewhere),)


@rule("CumSum")
def sum_up(at: RuleContext) -> Gradients:
    """An element is part of the sums from its own on: their gradients are summed up from the other end."""
    reverse = 1 - at.attr("reverse", 0)
    return (emit("CumSum", at.g, at.input(1), exclusive=at.attr("exclusive", 0), reverse=reverse),)


@rule("TopK")
def choose_largest(at: RuleContext) -> Gradients:
    """The gradients of the chosen elements go to the places that they are taken from."""
    gradient = emit(
        "ScatterElements",
        zeros_like(at.x),
        at.output(1, TensorType(DType.INT64, at.y.tensor_type.shape)),
        at.g,
        axis=at.attr("axis", -1),
        reduction="add",
    )
    return (gradient,)


@definition("LpNormalization")
def divide_by_norm(at: RuleContext) -> Gradients:
    """The function x / |x|_p along an axis; 0 where the norm is 0."""
    operator = "ReduceL1" if at.attr("p", 2) == 1 else "ReduceL2"
    norm = emit(operator, at.x, [at.attr("axis", -1)], keepdims=1)
    is_zero = emit("Equal", norm, number(0, norm))
    return (emit("Where", is_zero, number(0, norm), at.x / emit("Where", is_zero, number(1, norm), norm)),)


@definition("GlobalLpPool")
def take_norm_of_channels(at: RuleContext) -> Gradients:
    """(sum |x|^p)^(1/p) over all axes after the first two."""
    power = float(at.attr("p", 2))
    axes = list(range(2, at.rank(at.x)))
    if power == 2:
        return (emit("ReduceL2", at.x, axes, keepdims=1),)
    total = emit("ReduceSum", emit("Pow", emit("Abs", at.x), number(power, at.x)), axes, keepdims=1)
    return (emit("Pow", total, number(1 / power, at.x)),)
