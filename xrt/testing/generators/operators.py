"""Recipes for computation: elementwise operators, reductions, matrix products, convolution and pooling."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from xrt.graph import DType
from xrt.testing.generators.draft import FLOATS, INTEGERS, MAX_MAGNITUDE, DraftValue, GraphDraft, choose_broadcastable_shape

F32, BOOL = DType.FLOAT32, DType.BOOL


def _find_max_bound(kind: DType) -> float:
    # Integers must not overflow, because libraries may wrap around, saturate or compute in a wider type.
    return MAX_MAGNITUDE if kind.is_float else min(MAX_MAGNITUDE, float(np.iinfo(kind.numpy).max))


def _is_signed(kind: DType) -> bool:
    return kind.is_float or kind.text.startswith("int")


def _make_positive(draft: GraphDraft, x: DraftValue, least: float = 0.5) -> DraftValue:
    """Add nodes that compute ``abs(x) + least``, which is not close to zero."""
    size = draft.node("Abs", [x], draft.make_like(x, x.bound))[0]
    floor = draft.constant(np.asarray(least, x.dtype.numpy))
    return draft.node("Add", [size, floor], draft.make_like(x, x.bound + least))[0]


# Maps each operator to the function that computes the bound of its result from that of its operand. The slope of each operator is
# at most about 1, so that errors do not grow.
_UNARY: dict[str, Callable[[float], float]] = {
    "Relu": lambda b: b,
    "Neg": lambda b: b,
    "Abs": lambda b: b,
    "Tanh": lambda b: 1.0,
    "Sigmoid": lambda b: 1.0,
    "Identity": lambda b: b,
    "LeakyRelu": lambda b: b,
    "Erf": lambda b: 1.0,
    "Softplus": lambda b: b + 1.0,
    "HardSigmoid": lambda b: 1.0,
    "Softsign": lambda b: 1.0,
    "Sin": lambda b: 1.0,
    "Cos": lambda b: 1.0,
}
_FLOAT32_ONLY = frozenset({"Erf", "Softplus", "HardSigmoid", "Softsign", "Sin", "Cos"})
"""Operators that often have no float64 kernel."""
_ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "Elu": lambda b: b + 1,
    "Selu": lambda b: 1.8 * b + 2,
    "Celu": lambda b: b + 1,
    "HardSwish": lambda b: b,
    "Mish": lambda b: b + 1,
    "Atan": lambda b: 2.0,
    "Asinh": lambda b: b,
    "LeakyRelu": lambda b: b,
}
_GENTLE = ("Relu", "Neg", "Tanh", "Abs", "Sigmoid")
"""Operators that every engine supports in float32 and float64."""


def add_simple_unary(draft: GraphDraft, x: DraftValue) -> DraftValue:
    """Add a unary operator that keeps the type and that every engine supports, and return its result. Used in bodies."""
    # For other types, Identity is the only operator that all engines support.
    op = draft.choose.pick(_GENTLE) if x.dtype.is_float else "Identity"
    return draft.node(op, [x], draft.make_like(x, _UNARY[op](x.bound)))[0]


def add_unary(draft: GraphDraft) -> None:
    op = draft.choose.pick(list(_UNARY))
    x = draft.pick_operand((F32,)) if op in _FLOAT32_ONLY else draft.pick_operand_of(FLOATS)
    draft.node(op, [x], draft.make_like(x, _UNARY[op](x.bound)))


def add_activation(draft: GraphDraft) -> None:
    op = draft.choose.pick(list(_ACTIVATIONS))
    x = draft.pick_operand((F32,))
    attributes = {"alpha": 0.3} if op in ("Elu", "Celu", "LeakyRelu") and draft.choose.integer(0, 1) else {}
    draft.node(op, [x], draft.make_like(x, _ACTIVATIONS[op](x.bound)), **attributes)


def add_integer_unary(draft: GraphDraft) -> None:
    x = draft.pick_operand_of(INTEGERS)
    op = draft.choose.pick(("Abs", "Sign", "Neg", "BitwiseNot", "Relu") if _is_signed(x.dtype) else ("Abs", "Sign"))
    if x.bound + 1 <= _find_max_bound(x.dtype):  # BitwiseNot of x is -x - 1
        draft.node(op, [x], draft.make_like(x, x.bound + 1))


def add_exponential(draft: GraphDraft) -> None:
    x = draft.pick_operand((F32,))
    if x.bound <= 2:
        # Tan has a pole at pi / 2, where rounding the argument changes the result a lot.
        op = draft.choose.pick(("Exp", "Sinh", "Cosh", "Tan") if x.bound <= 1 else ("Exp", "Sinh", "Cosh"))
        draft.node(op, [x], draft.make_like(x, math.exp(x.bound)))


def add_root_or_logarithm(draft: GraphDraft) -> None:
    x = _make_positive(draft, draft.pick_operand_of(FLOATS))
    draft.node(draft.choose.pick(("Sqrt", "Log", "Reciprocal")), [x], draft.make_like(x, max(x.bound, 2.0)))


def add_clip(draft: GraphDraft) -> None:
    x = draft.pick_operand_of((*FLOATS, *INTEGERS))
    low, high = (-0.5, 0.5) if x.dtype.is_float else (1, 3)
    lower, upper = (draft.constant(np.asarray(bound, x.dtype.numpy)) for bound in (low, high))
    operands: list[DraftValue | str] = draft.choose.pick([[x, lower, upper], [x, "", upper], [x, lower]])
    draft.node("Clip", operands, draft.make_like(x, max(x.bound, high)))


def add_binary(draft: GraphDraft) -> None:
    """A binary arithmetic operator on two values, one of which broadcasts to the other."""
    x = draft.pick_operand_of((*FLOATS, *INTEGERS))
    _add_arithmetic(draft, x, draft.pick_broadcastable(x))


def add_binary_of_one_value(draft: GraphDraft) -> None:
    x = draft.pick_operand_of((*FLOATS, *INTEGERS))
    _add_arithmetic(draft, x, x)


def _add_arithmetic(draft: GraphDraft, x: DraftValue, y: DraftValue) -> None:
    """Add an arithmetic operator whose result fits the type, with the operands in either order. Add nothing if none fits."""
    bounds = {"Add": x.bound + y.bound, "Sub": x.bound + y.bound, "Mul": x.bound * y.bound}
    bounds |= dict.fromkeys(("Max", "Min"), max(x.bound, y.bound))
    if not _is_signed(x.dtype):
        del bounds["Sub"]  # a negative difference would overflow
    if fitting := [op for op, bound in bounds.items() if bound <= _find_max_bound(x.dtype)]:
        op = draft.choose.pick(fitting)
        left, right = (x, y) if draft.choose.integer(0, 1) else (y, x)
        draft.node(op, [left, right], draft.make_like(x, bounds[op]))


def add_variadic(draft: GraphDraft) -> None:
    """Sum, Max, Min and Mean of one to four values that broadcast, possibly repeated."""
    x = draft.pick_operand((F32,))
    others = [draft.pick_broadcastable(x) for _ in range(draft.choose.integer(0, 3))]
    op = draft.choose.pick(("Sum", "Max", "Min", "Mean"))
    bounds = [value.bound for value in (x, *others)]
    if (bound := sum(bounds) if op == "Sum" else max(bounds)) <= MAX_MAGNITUDE:
        draft.node(op, [x, *others], draft.make_like(x, bound))


def add_division(draft: GraphDraft) -> None:
    x = draft.pick_operand_of(FLOATS)
    # A divisor of at least 1, so that the quotient does not exceed the bound of x.
    draft.node("Div", [x, _make_positive(draft, draft.pick_broadcastable(x), 1.0)], draft.make_like(x, x.bound))


def add_integer_division(draft: GraphDraft) -> None:
    x = draft.pick_operand_of(INTEGERS)
    divisors = (2, 3, 1, -2, -3) if _is_signed(x.dtype) else (2, 3, 1)
    shape = choose_broadcastable_shape(draft.choose, x.shape)
    seed = np.random.default_rng(draft.choose.integer(0, 99))
    # A constant, because a computed divisor might be zero, for which no result is defined.
    y = draft.constant(seed.choice(divisors, shape).astype(x.dtype.numpy))
    op, attributes = draft.choose.pick((("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1})))
    draft.node(op, [x, y], draft.make_like(x, max(x.bound, 3.0)), **attributes)


def add_power(draft: GraphDraft) -> None:
    # A positive base: negative ones have no real power with a fractional exponent.
    x = _make_positive(draft, draft.pick_operand((F32,)))
    if x.bound**2 <= MAX_MAGNITUDE:
        exponent = draft.constant(np.float32(draft.choose.pick((2.0, 0.5, -1.0, 0.0, 1.5))))
        draft.node("Pow", [x, exponent], draft.make_like(x, max(2.0, x.bound**2)))


def add_integer_power(draft: GraphDraft) -> None:
    x = draft.pick_operand(INTEGERS[:2])
    if x.bound**2 <= MAX_MAGNITUDE:
        exponent = draft.constant(np.asarray(draft.choose.integer(0, 2), x.dtype.numpy))
        draft.node("Pow", [x, exponent], draft.make_like(x, max(1.0, x.bound**2)))


def add_bitwise(draft: GraphDraft) -> None:
    x = draft.pick_operand_of(INTEGERS)
    y = draft.pick_broadcastable(x)
    op, bound = draft.choose.pick(("BitwiseAnd", "BitwiseOr", "BitwiseXor")), 2 * max(x.bound, y.bound) + 1
    if bound <= _find_max_bound(x.dtype):
        draft.node(op, [x, y], draft.make_like(x, bound))


def add_bit_shift(draft: GraphDraft) -> None:
    # ONNX defines BitShift for unsigned integers only.
    kinds = [kind for kind in INTEGERS if not _is_signed(kind) and kind in draft.dtypes]
    if not kinds:
        return
    x, bits = draft.pick_operand(kinds), draft.choose.integer(0, 2)
    bound = x.bound * 2**bits  # of a shift to the left; a shift to the right stays below it
    if bound <= _find_max_bound(x.dtype):
        amount = draft.constant(np.asarray(bits, x.dtype.numpy))
        draft.node("BitShift", [x, amount], draft.make_like(x, bound), direction=draft.choose.pick(("LEFT", "RIGHT")))


def add_prelu(draft: GraphDraft) -> None:
    x = draft.pick_operand((F32,), ranks=(1, draft.rank))
    slope = draft.pick_broadcastable(x)
    if (bound := x.bound * max(1.0, slope.bound)) <= MAX_MAGNITUDE:
        draft.node("PRelu", [x, slope], draft.make_like(x, bound))


def add_logic(draft: GraphDraft) -> None:
    x = draft.pick_operand((BOOL,))
    op = draft.choose.pick(["Not", "And", "Or", "Xor"])
    others = [] if op == "Not" else [draft.pick_broadcastable(x)]
    draft.node(op, [x, *others], draft.make_like(x, 1.0))


_COMPARISONS = ("Less", "Equal", "Greater", "LessOrEqual", "GreaterOrEqual")


def add_integer_comparison(draft: GraphDraft) -> None:
    x = draft.pick_operand_of(INTEGERS)
    draft.node(draft.choose.pick(_COMPARISONS), [x, draft.pick_broadcastable(x)], draft.make_output(BOOL, x.shape, 1.0))


def add_where(draft: GraphDraft) -> None:
    x = draft.pick_operand(draft.dtypes)
    y, condition = draft.pick_broadcastable(x), draft.pick_operand((BOOL,), choose_broadcastable_shape(draft.choose, x.shape))
    operands = [x, y] if draft.choose.integer(0, 1) else [y, x]
    draft.node("Where", [condition, *operands], draft.make_like(x, max(x.bound, y.bound)))


def add_exact_cast(draft: GraphDraft) -> None:
    """Cast to a type that represents all values of the operand, between float32 and float64, or to bool."""
    x = draft.pick_operand_of((*INTEGERS, BOOL, *FLOATS))
    may_be_negative = x.dtype is not BOOL and _is_signed(x.dtype)
    fitting = [
        k for k in INTEGERS if k in draft.dtypes and x.bound <= _find_max_bound(k) and (_is_signed(k) or not may_be_negative)
    ]
    # A cast from floats to integers is discontinuous, see `add_cast_to_integers`.
    to = draft.choose.pick([F32, DType.FLOAT64] if x.dtype.is_float else [F32, *fitting, DType.FLOAT64, BOOL])
    draft.node("Cast", [x], draft.make_output(to, x.shape, 1.0 if to is BOOL else x.bound), to=to.onnx)


def add_dropout(draft: GraphDraft) -> None:
    """Dropout in inference mode, with and without the ratio input and the mask output."""
    x = draft.pick_operand((F32,))
    ratio, training = draft.constant(np.float32(0.5)), draft.constant(np.array(False))
    operands: list[DraftValue | str] = draft.choose.pick([[x], [x, ratio], [x, "", training]])
    out, mask = draft.make_like(x, x.bound), draft.make_output(BOOL, x.shape, 1.0)
    draft.node("Dropout", operands, *draft.choose.pick([(out,), (out, mask)]))


def add_dequantization(draft: GraphDraft) -> None:
    x = draft.pick_operand((DType.parse("uint8"), DType.parse("int8")))
    scale, zero = draft.constant(np.float32(0.25)), draft.constant(np.asarray(2, x.dtype.numpy))
    draft.node(
        "DequantizeLinear", draft.choose.pick([[x, scale], [x, scale, zero]]), draft.make_output(F32, x.shape, x.bound + 2)
    )


ELEMENTWISE = (
    add_unary,
    add_binary,
    add_binary_of_one_value,
    add_unary,
    add_binary,
    add_clip,
    add_variadic,
    add_logic,
    add_integer_comparison,
    add_where,
    add_exact_cast,
    add_dropout,
)
INTEGER = (add_bitwise, add_bit_shift, add_integer_division, add_integer_unary, add_integer_power, add_dequantization)
FUNCTION = (add_activation, add_exponential, add_root_or_logarithm, add_division, add_power, add_prelu)


def add_step_function(draft: GraphDraft) -> None:
    x = draft.pick_operand((F32,))
    attributes = {"ThresholdedRelu": {"alpha": 0.4}, "Shrink": {"lambd": 0.3, "bias": 0.1}}
    op = draft.choose.pick(("Round", "Floor", "Ceil", "Sign", *attributes))
    draft.node(op, [x], draft.make_like(x, x.bound + 1, is_discontinuous=True), **attributes.get(op, {}))


def add_cast_to_integers(draft: GraphDraft) -> None:
    x = draft.pick_operand((F32,))
    to = draft.choose.pick([DType.INT32, DType.INT64])
    draft.node("Cast", [x], draft.make_output(to, x.shape, x.bound, is_discontinuous=True), to=to.onnx)


def add_cast_to_16_bits(draft: GraphDraft) -> None:
    """Cast to float16 or bfloat16, sometimes with arithmetic in this type. Rounding makes the cast discontinuous."""
    x = draft.pick_operand((F32,))
    to = draft.choose.pick((DType.FLOAT16, DType.BFLOAT16))
    y = draft.node("Cast", [x], draft.make_output(to, x.shape, x.bound, is_discontinuous=True), to=to.onnx)[0]
    for op in ("Neg", "Abs")[: draft.choose.integer(0, 2)]:
        y = draft.node(op, [y], draft.make_like(y, x.bound, is_discontinuous=True))[0]
    if draft.choose.integer(0, 1):
        draft.node("Cast", [y], draft.make_like(x, x.bound, is_discontinuous=True), to=F32.onnx)


def add_float_comparison(draft: GraphDraft) -> None:
    x = draft.pick_operand_of(FLOATS)
    draft.node(
        draft.choose.pick(_COMPARISONS),
        [x, draft.pick_broadcastable(x)],
        draft.make_output(BOOL, x.shape, 1.0, is_discontinuous=True),
    )


def add_arg_reduction(draft: GraphDraft) -> None:
    x = draft.pick_operand((F32,), ranks=(1, draft.rank))
    axis, keep = draft.choose.integer(0, x.rank - 1), draft.choose.integer(0, 1)
    if x.size:
        shape = (*x.shape[:axis], *([1] if keep else []), *x.shape[axis + 1 :])
        out = draft.make_output(DType.INT64, shape, max(x.shape), is_discontinuous=True)
        draft.node(draft.choose.pick(["ArgMax", "ArgMin"]), [x], out, axis=axis, keepdims=keep)


def add_top_k(draft: GraphDraft) -> None:
    """TopK of the largest or smallest elements, along any axis; values are continuous, indices are not."""
    x = draft.pick_operand((F32, DType.INT64), ranks=(1, draft.rank))
    axis = draft.choose.integer(-x.rank, x.rank - 1)
    dim = axis % x.rank
    if x.size:
        k = draft.choose.integer(1, x.shape[dim])
        shape = (*x.shape[:dim], k, *x.shape[dim + 1 :])
        values, indices = (
            draft.make_output(x.dtype, shape, x.bound),
            draft.make_output(DType.INT64, shape, max(x.shape), is_discontinuous=True),
        )
        draft.node("TopK", [x, draft.int64_values([k])], values, indices, axis=axis, largest=1 - draft.choose.integer(0, 1))


def add_quantization(draft: GraphDraft) -> None:
    """QuantizeLinear and DequantizeLinear, per tensor or per axis; both results are discontinuous."""
    x = draft.pick_operand((F32,), ranks=(1, min(4, draft.rank)))
    axis, kind = draft.choose.integer(0, x.rank - 1), draft.choose.pick((np.uint8, np.int8))
    count = () if draft.choose.integer(0, 1) else (x.shape[axis],)
    scale, zero = draft.constant(np.full(count, 0.05, np.float32)), draft.constant(np.full(count, 3, kind))
    # The bounds are 255 for the integers, and 0.05 * (255 - 3), rounded up, for the dequantized values.
    small = draft.make_output(DType.parse(np.dtype(kind).name), x.shape, 255.0, is_discontinuous=True)
    draft.node("QuantizeLinear", [x, scale, zero], small, axis=axis)
    draft.node("DequantizeLinear", [small, scale, zero], draft.make_like(x, 13.0, is_discontinuous=True), axis=axis)


DISCONTINUOUS = (add_step_function, add_cast_to_integers, add_float_comparison, add_arg_reduction, add_top_k)
SIXTEEN_BITS = (add_cast_to_16_bits, add_quantization)


def add_reduction(draft: GraphDraft) -> None:
    """A reduction over some or all axes; over zero elements only if the result is defined."""
    x = draft.pick_operand_of((*FLOATS, *INTEGERS[:2]))
    axes, shape, count = _choose_axes(draft, x)
    bounds = {"ReduceSum": count * x.bound} | (dict.fromkeys(("ReduceMax", "ReduceMin"), x.bound) if count else {})
    bounds |= {"ReduceProd": max(1.0, x.bound) ** count} if count <= 4 else {}  # the exponent could overflow a float
    if x.dtype.is_float:
        bounds |= {"ReduceL1": count * x.bound, "ReduceSumSquare": count * x.bound**2}
        bounds |= {"ReduceMean": x.bound} if count else {}
        bounds |= {"ReduceL2": count * x.bound} if x.bound <= 1 else {}
    _add_reduction(draft, x, bounds, axes, shape)


def add_logarithmic_reduction(draft: GraphDraft) -> None:
    """ReduceLogSum or ReduceLogSumExp, of values of at least 0.5."""
    x = _make_positive(draft, draft.pick_operand((F32,)))
    axes, shape, count = _choose_axes(draft, x)
    if count and x.bound <= 20:
        bound = x.bound + math.log(count) + 1
        _add_reduction(draft, x, dict.fromkeys(("ReduceLogSum", "ReduceLogSumExp"), bound * count), axes, shape)


def _choose_axes(draft: GraphDraft, x: DraftValue) -> tuple[list[int], tuple[int, ...], int]:
    """Choose axes to reduce; an empty list stands for all.

    Return the axes, the shape of the result with ``keepdims=1``, and the number of elements that are reduced to one.
    """
    axes = [a for a in range(x.rank) if draft.choose.integer(0, 1)]
    reduced = axes or list(range(x.rank))
    shape = tuple(1 if a in reduced else d for a, d in enumerate(x.shape))
    return axes, shape, math.prod(x.shape[a] for a in reduced)


def _add_reduction(draft: GraphDraft, x: DraftValue, bounds: dict[str, float], axes: list[int], shape: tuple[int, ...]) -> None:
    """Add one of the operators in ``bounds`` whose bound is not too large; ``axes`` and ``shape`` are from `_choose_axes`."""
    if not (fitting := [op for op, bound in bounds.items() if bound <= MAX_MAGNITUDE]):
        return
    op, keep = draft.choose.pick(fitting), draft.choose.integer(0, 1)
    signed_axes = [a - x.rank if draft.choose.integer(0, 2) == 2 else a for a in axes]
    # Without keepdims the result lacks the reduced axes, which are all axes if ``axes`` is empty.
    result_shape = shape if keep else tuple(d for a, d in enumerate(shape) if axes and a not in axes)
    operands: list[str | DraftValue] = [x, draft.int64_values(signed_axes)] if axes else [x]
    draft.node(op, operands, draft.make_output(x.dtype, result_shape, bounds[op]), keepdims=keep)


def add_empty_reduction(draft: GraphDraft) -> None:
    """ReduceSum with empty axes and ``noop_with_empty_axes``, which is Identity."""
    x = draft.pick_operand_of(FLOATS)
    draft.node("ReduceSum", [x, draft.int64_values(())], draft.make_like(x, x.bound), noop_with_empty_axes=1)


def add_running_sum(draft: GraphDraft) -> None:
    x = draft.pick_operand_of(FLOATS, 1)
    axis = draft.choose.integer(-x.rank, x.rank - 1)
    if (bound := x.bound * max(x.shape[axis], 1)) <= MAX_MAGNITUDE:
        exclusive, reverse = draft.choose.integer(0, 1), draft.choose.integer(0, 1)
        draft.node("CumSum", [x, draft.int64_values(axis)], draft.make_like(x, bound), exclusive=exclusive, reverse=reverse)


def add_softmax(draft: GraphDraft) -> None:
    x = draft.pick_operand_of(FLOATS, 1)
    axis = draft.choose.integer(-x.rank, x.rank - 1)
    op, bound = draft.choose.pick((("Softmax", 1.0), ("LogSoftmax", 2 * x.bound + 6)))
    if x.bound <= 50:
        draft.node(op, [x], draft.make_like(x, bound), axis=axis)


def add_layer_norm(draft: GraphDraft) -> None:
    x = draft.pick_operand((F32,), ranks=(1, draft.rank))
    axis = draft.choose.integer(0, x.rank - 1)
    if not x.size:
        return
    scale = draft.pick_operand((F32,), x.shape[axis:])
    biases = [draft.pick_operand((F32,), x.shape[axis:])] if draft.choose.integer(0, 1) else []
    if (bound := scale.bound * math.sqrt(x.size) + sum(b.bound for b in biases)) <= MAX_MAGNITUDE:
        # A large epsilon, since equal elements have a deviation of zero, and dividing by it would amplify rounding errors.
        draft.node("LayerNormalization", [x, scale, *biases], draft.make_like(x, bound), axis=axis, epsilon=0.1)


def add_batch_norm(draft: GraphDraft) -> None:
    x = draft.pick_operand((F32,), ranks=(2, min(draft.rank, 5)))
    channels = x.shape[1]
    scale, bias, mean = (draft.pick_operand((F32,), (channels,)) for _ in range(3))
    # A constant that is certainly positive; a computed variance might not be.
    variance = draft.constant(np.linspace(0.5, 1.5, channels, dtype=np.float32))
    if (bound := (x.bound + mean.bound) * scale.bound * 1.5 + bias.bound) <= MAX_MAGNITUDE:
        draft.node("BatchNormalization", [x, scale, bias, mean, variance], draft.make_like(x, bound), epsilon=0.01)


def add_instance_norm(draft: GraphDraft) -> None:
    x = draft.pick_operand((F32,), ranks=(3, min(draft.rank, 5)))
    if x.size:
        scale, bias = (draft.pick_operand((F32,), (x.shape[1],)) for _ in range(2))
        if (bound := scale.bound * math.sqrt(x.size) + bias.bound) <= MAX_MAGNITUDE:
            draft.node("InstanceNormalization", [x, scale, bias], draft.make_like(x, bound), epsilon=0.1)


REDUCTION = (add_reduction, add_softmax, add_running_sum)
NORMALIZATION = (add_logarithmic_reduction, add_empty_reduction, add_layer_norm, add_batch_norm, add_instance_norm)


def add_matmul(draft: GraphDraft) -> None:
    """MatMul of a vector, matrix or stack of matrices by a matrix, a vector, or a stack that broadcasts to that of x."""
    x = draft.pick_operand_of(FLOATS, 1)
    inner, batch = x.shape[-1], choose_broadcastable_shape(draft.choose, x.shape[:-2])
    columns = draft.choose.pick((2, 1, 3))
    y_shape = draft.choose.pick(((inner, columns), (inner,), (*batch, inner, columns)))
    y = draft.pick_operand((x.dtype,), y_shape)
    # (*batch of x, rows, columns): a vector x has neither batch nor rows, and a vector y has no columns.
    result = (*x.shape[:-1], *(y_shape[-1:] if len(y_shape) > 1 else ()))
    if (bound := x.bound * y.bound * max(inner, 1)) <= MAX_MAGNITUDE:
        draft.node("MatMul", [x, y], draft.make_output(x.dtype, result, bound))


def add_gemm(draft: GraphDraft) -> None:
    """Gemm with all attributes, sometimes with C, which broadcasts."""
    x = draft.pick_operand_of(FLOATS, 2, 2)
    flip_x, flip_y = draft.choose.integer(0, 1), draft.choose.integer(0, 1)
    rows, inner = x.shape[::-1] if flip_x else x.shape
    columns = draft.choose.pick((2, 1, 3))
    y = draft.pick_operand((x.dtype,), (columns, inner) if flip_y else (inner, columns))
    shape = (rows, columns)
    bias = [draft.pick_operand((x.dtype,), choose_broadcastable_shape(draft.choose, shape))] if draft.choose.integer(0, 1) else []
    if (bound := x.bound * y.bound * max(inner, 1) + 2 * sum(v.bound for v in bias)) <= MAX_MAGNITUDE:  # beta is at most 2
        scales = {"alpha": draft.choose.pick((1.0, 0.5)), "beta": draft.choose.pick((1.0, 2.0))}
        draft.node("Gemm", [x, y, *bias], draft.make_output(x.dtype, shape, bound), transA=flip_x, transB=flip_y, **scales)


def add_einsum(draft: GraphDraft) -> None:
    x = draft.pick_operand((F32,), ranks=(2, 2))
    y = draft.pick_operand((F32,), (x.shape[1], 2))
    i, j, k = x.shape[0], x.shape[1], 2
    # Each equation with the shape of its result, and the number of products that an element of the result sums.
    equations = (("ij,jk->ik", (i, k), j), ("ij,jk->ki", (k, i), j), ("ij,jk->", (), i * j * k), ("ij,jk->ijk", (i, j, k), 1))
    text, shape, count = draft.choose.pick(equations)
    if (bound := x.bound * y.bound * max(count, 1)) <= MAX_MAGNITUDE:
        draft.node("Einsum", [x, y], draft.make_output(F32, shape, bound), equation=text)


def add_integer_matmul(draft: GraphDraft) -> None:
    kinds = (DType.parse("uint8"), DType.parse("int8"))
    x = draft.pick_operand(kinds[:1], ranks=(2, 3))
    y = draft.pick_operand(kinds, (x.shape[-1], 3))
    zeros = [draft.constant(np.asarray(1, v.dtype.numpy)) for v in (x, y)] if draft.choose.integer(0, 1) else []
    bound = (x.bound + 1) * (y.bound + 1) * max(x.shape[-1], 1)  # a zero point adds at most 1
    if bound <= 1e5:
        draft.node("MatMulInteger", [x, y, *zeros], draft.make_output(DType.INT32, (*x.shape[:-1], 3), bound))


PRODUCT = (add_matmul, add_gemm)
OTHER_PRODUCT = (add_einsum, add_integer_matmul)


def _pick_image(draft: GraphDraft, spatial: int) -> DraftValue:
    """Pick or create a (batch, channels, *sizes) value. Sizes are at least 3: a dilated kernel of 2 then fits unpadded."""
    image = draft.pick_visible(lambda v: v.dtype is F32 and v.rank == spatial + 2 and min(v.shape) > 0 and min(v.shape[2:]) >= 3)
    sizes = [(1, 2), (2, 4), *[(4, 3, 5)] * spatial]
    return image or draft.add_source(F32, tuple(draft.choose.pick(options) for options in sizes))


def _choose_spatial_rank(draft: GraphDraft) -> int:
    return draft.choose.pick((2, 1, 3)[: max(1, min(draft.rank - 1, 3))])


def add_convolution(draft: GraphDraft) -> None:
    """Conv with one to three spatial axes: groups, strides, dilations, asymmetric padding."""
    spatial = _choose_spatial_rank(draft)
    x = _pick_image(draft, spatial)
    groups = x.shape[1] if draft.choose.integer(0, 2) == 2 else 1
    kernel, strides, dilations = ([draft.choose.integer(1, 2) for _ in range(spatial)] for _ in range(3))
    pads = [draft.choose.integer(0, 1) for _ in range(2 * spatial)]
    w = draft.pick_operand((F32,), (2 * groups, x.shape[1] // groups, *kernel))  # two output channels per group
    sizes = _count_windows(x.shape[2:], kernel, strides, dilations, pads)
    if (bound := x.bound * w.bound * math.prod(w.shape[1:])) <= MAX_MAGNITUDE:
        out = draft.make_output(F32, (x.shape[0], w.shape[0], *sizes), bound)
        attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads, "group": groups}
        draft.node("Conv", [x, w], out, **attributes)


def _count_windows(
    sizes: tuple[int, ...], kernel: list[int], strides: list[int], dilations: list[int], pads: list[int]
) -> list[int]:
    """Count the positions of a window along each axis. As in ONNX, ``pads`` are those before all axes, then those after."""
    counts = []
    for axis, size in enumerate(sizes):
        padded = size + pads[axis] + pads[axis + len(sizes)]
        counts.append((padded - (kernel[axis] - 1) * dilations[axis] - 1) // strides[axis] + 1)
    return counts


def add_transposed_convolution(draft: GraphDraft) -> None:
    x = _pick_image(draft, 2)
    stride, pad = draft.choose.integer(1, 2), draft.choose.integer(0, 1)
    w = draft.pick_operand((F32,), (x.shape[1], 2, 3, 3))  # (input channels, output channels, height, width)
    shape = (x.shape[0], 2, *((d - 1) * stride + 3 - 2 * pad for d in x.shape[2:]))
    if (bound := x.bound * w.bound * x.shape[1] * 9) <= MAX_MAGNITUDE:
        draft.node("ConvTranspose", [x, w], draft.make_output(F32, shape, bound), strides=[stride] * 2, pads=[pad] * 4)


def add_pooling(draft: GraphDraft) -> None:
    """Pooling over one to three spatial axes: strides, padding, with and without ``count_include_pad``."""
    spatial = _choose_spatial_rank(draft)
    x = _pick_image(draft, spatial)
    kernel, strides = [2] * spatial, [draft.choose.integer(1, 2) for _ in range(spatial)]
    pads = [draft.choose.integer(0, 1) for _ in range(2 * spatial)]
    op, attributes = draft.choose.pick(
        (("MaxPool", {}), ("AveragePool", {}), ("AveragePool", {"count_include_pad": 1}), ("LpPool", {}))
    )
    sizes = _count_windows(x.shape[2:], kernel, strides, [1] * spatial, pads)
    bound = x.bound * 2**spatial  # LpPool is at most the sum of a window
    if bound <= MAX_MAGNITUDE and x.bound <= 10:
        out = draft.make_output(F32, (*x.shape[:2], *sizes), bound, is_discontinuous=op == "LpPool")  # the root is steep at zero
        draft.node(op, [x], out, kernel_shape=kernel, strides=strides, pads=pads, **attributes)


def add_global_pooling(draft: GraphDraft) -> None:
    x = _pick_image(draft, _choose_spatial_rank(draft))
    op = draft.choose.pick(("GlobalAveragePool", "GlobalMaxPool"))
    draft.node(op, [x], draft.make_output(F32, (*x.shape[:2], *[1] * (x.rank - 2)), x.bound))


def add_depth_to_space(draft: GraphDraft) -> None:
    x = draft.add_source(F32, (draft.choose.integer(1, 2), 4, 2, 4))
    n, c, h, w = x.shape
    if draft.choose.integer(0, 1):
        draft.node("SpaceToDepth", [x], draft.make_output(F32, (n, 4 * c, h // 2, w // 2), x.bound), blocksize=2)
    else:
        mode = draft.choose.pick(("DCR", "CRD"))
        draft.node("DepthToSpace", [x], draft.make_output(F32, (n, c // 4, 2 * h, 2 * w), x.bound), blocksize=2, mode=mode)


def add_resize(draft: GraphDraft) -> None:
    x = _pick_image(draft, 2)
    # Integer factors: with others, libraries round the sampled positions differently.
    scales = draft.constant(np.array([1, 1, 2, draft.choose.integer(1, 3)], np.float32))
    factors = draft.constants[scales.name].array.astype(int)
    mode, coordinates = draft.choose.pick((("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "align_corners")))
    shape = tuple(int(d * f) for d, f in zip(x.shape, factors, strict=True))
    extra = {"nearest_mode": "floor"} if mode == "nearest" else {}
    out = draft.make_output(F32, shape, x.bound)
    draft.node("Resize", [x, "", scales], out, mode=mode, coordinate_transformation_mode=coordinates, **extra)


def add_lrn(draft: GraphDraft) -> None:
    x = _pick_image(draft, 2)
    if x.bound <= 10:
        draft.node("LRN", [x], draft.make_output(F32, x.shape, x.bound), size=3, alpha=0.1, beta=0.5, bias=1.0)


WINDOW = (add_convolution, add_pooling)
OTHER_WINDOW = (add_transposed_convolution, add_global_pooling, add_depth_to_space, add_resize, add_lrn)
