"""Reverse-mode differentiation: a Function goes in, and a Function that returns gradients too comes out, in ONNX's own operators.

A table has one rule per operator, with its mathematical source; an operator without a rule is differentiated through its
definition in other operators. Nothing is computed here, and no rule asks for an engine: any engine runs the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import list_names, load_lazily

if TYPE_CHECKING:
    from xrt.passes.gradient.differentiation import (
        Gradient as Gradient,
        expand_gradient_nodes as expand_gradient_nodes,
        gradient as gradient,
    )

_MODULES = {
    "xrt.passes.gradient.differentiation": ("Gradient", "expand_gradient_nodes", "gradient"),
}

__all__ = [*list_names(_MODULES)]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
