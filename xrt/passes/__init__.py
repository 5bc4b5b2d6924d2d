"""Passes: stateless functions from a Function to an equivalent Function.

A pass returns its input itself if it changes nothing, and leaves a node that it does not support as it is. Passes do not run
operators, except integer arithmetic on shapes: the evaluator of `fold_constants` is an argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.passes.decomposition import find_decomposition as find_decomposition
    from xrt.passes.shape_inference import bind_dims as bind_dims, infer_shapes as infer_shapes, specialize as specialize
    from xrt.passes.simplification import (
        drop_dead_nodes as drop_dead_nodes,
        fold_constants as fold_constants,
        inline_constant_control_flow as inline_constant_control_flow,
        optimize as optimize,
    )

__all__, __getattr__, __dir__ = load_lazily(__name__)
