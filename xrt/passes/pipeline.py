"""The passes that a module runs before partitioning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.passes.constant_folding import fold_constants
from xrt.passes.inlining import drop_dead_nodes, inline_constant_control_flow
from xrt.passes.shape_inference import infer_shapes

if TYPE_CHECKING:
    from xrt.graph import Function
    from xrt.passes.constant_folding import Evaluate, MustStay


def optimize(function: Function, evaluate: Evaluate | None = None, must_stay: MustStay | None = None) -> Function:
    """Expand Gradient nodes, inline constant control flow, fold constants and remove dead nodes.

    The Function has inferred types. Without `evaluate` no constants are folded; ``must_stay`` selects DequantizeLinear nodes of
    constants that must not be folded.
    """
    if "ai.onnx.preview.training" in function.opsets:
        from xrt.passes.gradient.differentiation import expand_gradient_nodes  # imported only if needed

        expanded = expand_gradient_nodes(function)
        function = function if expanded is function else infer_shapes(expanded)
    # Values of an inlined branch become more precise in their new context.
    inlined = inline_constant_control_flow(function)
    function = function if inlined is function else infer_shapes(inlined)
    while evaluate is not None and (folded := fold_constants(function, evaluate, must_stay)) is not function:
        # One round suffices without bodies. With bodies, the types inferred after a round may allow another.
        has_bodies = any(node.bodies for node in folded.nodes)
        function = infer_shapes(folded) if has_bodies else folded
        if not has_bodies or function is folded:
            break
    return drop_dead_nodes(function)
