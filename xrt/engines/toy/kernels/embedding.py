"""Operators of transformers that are neither products nor normalisations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.engines.kernels.elementwise import swish
from xrt.engines.toolkit.array_ops.precision import round_once
from xrt.engines.toy.table import Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__: list[str] = []


@ops("RotaryEmbedding")
def rotary_embedding(node: Node, env: KernelContext) -> Run:
    """Rotate pairs of features by angles that grow with the position; features beyond ``rotary_embedding_dim`` stay."""
    heads = node.attr("num_heads", 0)
    width, interleaved = node.attr("rotary_embedding_dim", 0), bool(node.attr("interleaved", 0))

    def run(x: Array, cos: Array, sin: Array, positions: Array | None = None) -> Array:
        if positions is not None:
            cos, sin = cos[positions], sin[positions]
        cos, sin = cos[:, :, None], sin[:, :, None]  # (batch, sequence, 1, width / 2)
        parts = x.transpose(0, 2, 1, 3) if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1)
        turned = width or parts.shape[-1]
        y = parts.copy()
        pairs = (slice(0, turned, 2), slice(1, turned, 2)) if interleaved else (slice(turned // 2), slice(turned // 2, turned))
        first, second = parts[..., pairs[0]], parts[..., pairs[1]]
        y[..., pairs[0]] = cos * first - sin * second
        y[..., pairs[1]] = sin * first + cos * second
        return y.transpose(0, 2, 1, 3) if x.ndim == 4 else y.reshape(x.shape)

    return run


@ops("SwiGLU")
def swiglu(node: Node, env: KernelContext) -> Run:
    xp, alpha = env.xp, node.attr("alpha", 1.0)
    return round_once(lambda gate, value: swish(xp, gate, alpha) * value)
