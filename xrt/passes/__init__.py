"""Passes: from a Function to a Function that computes the same.

Each is a function without state; what cannot be improved stays as it is, so no pass fails on a model that runs. None of them
runs an operator itself, integers of computed shapes excepted: the evaluator that `fold_constants` needs is handed in, and
`evaluate` is one, ONNX's own, for engines, which may not see another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.passes.constant_folding import find_constant as find_constant
    from xrt.passes.constant_folding import fold_constants as fold_constants
    from xrt.passes.inlining import drop_dead_nodes as drop_dead_nodes
    from xrt.passes.inlining import inline_constant_control_flow as inline_constant_control_flow
    from xrt.passes.pipeline import Pass as Pass
    from xrt.passes.pipeline import Pipeline as Pipeline
    from xrt.passes.pipeline import make_pipeline as make_pipeline
    from xrt.passes.shape_inference import bind_dims as bind_dims
    from xrt.passes.shape_inference import infer_shapes as infer_shapes
    from xrt.passes.shape_inference import specialize as specialize

_MODULES = {
    "Pass": "xrt.passes.pipeline",
    "Pipeline": "xrt.passes.pipeline",
    "bind_dims": "xrt.passes.shape_inference",
    "drop_dead_nodes": "xrt.passes.inlining",
    "find_constant": "xrt.passes.constant_folding",
    "fold_constants": "xrt.passes.constant_folding",
    "infer_shapes": "xrt.passes.shape_inference",
    "inline_constant_control_flow": "xrt.passes.inlining",
    "make_pipeline": "xrt.passes.pipeline",
    "specialize": "xrt.passes.shape_inference",
}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
