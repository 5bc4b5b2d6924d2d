"""ONNX's operators, each described once: traits, decompositions into other operators, and the rewriting of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import list_names, load_lazily

if TYPE_CHECKING:
    from xrt.operators.traits import (
        SHAPE_OPERANDS as SHAPE_OPERANDS,
        Trait as Trait,
        has_trait as has_trait,
        is_deterministic as is_deterministic,
        is_training as is_training,
        list_operators as list_operators,
        list_shape_operands as list_shape_operands,
    )

_MODULES = {
    "xrt.operators.traits": (
        "SHAPE_OPERANDS",
        "Trait",
        "has_trait",
        "is_deterministic",
        "is_training",
        "list_operators",
        "list_shape_operands",
    ),
}

__all__ = [*list_names(_MODULES)]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
