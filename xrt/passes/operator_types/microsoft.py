"""Types of com.microsoft, the operators that ONNX Runtime adds and that its optimizers and quantizers write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xrt.graph import Dim, DType, Shape, Type
from xrt.passes.operator_types.operands import Operands, Rule, as_first, like, make_type, of_dtype

__all__ = ["MICROSOFT"]

_WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def _over(extent: Dim, divisor: int) -> Dim:
    return extent // divisor if isinstance(extent, int) and divisor > 0 and extent % divisor == 0 else None


def _product(a: Dim, b: Dim) -> Dim:
    return a * b if isinstance(a, int) and isinstance(b, int) else None


def _rows_by(o: Operands, columns: Dim) -> list[Type | None]:
    """Return the first input's type with another last extent."""
    shape = o.shape(0)
    return [make_type(o.dtype(0), (*shape[:-1], columns) if shape else None)]


def _packed_product(o: Operands) -> Sequence[Type | None]:
    return _rows_by(o, o.attr("N"))


def _fused_product(o: Operands) -> Sequence[Type | None]:
    shape: Shape | None = None
    a, b = o.shape(0), o.shape(1)
    if not (o.attr("transBatchA", 0) or o.attr("transBatchB", 0)) and a and b:
        a, b = _turned(a, o.attr("transA", 0)), _turned(b, o.attr("transB", 0))
        types = [make_type(o.dtype(0), a), make_type(o.dtype(1), b)]
        shape = Operands(o.node, types, {}, o.opset).like("MatMul", (0, 1))
    return [make_type(o.dtype(0), shape)]


def _turned(shape: Shape, turns: int) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2]) if turns and len(shape) > 1 else shape


def _quantized_gemm(o: Operands) -> Sequence[Type | None]:
    shape = o.like("Gemm", (0, 3), "transA", "transB")
    return [make_type(o.dtype(8) if o.has(8) else DType.FLOAT32, shape)]


def _quantized_conv(o: Operands) -> Sequence[Type | None]:
    last = o.attr("channels_last", 0)
    return [make_type(o.dtype(7), None if last else o.like("Conv", (0, 3), *_WINDOW))]


def _quantized_pool(o: Operands) -> Sequence[Type | None]:
    return [make_type(o.dtype(0), None if o.attr("channels_last", 0) else o.like("AveragePool", (0,), *_POOL))]


def _quantized_global_pool(o: Operands) -> Sequence[Type | None]:
    shape = o.shape(0)
    if shape is None or len(shape) < 2:
        return [make_type(o.dtype(0), None)]
    ones = (1,) * (len(shape) - 2)
    return [make_type(o.dtype(0), (shape[0], *ones, shape[-1]) if o.attr("channels_last", 0) else (*shape[:2], *ones))]


def _quantized_concat(o: Operands) -> Sequence[Type | None]:
    return [make_type(o.dtype(1), o.like("Concat", range(2, len(o.node.inputs), 3), axis=o.attr("axis", 0)))]


def _quantized_mean(o: Operands) -> Sequence[Type | None]:
    axes = o.attr("axes")
    keep, shape = o.attr("keepdims", 1), o.shape(0)
    if shape is None:
        return [make_type(o.dtype(0), None)]
    chosen = set(range(len(shape))) if axes is None else {axis % len(shape) for axis in axes}
    reduced = tuple(1 if axis in chosen else extent for axis, extent in enumerate(shape) if keep or axis not in chosen)
    return [make_type(o.dtype(0), reduced)]


def _quantize(o: Operands) -> Sequence[Type | None]:
    return [make_type(o.dtype(2) if o.has(2) else DType.UINT8, o.shape(0))]


def _skip_norm(o: Operands) -> Sequence[Type | None]:
    first, shape = o.tensor(0), o.shape(0)
    mean = make_type(DType.FLOAT32, (*shape[:-1], 1) if shape else None)
    return [first, mean, mean, first]


def _embed(o: Operands) -> Sequence[Type | None]:
    ids = o.shape(0)
    shape = (*ids, o.dim(2, 1)) if ids is not None else None
    embedded = make_type(o.dtype(2), shape)
    return [embedded, make_type(DType.INT32, None), embedded]


def _quantized_embed(o: Operands) -> Sequence[Type | None]:
    ids = o.shape(0)
    return [make_type(o.dtype(8), (*ids, o.dim(2, 1)) if ids is not None else None), make_type(DType.INT32, None)]


def _attention(o: Operands, dtype: int = 0, past: int = 4) -> Sequence[Type | None]:
    """Input and weights are packed: the weights give queries, keys and values, concatenated."""
    sizes = list(o.attr("qkv_hidden_sizes") or ())
    hidden: Dim = sizes[2] if len(sizes) == 3 else _over(o.dim(1, 1), 3)
    batch, length = o.dim(0, 0), o.dim(0, 1)
    heads = o.attr("num_heads")
    total = None if o.has(past) else length
    result = make_type(o.dtype(dtype), (batch, length, hidden))
    return [result, make_type(o.dtype(dtype), (2, batch, heads, total, _over(hidden, heads or 0)))]


def _quantized_attention(o: Operands) -> Sequence[Type | None]:
    return _attention(o, dtype=3, past=8)


def _multi_head(o: Operands) -> Sequence[Type | None]:
    query, value = o.shape(0), o.shape(2)
    heads, hidden = o.attr("num_heads"), None
    if query is not None and len(query) == 5:
        hidden = _product(query[2], query[4])
    elif query is not None and len(query) == 3 and value is not None:
        hidden = _product(value[1], value[3]) if len(value) == 4 else value[-1]
    cache = make_type(o.dtype(0), (o.dim(0, 0), heads, None, None))
    return [make_type(o.dtype(0), (o.dim(0, 0), o.dim(0, 1), hidden)), cache, cache]


def _grouped(o: Operands) -> Sequence[Type | None]:
    heads, shared = o.attr("num_heads", 0), o.attr("kv_num_heads", 0)
    width = o.dim(0, 2)
    size = _over(width, heads if o.has(1) else heads + 2 * shared)
    hidden = width if o.has(1) else _product(heads, size)
    cache = make_type(o.dtype(3) if o.has(3) else o.dtype(0), (o.dim(0, 0), shared, None, o.dim(3, 3) if o.has(3) else size))
    return [make_type(o.dtype(0), (o.dim(0, 0), o.dim(0, 1), hidden)), cache, cache]


def _quantized_lstm(o: Operands) -> Sequence[Type | None]:
    directions = 2 if o.attr("direction", "forward") == "bidirectional" else 1
    hidden, dtype = o.attr("hidden_size"), o.dtype(0)
    steps, batch = o.dim(0, 0), o.dim(0, 1)
    last = make_type(dtype, (directions, batch, hidden))
    return [make_type(dtype, (steps, directions, batch, hidden)), last, last]


def _split_gelu(o: Operands) -> Sequence[Type | None]:
    return _rows_by(o, _over(o.dim(0, -1), 2))


def _hash(o: Operands) -> Sequence[Type | None]:
    return [make_type(DType.UINT32 if o.attr("positive", 1) else DType.INT32, o.shape(0))]


def _tokens(o: Operands) -> Sequence[Type | None]:
    shape = o.shape(0)
    return [make_type(DType.STRING, None if shape is None else (*shape, None))]


def _block_gather(o: Operands) -> Sequence[Type | None]:
    data, indices, axis = o.shape(0), o.shape(1), o.attr("gather_axis", 0)
    packed = o.dtype(0) is DType.UINT8  # several elements in one of the last axis
    if data is None or indices is None or packed:
        return [make_type(o.dtype(2), None)]
    place = axis % len(data)
    return [make_type(o.dtype(2), (*data[:place], *indices, *data[place + 1 :]))]


def _distances(o: Operands) -> Sequence[Type | None]:
    return [make_type(o.dtype(0), (o.dim(0, 0), o.dim(1, 0)))]


def _qkv_product(o: Operands) -> Sequence[Type | None]:
    wide, narrow = _rows_by(o, o.attr("Nq")), _rows_by(o, o.attr("Nkv"))
    return [*wide, *narrow, *narrow, o.tensor(0)]


MICROSOFT: Mapping[str, Rule] = {
    # elementwise, and normalizations
    **dict.fromkeys(("BiasAdd", "BiasGelu", "BiasSoftmax", "ComplexMulConj", "FastGelu", "Gelu", "QuickGelu"), as_first()),
    **dict.fromkeys(("ComplexMul", "GatedAdd", "GatedRMSNorm", "GroupNorm", "Inverse", "ScaledSiLU", "Trilu"), as_first()),
    **dict.fromkeys(("MRotaryEmbedding", "MoE", "QMoE", "RotaryEmbedding"), as_first()),
    **dict.fromkeys(("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax", "QOrderedGelu"), as_first()),
    "BiasSplitGelu": _split_gelu,
    "SkipGroupNorm": as_first(also=2),
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
    "EmbedLayerNormalization": _embed,
    "QEmbedLayerNormalization": _quantized_embed,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": as_first(dtype=1),
    "QLinearAdd": like("Add", (0, 3)),
    "QLinearMul": like("Mul", (0, 3)),
    "QLinearWhere": of_dtype(1),
    "MulInteger": lambda o: [make_type(DType.INT32, o.like("Mul", (0, 2)))],
    # products
    "MatMulNBits": _packed_product,
    "MatMulBnb4": lambda o: _packed_product(o) if o.attr("transB", 1) else [make_type(o.dtype(0), None)],
    "MatMulFpQ4": of_dtype(0),
    "MatMulNBitsMlp": lambda o: [*_packed_product(o), o.tensor(0)],
    "MatMulNBitsQkv": _qkv_product,
    "FusedMatMul": _fused_product,
    "FusedMatMulActivation": _fused_product,
    "TransposeMatMul": _fused_product,
    "FusedGemm": like("Gemm", (0, 1), "transA", "transB"),
    "GemmFastGelu": like("MatMul", (0, 1)),
    "QGemm": _quantized_gemm,
    "DynamicQuantizeMatMul": like("MatMul", (0, 1)),
    "MatMulIntegerToFloat": like("MatMul", (0, 1), dtype=2),
    "MatMulInteger16": lambda o: [make_type(DType.INT32, o.like("MatMul", (0, 1)))],
    "GatherBlockQuantized": _block_gather,
    # windows
    "FusedConv": like("Conv", (0, 1), *_WINDOW),
    "NhwcConv": of_dtype(0),
    "NhwcFusedConv": of_dtype(0),
    "NhwcMaxPool": of_dtype(0),
    "QLinearConv": _quantized_conv,
    "QLinearAveragePool": _quantized_pool,
    "QLinearGlobalAveragePool": _quantized_global_pool,
    "QLinearConcat": _quantized_concat,
    "QLinearReduceMean": _quantized_mean,
    "ConvTransposeWithDynamicPads": of_dtype(0),
    "CropAndResize": of_dtype(0),
    "GridSample": of_dtype(0),
    "MaxpoolWithMask": of_dtype(0),
    # sequences and attention
    "Attention": _attention,
    "QAttention": _quantized_attention,
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _grouped,
    "LongformerAttention": as_first(),
    "GatedRelativePositionBias": of_dtype(0),
    "RelativePositionBias": of_dtype(0),
    "DynamicQuantizeLSTM": _quantized_lstm,
    "NGramRepeatBlock": as_first(dtype=1),
    # the rest
    "CDist": _distances,
    "GatherND": of_dtype(0),
    "Irfft": of_dtype(0),
    "IsAllFinite": lambda o: [make_type(DType.BOOL, ())],
    "MurmurHash3": _hash,
    "Pad": of_dtype(0),
    "ReduceSumInteger": of_dtype(DType.INT32),
    "Rfft": of_dtype(0),
    "Tokenizer": _tokens,
}
"""What the published definition of each operator says of its outputs."""
