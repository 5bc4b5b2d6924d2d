"""The traits of ONNX's operators, one row per operator. Lists of operators in XRT are derived from this table.

Not derived from it: the engines' tables of supported operators and known issues, and tables with one function per operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag, auto

from xrt.graph import Function, Node, since_version


class Trait(Flag):
    """A property of an operator that holds for all its inputs and attributes."""

    ELEMENTWISE = auto()
    """Each element depends only on the elements of the inputs at the same position, after broadcasting."""
    KEEPS_ZERO = auto()
    """Maps zeros to zeros, on every engine."""
    REARRANGES = auto()
    """The result has exactly the elements of the first input, in a different order or shape."""
    SELECTS = auto()
    """Each element of the first result is copied from the first input; some elements may be missing or repeated."""
    MOVES = auto()
    """Each element of the result is copied from an input or is a constant: nothing is computed."""
    REDUCTION = auto()
    """Combines the elements along axes or in windows: reductions, pools, normalizations."""
    PRODUCT = auto()
    """Computes sums of products, which libraries optimize most: matrix products, convolutions, recurrent layers, attention."""
    UPDATES = auto()
    """The result is the first input with some elements replaced, so it can be computed in place."""
    READS_SHAPE = auto()
    """Reads only the shape and type of its input, or an input that is itself a shape."""
    SIZED_BY_DATA = auto()
    """The shape of the result depends on the values of the inputs, and may be empty."""
    DISCONTINUOUS = auto()
    """A step function: the gradient is zero, and a rounding error can change the result by a whole step."""
    RANDOM = auto()
    TRAINING = auto()
    """Has a training form, which may draw random numbers or update statistics."""


_E, _Z, _D, _PRODUCT, _REDUCTION = Trait.ELEMENTWISE, Trait.KEEPS_ZERO, Trait.DISCONTINUOUS, Trait.PRODUCT, Trait.REDUCTION
_MOVES, _SHAPE, _RANDOM = Trait.MOVES, Trait.READS_SHAPE, Trait.RANDOM
_SELECTS = Trait.SELECTS | Trait.MOVES
_REARRANGES = Trait.REARRANGES | _SELECTS
_UPDATES = Trait.UPDATES | Trait.MOVES

TRAITS: Mapping[str, Trait] = {
    "Abs": _E | _Z,
    "Acos": _E,
    "Acosh": _E,
    "Add": _E,
    "And": _E,
    "ArgMax": _REDUCTION | _D,
    "ArgMin": _REDUCTION | _D,
    "Asin": _E,
    "Asinh": _E,
    "Atan": _E,
    "Atanh": _E,
    "Attention": _PRODUCT,
    "AveragePool": _REDUCTION,
    "BatchNormalization": _REDUCTION | Trait.TRAINING,
    "Bernoulli": _RANDOM,
    "BitShift": _E,
    "BitwiseAnd": _E,
    "BitwiseNot": _E,
    "BitwiseOr": _E,
    "BitwiseXor": _E,
    "Cast": _E | _Z,
    "CastLike": _E,
    "Ceil": _E | _Z | _D,
    "Celu": _E,
    "CenterCropPad": _MOVES,
    "Clip": _E,
    "Compress": _SELECTS | Trait.SIZED_BY_DATA,
    "Concat": _MOVES,
    "ConstantOfShape": _SHAPE,
    "Conv": _PRODUCT,
    "ConvInteger": _PRODUCT,
    "ConvTranspose": _PRODUCT,
    "Cos": _E,
    "Cosh": _E,
    "CumSum": _REDUCTION,
    "DepthToSpace": _REARRANGES,
    "Div": _E,
    "Dropout": Trait.TRAINING,
    "Einsum": _PRODUCT,
    "Elu": _E,
    "Equal": _E | _D,
    "Erf": _E,
    "Exp": _E,
    "Expand": _SELECTS,
    "EyeLike": _SHAPE,
    "Flatten": _REARRANGES,
    "Floor": _E | _Z | _D,
    "GRU": _PRODUCT,
    "Gather": _SELECTS,
    "GatherElements": _SELECTS,
    "GatherND": _SELECTS,
    "Gelu": _E,
    "Gemm": _PRODUCT,
    "GlobalAveragePool": _REDUCTION,
    "GlobalLpPool": _REDUCTION,
    "GlobalMaxPool": _REDUCTION,
    "Greater": _E | _D,
    "GreaterOrEqual": _E | _D,
    "GroupNormalization": _REDUCTION,
    "HardSigmoid": _E,
    "HardSwish": _E,
    "Hardmax": _REDUCTION | _D,
    "Identity": _E | _Z | _REARRANGES,
    "InstanceNormalization": _REDUCTION,
    "IsInf": _E,
    "IsNaN": _E,
    "LRN": _REDUCTION,
    "LSTM": _PRODUCT,
    "LayerNormalization": _REDUCTION,
    "LeakyRelu": _E | _Z,
    "Less": _E | _D,
    "LessOrEqual": _E | _D,
    "Log": _E,
    "LogSoftmax": _REDUCTION,
    "LpNormalization": _REDUCTION,
    "LpPool": _REDUCTION,
    "MatMul": _PRODUCT,
    "MatMulInteger": _PRODUCT,
    "Max": _E,
    "MaxPool": _REDUCTION | Trait.SELECTS,
    "Mean": _E,
    "MeanVarianceNormalization": _REDUCTION,
    "Min": _E,
    "Mish": _E,
    "Mod": _E,
    "Mul": _E,
    "Multinomial": _RANDOM,
    "Neg": _E | _Z,
    "NonMaxSuppression": Trait.SIZED_BY_DATA,
    "NonZero": Trait.SIZED_BY_DATA,
    "Not": _E,
    "OneHot": _MOVES,
    "Or": _E,
    "PRelu": _E,
    "Pad": _MOVES,
    "Pow": _E,
    "QLinearConv": _PRODUCT,
    "QLinearMatMul": _PRODUCT,
    "RMSNormalization": _REDUCTION,
    "RNN": _PRODUCT,
    "RandomNormal": _RANDOM,
    "RandomNormalLike": _RANDOM,
    "RandomUniform": _RANDOM,
    "RandomUniformLike": _RANDOM,
    "Reciprocal": _E,
    "ReduceL1": _REDUCTION,
    "ReduceL2": _REDUCTION,
    "ReduceLogSum": _REDUCTION,
    "ReduceLogSumExp": _REDUCTION,
    "ReduceMax": _REDUCTION,
    "ReduceMean": _REDUCTION,
    "ReduceMin": _REDUCTION,
    "ReduceProd": _REDUCTION,
    "ReduceSum": _REDUCTION,
    "ReduceSumSquare": _REDUCTION,
    "Relu": _E | _Z,
    "Reshape": _REARRANGES,
    "ReverseSequence": _REARRANGES,
    "Round": _E | _Z | _D,
    "Scatter": _UPDATES,
    "ScatterElements": _UPDATES,
    "ScatterND": _UPDATES,
    "Selu": _E,
    "Shape": _SHAPE,
    "Shrink": _E,
    "Sigmoid": _E,
    "Sign": _E | _Z | _D,
    "Sin": _E,
    "Sinh": _E,
    "Size": _SHAPE,
    "Slice": _SELECTS,
    "Softmax": _REDUCTION,
    "Softplus": _E,
    "Softsign": _E,
    "SpaceToDepth": _REARRANGES,
    "Split": _SELECTS,
    "Sqrt": _E,
    "Squeeze": _REARRANGES,
    "Sub": _E,
    "Sum": _E,
    "Swish": _E,
    "Tan": _E,
    "Tanh": _E,
    "TensorScatter": _UPDATES,
    "ThresholdedRelu": _E | _Z,
    "Tile": _SELECTS,
    "TopK": _REDUCTION,
    "Transpose": _REARRANGES,
    "Trilu": _MOVES,
    "Unique": Trait.SIZED_BY_DATA,
    "Unsqueeze": _REARRANGES,
    "Where": _E | _MOVES,
    "Xor": _E,
}

SHAPE_OPERANDS: Mapping[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "MaxUnpool": (2,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
"""Operator to the indices of inputs that determine the shape of the result: sizes, axes, counts, bounds."""


def list_operators(trait: Trait) -> frozenset[str]:
    """The operators of ai.onnx with all traits in ``trait``, which may combine several with ``|``."""
    return frozenset(operator for operator, traits in TRAITS.items() if trait in traits)


def has_trait(node: Node, trait: Trait) -> bool:
    """Whether the node's operator belongs to ai.onnx and has all traits in ``trait``."""
    return not node.domain and trait in TRAITS.get(node.op_type, Trait(0))


def list_shape_operands(op_type: str) -> tuple[int, ...]:
    """Indices of the inputs that determine the shape of the result; for a reduction, the index of the axes."""
    # Reductions have the axes as input 1, from opset 13 or 18 on.
    return (1,) if op_type.startswith("Reduce") else SHAPE_OPERANDS.get(op_type, ())


def is_deterministic(node: Node, function: Function) -> bool:
    """Whether the node always computes the same outputs from the same inputs.

    False for random operators, Dropout in training mode, operators of domains that ``onnx`` does not describe, and nodes whose
    bodies contain such nodes. Such a node must not be folded, merged or shared.
    """
    # Without a schema nothing is known about the operator: it may draw random numbers or have side effects.
    if since_version(node, function) is None or has_trait(node, Trait.RANDOM):
        return False
    if node.op_type == "Dropout" and is_training(node, function):
        return False
    return all(is_deterministic(inner, body) for body in node.bodies for inner in body.nodes)


def is_training(node: Node, function: Function) -> bool:
    """Whether the node is in training mode; assumed for a Dropout whose flag is not constant."""
    # Before opset 7 Dropout had an `is_test` attribute, which defaults to training.
    if node.op == "Dropout" and function.opsets.get("", 7) < 7:
        return not node.attr("is_test", 0)
    # From opset 12 on, the training mode is input 2.
    if node.op == "Dropout" and len(node.inputs) > 2 and node.inputs[2]:
        flag = function.constants.get(node.inputs[2])
        return flag is None or bool(flag.array)
    return node.op_type == "BatchNormalization" and node.attr("training_mode", 0) == 1
