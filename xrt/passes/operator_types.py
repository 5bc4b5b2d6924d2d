"""Rules for the output types of operators of com.microsoft and ai.onnx.ml, for which onnx has no or wrong inference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from xrt.errors import ModelError
from xrt.formats.onnx.inference import infer_node_types
from xrt.graph import Dim, DType, MapType, Node, Shape, TensorType, Type, read_attributes


@dataclass(frozen=True, slots=True)
class Operands:
    """A node with the types of its inputs."""

    node: Node
    types: Sequence[Type | None]
    opset: int
    """The imported version of ai.onnx."""

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attr(name, default)

    def has(self, index: int) -> bool:
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def tensor(self, index: int) -> TensorType | None:
        type_ = self.types[index] if index < len(self.types) else None
        return type_ if isinstance(type_, TensorType) else None

    def dtype(self, index: int) -> DType | None:
        type_ = self.tensor(index)
        return None if type_ is None else type_.dtype

    def shape(self, index: int) -> Shape | None:
        type_ = self.tensor(index)
        return None if type_ is None else type_.shape

    def dim(self, index: int, axis: int) -> Dim:
        shape = self.shape(index)
        return None if shape is None or not -len(shape) <= axis < len(shape) else shape[axis]

    def infer_shape_as(self, op: str, inputs: Sequence[int], *attributes: str, **extra: Any) -> Shape | None:
        """Infer the shape of output 0 as if the node were an ``op`` with these inputs (by index) and attributes."""
        types = [self.tensor(index) for index in inputs]
        if None in types:
            return None
        names = [f"i{index}" for index in inputs]
        values = {name: value for name in attributes if (value := self.attr(name)) is not None} | extra
        # `op` may not support the element type, which does not matter to the shape.
        floats = {name: TensorType(DType.FLOAT32, t.shape) for name, t in zip(names, types, strict=True) if t is not None}
        try:
            node = Node(op, tuple(names), ("o",), read_attributes(values))
            (type_,) = infer_node_types(node, floats, {}, {"": self.opset})
        except ModelError:
            return None  # contradictory inputs are reported by the engine that runs the node
        return type_.shape if isinstance(type_, TensorType) else None


Rule: TypeAlias = Callable[[Operands], Sequence[Type | None]]
"""Computes the types of a node's outputs; trailing outputs may be missing."""


def make_type(dtype: DType | None, shape: Shape | None) -> Type | None:
    """Make a tensor type; None if the element type is unknown."""
    return None if dtype is None else TensorType(dtype, shape)


def copy_shape(*, outputs: int = 1, dtype: int = 0) -> Rule:
    """Make a rule: the first ``outputs`` outputs have the shape of input 0 and the element type of input ``dtype``."""
    return lambda o: [make_type(o.dtype(dtype), o.shape(0))] * outputs


def fix_dtype(dtype: int | DType) -> Rule:
    """Make a rule: output 0 has an unknown shape, and the element type ``dtype`` or that of the input with index ``dtype``."""
    return lambda o: [make_type(o.dtype(dtype) if isinstance(dtype, int) else dtype, None)]


def infer_as(op: str, inputs: Sequence[int], *attributes: str, dtype: int = 0) -> Rule:
    """Make a rule: output 0 has the shape from `Operands.infer_shape_as`, and the element type of input ``dtype``."""
    return lambda o: [make_type(o.dtype(dtype), o.infer_shape_as(op, inputs, *attributes))]


def _count_rows(o: Operands) -> Dim:
    """Count the rows of input 0. A vector is one row; the number of rows of a scalar or an unknown shape is None."""
    shape = o.shape(0)
    if not shape:
        return None
    return 1 if len(shape) == 1 else shape[0]


def _classifier(o: Operands) -> Sequence[Type | None]:
    strings = o.attr("classlabels_strings")
    count = len(strings or o.attr("classlabels_int64s") or o.attr("classlabels_ints") or ())
    rows = _count_rows(o)
    # Without probabilities (prob_a) the scores of an SVM are one-vs-one decisions, not one per class.
    has_score_per_class = o.attr("prob_a") if o.node.op_type == "SVMClassifier" else count > 1
    columns = count if has_score_per_class and count else None
    return [TensorType(DType.STRING if strings else DType.INT64, (rows,)), TensorType(DType.FLOAT32, (rows, columns))]


def _regressor(o: Operands) -> Sequence[Type | None]:
    columns = o.attr("n_targets") if o.node.op_type.startswith("Tree") else o.attr("targets", 1)
    return [TensorType(DType.FLOAT32, (_count_rows(o), columns))]


def _floats(o: Operands) -> Sequence[Type | None]:
    return [TensorType(DType.FLOAT32, o.shape(0))]


def _extract_features(o: Operands) -> Sequence[Type | None]:
    shape, indices = o.shape(0), o.shape(1)
    if not shape:
        return [make_type(o.dtype(0), None)]
    # The indices are a vector, which may have leading axes of extent 1.
    lengths = [extent for extent in indices or () if extent != 1]
    if len(lengths) == 1:
        count = lengths[0]
    else:
        count = None if indices is None else _multiply_all(lengths)
    rows = shape[:-1] if len(shape) > 1 else (1,)  # a vector is one row
    return [make_type(o.dtype(0), (*rows, count))]


def _multiply_all(extents: Sequence[Dim]) -> Dim:
    sizes = [extent for extent in extents if isinstance(extent, int)]
    return math.prod(sizes) if len(sizes) == len(extents) else None


def _cast_map(o: Operands) -> Sequence[Type | None]:
    dtype = {"TO_FLOAT": DType.FLOAT32, "TO_INT64": DType.INT64, "TO_STRING": DType.STRING}.get(o.attr("cast_to", "TO_FLOAT"))
    return [make_type(dtype, (1, None))]


def _vectorize_dict(o: Operands) -> Sequence[Type | None]:
    vocabulary = o.attr("string_vocabulary") or o.attr("int64_vocabulary")
    type_ = o.types[0] if o.types else None
    inner = type_.value if isinstance(type_, MapType) else None
    if not isinstance(inner, TensorType):
        return [None]
    return [TensorType(inner.dtype, (1, len(vocabulary) if vocabulary else None))]


_LABEL_DTYPES = {"values_strings": DType.STRING, "values_int64s": DType.INT64, "values_floats": DType.FLOAT32}


def _relabel(o: Operands) -> Sequence[Type | None]:
    if (tensor := o.attr("values_tensor")) is not None:
        dtype = tensor.dtype
    elif o.attr("classes_strings"):  # version 1 maps in both directions
        dtype = DType.INT64 if o.dtype(0) is DType.STRING else DType.STRING
    else:
        dtype = next((dtype for name, dtype in _LABEL_DTYPES.items() if o.attr(name)), None)
    return [make_type(dtype, o.shape(0))]


def _encode_one_hot(o: Operands) -> Sequence[Type | None]:
    categories, shape = o.attr("cats_int64s") or o.attr("cats_strings"), o.shape(0)
    return [TensorType(DType.FLOAT32, None if shape is None or not categories else (*shape, len(categories)))]


ML: Mapping[str, Rule] = {
    "ArrayFeatureExtractor": _extract_features,
    "CastMap": _cast_map,
    "DictVectorizer": _vectorize_dict,
    "FeatureVectorizer": lambda o: [TensorType(DType.FLOAT32, (_count_rows(o), sum(o.attr("inputdimensions") or ()) or None))],
    "Imputer": copy_shape(),
    "LabelEncoder": _relabel,  # onnx infers no shape for version 1
    "LinearClassifier": _classifier,  # onnx counts the intercepts, which are optional
    "LinearRegressor": _regressor,
    "Normalizer": _floats,
    "OneHotEncoder": _encode_one_hot,  # onnx needs the rank of the input
    "SVMClassifier": _classifier,
    "SVMRegressor": lambda o: [TensorType(DType.FLOAT32, (_count_rows(o), 1))],
    "Scaler": _floats,
    "TreeEnsembleClassifier": _classifier,
    "TreeEnsembleRegressor": _regressor,
}
"""Rules of ai.onnx.ml, according to the operator documentation."""
_CONVOLUTION_ATTRIBUTES = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_POOL_ATTRIBUTES = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def _divide_extent(extent: Dim, divisor: int) -> Dim:
    return extent // divisor if isinstance(extent, int) and divisor > 0 and extent % divisor == 0 else None


def _replace_last_extent(o: Operands, columns: Dim) -> list[Type | None]:
    """List the type of the only output: that of input 0 with its last extent replaced by ``columns``."""
    shape = o.shape(0)
    return [make_type(o.dtype(0), (*shape[:-1], columns) if shape else None)]


def _packed_product(o: Operands) -> Sequence[Type | None]:
    return _replace_last_extent(o, o.attr("N"))


def _fused_product(o: Operands) -> Sequence[Type | None]:
    """Infer as MatMul after transA and transB; the shape is unknown with transBatchA or transBatchB, which move batch axes."""
    shape: Shape | None = None
    a, b = o.shape(0), o.shape(1)
    if not (o.attr("transBatchA", 0) or o.attr("transBatchB", 0)) and a and b:
        a, b = _transpose(a, o.attr("transA", 0)), _transpose(b, o.attr("transB", 0))
        types = [make_type(o.dtype(0), a), make_type(o.dtype(1), b)]
        shape = Operands(o.node, types, o.opset).infer_shape_as("MatMul", (0, 1))
    return [make_type(o.dtype(0), shape)]


def _transpose(shape: Shape, is_transposed: int) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2]) if is_transposed and len(shape) > 1 else shape


def _infer_channels_first(op: str, inputs: Sequence[int], *attributes: str, dtype: int = 0) -> Rule:
    """Make a rule like `infer_as`, with an unknown shape if channels_last is set, because ONNX's ``op`` has channels first."""
    infer = infer_as(op, inputs, *attributes, dtype=dtype)
    return lambda o: [make_type(o.dtype(dtype), None)] if o.attr("channels_last", 0) else infer(o)


def _quantized_global_pool(o: Operands) -> Sequence[Type | None]:
    shape = o.shape(0)
    if shape is None or len(shape) < 2:
        return [make_type(o.dtype(0), None)]
    ones = (1,) * (len(shape) - 2)
    pooled = (shape[0], *ones, shape[-1]) if o.attr("channels_last", 0) else (*shape[:2], *ones)
    return [make_type(o.dtype(0), pooled)]


def _quantized_mean(o: Operands) -> Sequence[Type | None]:
    axes = o.attr("axes")
    keepdims, shape = o.attr("keepdims", 1), o.shape(0)
    if shape is None:
        return [make_type(o.dtype(0), None)]
    reduced_axes = set(range(len(shape))) if axes is None else {axis % len(shape) for axis in axes}
    if keepdims:
        reduced = tuple(1 if axis in reduced_axes else extent for axis, extent in enumerate(shape))
    else:
        reduced = tuple(extent for axis, extent in enumerate(shape) if axis not in reduced_axes)
    return [make_type(o.dtype(0), reduced)]


def _quantized_gemm(o: Operands) -> Sequence[Type | None]:
    shape = o.infer_shape_as("Gemm", (0, 3), "transA", "transB")
    return [make_type(o.dtype(8) if o.has(8) else DType.FLOAT32, shape)]  # input 8 is the zero point of the output


def _quantized_concat(o: Operands) -> Sequence[Type | None]:
    # Inputs 0 and 1 are the output's scale and zero point, followed by (tensor, scale, zero point) triples.
    shape = o.infer_shape_as("Concat", range(2, len(o.node.inputs), 3), axis=o.attr("axis", 0))
    return [make_type(o.dtype(1), shape)]


def _skip_norm(o: Operands) -> Sequence[Type | None]:
    first, shape = o.tensor(0), o.shape(0)
    mean = make_type(DType.FLOAT32, (*shape[:-1], 1) if shape else None)
    return [first, mean, mean, first]  # result, mean, inverse standard deviation, sum of the inputs


def _embed(o: Operands, dtype: int = 2) -> Sequence[Type | None]:
    """Infer the types of (result, mask index, sum of embeddings). ``dtype`` is the index of an input with the element type."""
    ids, width = o.shape(0), o.dim(2, 1)  # input 2 is the word embedding (words, width)
    embedded = make_type(o.dtype(dtype), (*ids, width) if ids is not None else None)
    return [embedded, make_type(DType.INT32, None), embedded]


def _attention(o: Operands, dtype: int = 0, past: int = 4) -> Sequence[Type | None]:
    """Infer the types of (result, cache). ``dtype`` and ``past`` are the indices of an input with the dtype, and of the cache."""
    # The weights, input 1, have the projections of Q, K and V side by side along their last axis.
    projection_sizes = list(o.attr("qkv_hidden_sizes") or ())
    hidden_size: Dim = projection_sizes[2] if len(projection_sizes) == 3 else _divide_extent(o.dim(1, 1), 3)
    batch, length, heads = o.dim(0, 0), o.dim(0, 1), o.attr("num_heads")
    total_length = None if o.has(past) else length
    cache_shape = (2, batch, heads, total_length, _divide_extent(hidden_size, heads or 0))
    return [make_type(o.dtype(dtype), (batch, length, hidden_size)), make_type(o.dtype(dtype), cache_shape)]


def _multi_head(o: Operands) -> Sequence[Type | None]:
    query, value = o.shape(0), o.shape(2)
    heads, hidden = o.attr("num_heads"), None
    if query is not None and len(query) == 5:  # packed: (batch, length, heads, 3, head size)
        hidden = _multiply_all([query[2], query[4]])
    elif query is not None and len(query) == 3 and value is not None:
        # The value is (batch, heads, length, head size) or (batch, length, heads * head size).
        hidden = _multiply_all([value[1], value[3]]) if len(value) == 4 else value[-1]
    cache = make_type(o.dtype(0), (o.dim(0, 0), heads, None, None))
    return [make_type(o.dtype(0), (o.dim(0, 0), o.dim(0, 1), hidden)), cache, cache]  # result, keys, values


def _grouped_attention(o: Operands) -> Sequence[Type | None]:
    heads, kv_heads = o.attr("num_heads", 0), o.attr("kv_num_heads", 0)
    batch, length, width = o.dim(0, 0), o.dim(0, 1), o.dim(0, 2)
    # Without input 1, input 0 has Q, K and V side by side.
    is_packed, has_cache = not o.has(1), o.has(3)
    head_size = _divide_extent(width, heads + 2 * kv_heads if is_packed else heads)
    hidden_size = _multiply_all([heads, head_size]) if is_packed else width
    cache_dtype, cache_width = (o.dtype(3), o.dim(3, 3)) if has_cache else (o.dtype(0), head_size)
    cache = make_type(cache_dtype, (batch, kv_heads, None, cache_width))
    return [make_type(o.dtype(0), (batch, length, hidden_size)), cache, cache]  # result, keys, values


def _quantized_lstm(o: Operands) -> Sequence[Type | None]:
    directions = 2 if o.attr("direction", "forward") == "bidirectional" else 1
    hidden, dtype = o.attr("hidden_size"), o.dtype(0)
    steps, batch = o.dim(0, 0), o.dim(0, 1)
    last = make_type(dtype, (directions, batch, hidden))
    return [make_type(dtype, (steps, directions, batch, hidden)), last, last]  # all hidden states, last h, last c


def _block_gather(o: Operands) -> Sequence[Type | None]:
    data, indices, axis = o.shape(0), o.shape(1), o.attr("gather_axis", 0)
    is_packed = o.dtype(0) is DType.UINT8  # several elements per byte of the last axis
    if data is None or indices is None or is_packed:
        return [make_type(o.dtype(2), None)]  # the result has the type of the scales, input 2
    positive_axis = axis % len(data)
    return [make_type(o.dtype(2), (*data[:positive_axis], *indices, *data[positive_axis + 1 :]))]


def _qkv_product(o: Operands) -> Sequence[Type | None]:
    wide, narrow = _replace_last_extent(o, o.attr("Nq")), _replace_last_extent(o, o.attr("Nkv"))
    return [*wide, *narrow, *narrow, o.tensor(0)]


MICROSOFT: Mapping[str, Rule] = {
    # operators of which only the element type is inferred
    **dict.fromkeys(("ConvTransposeWithDynamicPads", "CropAndResize", "GridSample", "MaxpoolWithMask"), fix_dtype(0)),
    **dict.fromkeys(("GatedRelativePositionBias", "MatMulFpQ4", "NhwcConv", "NhwcFusedConv", "NhwcMaxPool"), fix_dtype(0)),
    **dict.fromkeys(("GatherND", "Irfft", "Pad", "RelativePositionBias", "Rfft"), fix_dtype(0)),
    # elementwise, and normalizations
    **dict.fromkeys(("BiasAdd", "BiasGelu", "BiasSoftmax", "ComplexMulConj", "FastGelu", "Gelu", "QuickGelu"), copy_shape()),
    **dict.fromkeys(("ComplexMul", "GatedAdd", "GatedRMSNorm", "GroupNorm", "Inverse", "ScaledSiLU", "Trilu"), copy_shape()),
    **dict.fromkeys(("MRotaryEmbedding", "MoE", "QMoE", "RotaryEmbedding"), copy_shape()),
    **dict.fromkeys(("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax", "QOrderedGelu"), copy_shape()),
    "BiasSplitGelu": lambda o: _replace_last_extent(o, _divide_extent(o.dim(0, -1), 2)),
    "SkipGroupNorm": copy_shape(outputs=2),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _skip_norm),
    "EmbedLayerNormalization": _embed,
    "QEmbedLayerNormalization": partial(_embed, dtype=8),
    "QuantizeLinear": lambda o: [make_type(o.dtype(2) if o.has(2) else DType.UINT8, o.shape(0))],
    "DequantizeLinear": copy_shape(dtype=1),
    "QLinearAdd": infer_as("Add", (0, 3)),
    "QLinearMul": infer_as("Mul", (0, 3)),
    "QLinearWhere": fix_dtype(1),
    "MulInteger": lambda o: [make_type(DType.INT32, o.infer_shape_as("Mul", (0, 2)))],
    # products
    "MatMulNBits": _packed_product,
    "MatMulBnb4": lambda o: _packed_product(o) if o.attr("transB", 1) else [make_type(o.dtype(0), None)],
    "MatMulNBitsMlp": lambda o: [*_packed_product(o), o.tensor(0)],
    "MatMulNBitsQkv": _qkv_product,
    **dict.fromkeys(("FusedMatMul", "FusedMatMulActivation", "TransposeMatMul"), _fused_product),
    "FusedGemm": infer_as("Gemm", (0, 1), "transA", "transB"),
    "GemmFastGelu": infer_as("MatMul", (0, 1)),
    "QGemm": _quantized_gemm,
    "DynamicQuantizeMatMul": infer_as("MatMul", (0, 1)),
    "MatMulIntegerToFloat": infer_as("MatMul", (0, 1), dtype=2),
    "MatMulInteger16": lambda o: [make_type(DType.INT32, o.infer_shape_as("MatMul", (0, 1)))],
    "GatherBlockQuantized": _block_gather,
    # windows
    "FusedConv": infer_as("Conv", (0, 1), *_CONVOLUTION_ATTRIBUTES),
    "QLinearConv": _infer_channels_first("Conv", (0, 3), *_CONVOLUTION_ATTRIBUTES, dtype=7),
    "QLinearAveragePool": _infer_channels_first("AveragePool", (0,), *_POOL_ATTRIBUTES),
    "QLinearGlobalAveragePool": _quantized_global_pool,
    "QLinearConcat": _quantized_concat,
    "QLinearReduceMean": _quantized_mean,
    # sequences and attention
    "Attention": _attention,
    "QAttention": lambda o: _attention(o, dtype=3, past=8),
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _grouped_attention,
    "LongformerAttention": copy_shape(),
    "DynamicQuantizeLSTM": _quantized_lstm,
    "NGramRepeatBlock": copy_shape(dtype=1),
    # other operators
    "CDist": lambda o: [make_type(o.dtype(0), (o.dim(0, 0), o.dim(1, 0)))],
    "IsAllFinite": lambda o: [make_type(DType.BOOL, ())],
    "MurmurHash3": lambda o: [make_type(DType.UINT32 if o.attr("positive", 1) else DType.INT32, o.shape(0))],
    "ReduceSumInteger": fix_dtype(DType.INT32),
    "Tokenizer": lambda o: [make_type(DType.STRING, None if (shape := o.shape(0)) is None else (*shape, None))],
}
"""Rules of com.microsoft, according to the contrib operator documentation of ONNX Runtime."""
OPERATOR_TYPES: Mapping[str, Mapping[str, Rule]] = {"com.microsoft": MICROSOFT, "ai.onnx.ml": ML}
"""Domain to operator to rule."""
