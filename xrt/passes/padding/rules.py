"""The table of padding rules by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from xrt.graph import Node
from xrt.operators import SHAPE_OPERANDS, Trait, list_operators
from xrt.passes.padding.elementwise import (
    NEUTRAL,
    apply_arg,
    apply_cumulative,
    apply_einsum,
    apply_elementwise,
    apply_first,
    apply_gemm,
    apply_global_pool,
    apply_integer_division,
    apply_matmul,
    apply_normalization,
    apply_reduction,
    apply_softmax,
)
from xrt.passes.padding.movement import (
    apply_concat,
    apply_depth_to_space,
    apply_expand,
    apply_fill,
    apply_flatten,
    apply_gather,
    apply_gather_elements,
    apply_gather_nd,
    apply_one_hot,
    apply_pad,
    apply_range,
    apply_reshape,
    apply_scatter_elements,
    apply_slice,
    apply_split,
    apply_squeeze,
    apply_tensor_scatter,
    apply_tile,
    apply_top_k,
    apply_transpose,
    apply_unsqueeze,
)
from xrt.passes.padding.padder import Padder, Refused
from xrt.passes.padding.windows import (
    apply_attention,
    apply_average_pool,
    apply_conv,
    apply_conv_transpose,
    apply_max_pool,
    apply_recurrent,
    apply_resize,
    apply_rotary,
)

__all__ = ["PADDED_SHAPES", "RULES", "SIZED"]

PADDED_SHAPES: Mapping[str, tuple[int, ...]] = {
    **{op: SHAPE_OPERANDS[op] for op in ("ConstantOfShape", "Expand", "Range", "Reshape", "Tile")},
    "Slice": (1, 2),
}
"""Inputs that describe shapes and so use padded sizes; in all other inputs a size is a value and must be the true one."""
SIZED = frozenset(SHAPE_OPERANDS).difference(PADDED_SHAPES, ("Squeeze", "Unsqueeze"))
"""Operators that must not read padded sizes: no rule follows these. Squeeze and Unsqueeze read axes."""


def _apply_dropout(p: Padder, node: Node) -> None:
    if len(node.inputs) > 2 and node.inputs[2] and p.integers(node, 2) != [0]:
        raise Refused("it is in training mode")
    apply_first(p, node)


def _apply_cast_like(p: Padder, node: Node) -> None:
    """Of the second input only the type matters."""
    p.set(node.outputs[0], p.axes(node.inputs[0]), p.zeros(node.inputs[0]))


def _apply_quantized(p: Padder, node: Node) -> None:
    """Per-axis scales must belong to an axis without padding."""
    if any(name in p.states for name in node.inputs[1:] if name) or node.attr("block_size", 0):
        raise Refused("its scales are padded, or of blocks")
    axes = p.axes(node.inputs[0])
    if len(p.axes(node.inputs[1])) and p.is_padded(axes[node.attr("axis", 1)]):
        raise p.refuse("it has a scale for each element of the padded axis", axes[node.attr("axis", 1)])
    p.set(node.outputs[0], axes)


def _apply_trilu(p: Padder, node: Node) -> None:
    """The triangle depends on positions only."""
    axes = p.axes(node.inputs[0])
    if any(len(axis) != 1 for axis in axes[-2:]):
        raise p.refuse("the padded axis is merged with others", *axes)
    p.set(node.outputs[0], axes, p.zeros(node.inputs[0]))


Apply = Callable[[Padder, Node], Any]

_ONNX: Mapping[str, Apply] = {
    **dict.fromkeys(list_operators(Trait.ELEMENTWISE), apply_elementwise),
    "CastLike": _apply_cast_like,
    **dict.fromkeys((op for op in NEUTRAL if op.startswith("Reduce")), apply_reduction),
    **dict.fromkeys(("Div", "Mod"), apply_integer_division),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), apply_softmax),
    **dict.fromkeys(("ArgMax", "ArgMin"), apply_arg),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), apply_global_pool),
    **dict.fromkeys(("AveragePool", "LpPool"), apply_average_pool),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), apply_recurrent),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _apply_quantized),
    **dict.fromkeys(
        (
            *("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LRN", "LayerNormalization"),
            *("LpNormalization", "MeanVarianceNormalization", "RMSNormalization"),
        ),
        apply_normalization,
    ),
    "Attention": apply_attention,
    "Concat": apply_concat,
    "ConstantOfShape": apply_fill,
    "Conv": apply_conv,
    "ConvTranspose": apply_conv_transpose,
    "CumSum": apply_cumulative,
    "DepthToSpace": apply_depth_to_space,
    "Dropout": _apply_dropout,
    "Einsum": apply_einsum,
    "Expand": apply_expand,
    "Flatten": apply_flatten,
    "Gather": apply_gather,
    "GatherElements": apply_gather_elements,
    "GatherND": apply_gather_nd,
    "Gemm": apply_gemm,
    "MatMul": apply_matmul,
    "MaxPool": apply_max_pool,
    "OneHot": apply_one_hot,
    "Pad": apply_pad,
    "Range": apply_range,
    "Reshape": apply_reshape,
    "Resize": apply_resize,
    "RotaryEmbedding": apply_rotary,
    "ScatterElements": apply_scatter_elements,
    "Slice": apply_slice,
    "Split": apply_split,
    "Squeeze": apply_squeeze,
    "Tile": apply_tile,
    "TensorScatter": apply_tensor_scatter,
    "TopK": apply_top_k,
    "Transpose": apply_transpose,
    "Trilu": _apply_trilu,
    "Unsqueeze": apply_unsqueeze,
}
_MICROSOFT = {
    **dict.fromkeys(("BiasGelu", "FastGelu"), apply_elementwise),
    **dict.fromkeys(("Gelu", "QuickGelu"), apply_elementwise),
}
RULES: Mapping[tuple[str, str], Apply] = {
    **{("", op): rule for op, rule in _ONNX.items()},
    **{("com.microsoft", op): rule for op, rule in _MICROSOFT.items()},
}
"""Padding rules by domain and operator; a rule records the output state and returns the replacement of the node."""
