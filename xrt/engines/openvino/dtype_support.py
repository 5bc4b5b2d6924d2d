"""What OpenVINO's CPU plugin computes correctly, operator by operator: the element types that were tested and agreed.

The plugin computes in float32, int32, int8, uint8 and bool whatever the model says, and converts inputs and outputs without a
warning: float64 becomes float32, int64 wraps around to int32, int8 and uint8 sums saturate instead of wrapping. So the plugin's
own answer is not used. Each operator was run on each of its types, on ordinary values and on the ends of the type's range, and
compared with the reference. A row lists the types with equal results. An operator without a row was not tested, or failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xrt.engines.openvino.integer_ranges import why_unbounded
from xrt.engines.openvino.library import LIBRARY
from xrt.graph import DType, Function, Node, TensorType, find_schema, since_version

__all__ = ["HALVES", "SUPPORT", "DTypeSupport", "list_data_inputs", "why_not_computed"]

HALVES = frozenset({DType.FLOAT16, DType.BFLOAT16})
FLOATS = HALVES | {DType.FLOAT32}
BOOL = frozenset({DType.BOOL})
INT32 = frozenset({DType.INT32})
INT64 = frozenset({DType.INT64})
BYTES = frozenset({DType.INT8, DType.UINT8})
SHORTS = frozenset({DType.INT16, DType.UINT16})
INTEGERS = BYTES | SHORTS | INT32
"""Not the wide ones, which are computed in int32: those are taken as long as they fit (`bounds`)."""
WIDE = frozenset({DType.INT64, DType.UINT32, DType.UINT64})
ANY = FLOATS | BOOL | INTEGERS


@dataclass(frozen=True, slots=True)
class DTypeSupport:
    """The element types of an operator's main parameter."""

    dtypes: frozenset[DType]
    main: int = 0
    """Which input is of that type, and with it all that the schema says are of the same."""
    wide: bool = True
    """Whether int64, uint64 and uint32 count as int32, as long as the values fit."""


def _rows(operators: str, dtypes: frozenset[DType], main: int = 0, *, wide: bool = True) -> Iterator[tuple[str, DTypeSupport]]:
    return ((operator, DTypeSupport(dtypes, main, wide)) for operator in operators.split())


SUPPORT: Mapping[str, DTypeSupport] = dict(
    [
        *_rows("Constant", ANY | WIDE),
        # moved about unchanged
        *_rows("CenterCropPad Concat DepthToSpace Expand Flatten Gather GatherElements GatherND Identity Reshape", ANY),
        *_rows("Scatter ScatterElements ScatterND Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze", ANY),
        *_rows("Trilu", ANY - INT32),
        *_rows("Where", ANY, main=1),
        *_rows("Col2Im", ANY - {DType.BFLOAT16}),
        *_rows("Pad", FLOATS | BOOL | BYTES | SHORTS),
        *_rows("ReverseSequence", frozenset({DType.FLOAT16, DType.FLOAT32}) | BOOL | BYTES | SHORTS),
        *_rows("EyeLike NonZero Shape Size", ANY | WIDE),
        *_rows("ConstantOfShape", INT64),
        *_rows("Range", frozenset({DType.FLOAT32, DType.INT16}) | INT32),
        *_rows("OneHot", INTEGERS),
        *_rows("Unique", frozenset({DType.FLOAT32}) | SHORTS | INT32),
        # one element at a time
        *_rows("Add Mul Sub", FLOATS | SHORTS | INT32),
        *_rows("Max Min", FLOATS | INTEGERS),
        *_rows("Abs", FLOATS | {DType.UINT8} | SHORTS | INT32),
        *_rows("Neg", FLOATS | {DType.INT16} | INT32),
        *_rows("Div", FLOATS | BYTES | SHORTS),
        *_rows("Mod", BYTES | SHORTS),
        *_rows("Relu", FLOATS | {DType.INT8, DType.INT16}),
        *_rows("Clip Sign", FLOATS | INTEGERS),
        *_rows("Equal", FLOATS | BOOL | INTEGERS),
        *_rows("Greater GreaterOrEqual Less LessOrEqual", FLOATS | INTEGERS),
        *_rows("And Not Or Xor", BOOL),
        *_rows("BitShift", frozenset({DType.UINT16}), wide=False),
        *_rows("BitwiseAnd BitwiseNot BitwiseOr BitwiseXor", INTEGERS, wide=False),
        *_rows("Cast CastLike", FLOATS | BOOL | INTEGERS),
        *_rows("Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Dropout Elu Erf Exp Floor Gelu HardSigmoid", FLOATS),
        *_rows("HardSwish IsInf IsNaN LeakyRelu Log Mean Mish PRelu Pow Reciprocal Round Selu Shrink Sigmoid", FLOATS),
        *_rows("Sin Sinh Softplus Softsign Sqrt Sum Swish Tan Tanh ThresholdedRelu", FLOATS),
        # along axes and in windows
        *_rows("Attention LRN LayerNormalization LpNormalization MeanVarianceNormalization RMSNormalization", FLOATS),
        *_rows("BatchNormalization GroupNormalization InstanceNormalization RotaryEmbedding", FLOATS),
        *_rows("AveragePool Conv ConvTranspose GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool", FLOATS),
        *_rows("MaxPool", FLOATS | BYTES),
        *_rows("NonMaxSuppression", frozenset({DType.FLOAT32})),
        *_rows("AffineGrid GridSample Resize RoiAlign Upsample", FLOATS),
        *_rows("Einsum Gemm MatMul GRU LSTM RNN", FLOATS),
        *_rows("Hardmax LogSoftmax NegativeLogLikelihoodLoss Softmax SoftmaxCrossEntropyLoss", FLOATS),
        *_rows("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceSum ReduceSumSquare", FLOATS),
        *_rows("ReduceProd", FLOATS | INT32),
        *_rows("ReduceMax ReduceMin", FLOATS | BOOL | BYTES),
        *_rows("ArgMax ArgMin", FLOATS | INTEGERS),
        *_rows("CumSum", FLOATS | INT32),
        *_rows("DFT STFT", frozenset({DType.FLOAT32})),
        *_rows("BlackmanWindow HammingWindow HannWindow", INT32 | INT64),
        # with bodies
        *_rows("If Scan", ANY),
        *_rows("Loop", ANY, main=2),
        *_rows("TopK", FLOATS | INTEGERS),
        # of quantised numbers
        *_rows("ConvInteger MatMulInteger", BYTES),
        *_rows("DequantizeLinear", BYTES | SHORTS | INT32),
    ]
)
"""What was tried and agreed, of OpenVINO 2026.4."""


NATIVE = frozenset({"QLinearConv", "QLinearMatMul", "QuantizeLinear"})
"""Operators that the library computes by a rule of its own: it rounds ties up, and ONNX to even."""


def why_not_computed(node: Node, function: Function, *, native: bool) -> str | None:
    """Return which element type OpenVINO does not compute the node in; None when it does so in all that it has.

    With ``native`` what it computes instead counts as well.
    """
    row = SUPPORT.get(node.op_type)
    if native and (row is not None or node.op_type in NATIVE):
        return None
    if row is None:
        return f"{LIBRARY} computes {node.op} otherwise than ONNX says, or not at all"
    data = list_data_inputs(node, function)
    types = {name: function.get_type(name) for name in dict.fromkeys((*node.uses, *node.defines))}
    dtypes = {name: type_.dtype for name, type_ in types.items() if isinstance(type_, TensorType)}
    for name, dtype in dtypes.items():
        if reason := _why_not_type(name, dtype, node, row, is_data=name in data):
            return reason
    is_wide = any(dtypes.get(name) in WIDE for name in (*data, *node.defines))
    return why_unbounded(node, function) if is_wide and not row.dtypes & WIDE else None


def _why_not_type(name: str, dtype: DType, node: Node, row: DTypeSupport, *, is_data: bool) -> str | None:
    if dtype is DType.FLOAT64:
        return f"{name!r} is float64, and {LIBRARY} computes float64 in float32"
    if not is_data or dtype in row.dtypes or (dtype in WIDE and row.wide):
        return None
    return f"{LIBRARY} computes {node.op} in {', '.join(sorted(map(str, row.dtypes)))}, and {name!r} is {dtype}"


def list_data_inputs(node: Node, function: Function) -> frozenset[str]:
    """Return the values that a node computes with, by its schema those of its main input's type; not places and sizes."""
    row, schema = SUPPORT.get(node.op_type), find_schema(node.op_type, since_version(node, function) or 1)
    if row is None or schema is None or not schema.inputs:
        return frozenset(node.uses)
    kinds = [[formal.type_str for formal in formals] for formals in (schema.inputs, schema.outputs)]
    pairs = zip(kinds, (node.inputs, node.outputs), strict=True)
    named = [(kind[min(k, len(kind) - 1)], name) for kind, names in pairs for k, name in enumerate(names) if kind and name]
    main = kinds[0][min(row.main, len(kinds[0]) - 1)]
    return frozenset(name for kind, name in named if kind == main)
