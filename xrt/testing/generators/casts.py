"""Recipes for casts between float types, in chains with arithmetic that overflows and underflows in the narrow ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xrt.graph import DType

if TYPE_CHECKING:
    from xrt.testing.graph_draft import GraphDraft

__all__ = ["CASTS"]

_FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)
_SCALES = (1.0, 2.0**15, 2.0**17, 2.0**-14, 2.0**70)
"""Powers of two, so that only casts round."""


def casts_of_floats(draft: GraphDraft) -> None:
    """A new input, scaled; two to four casts, and products or negatives between them. Nothing is computed from the result.

    The input is new because a difference that is admitted before a cast becomes a step behind it.
    """
    x = draft.add_given(DType.FLOAT32, draft.shape())
    scale = draft.constant(np.float32(draft.choose.pick(_SCALES)))
    value = draft.node("Mul", [x, scale], draft.out(x.dtype, x.shape, np.inf, steps=True))[0]
    for to in (*(draft.choose.pick(_FLOATS) for _ in range(draft.choose.integer(1, 3))), DType.FLOAT32):
        value = draft.node("Cast", [value], draft.out(to, x.shape, np.inf, steps=True), to=to.onnx)[0]
        op = draft.choose.pick(("", "Neg", "Mul"))
        if op:
            value = draft.node(op, [value] * (2 if op == "Mul" else 1), draft.out(to, x.shape, np.inf, steps=True))[0]


CASTS = (casts_of_floats,)
