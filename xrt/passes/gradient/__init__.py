"""Reverse-mode differentiation of a Function into a Function of ONNX operators that also returns gradients.

A table holds one rule per operator, with its mathematical source. An operator without a rule is decomposed first. The pass
executes nothing and depends on no engine, so every engine can run the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.passes.gradient.differentiation import (
        expand_gradient_nodes as expand_gradient_nodes,
        gradient as gradient,
    )

__all__, __getattr__, __dir__ = load_lazily(__name__)
