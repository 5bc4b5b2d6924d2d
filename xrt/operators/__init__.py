"""ONNX's operators, each described once: traits, decompositions into other operators, and the rewriting of nodes."""

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.operators.rewriting import (
        NodeWriter as NodeWriter,
        as_function as as_function,
        decompose_nodes as decompose_nodes,
        ensure_computed_outputs as ensure_computed_outputs,
        find_constant as find_constant,
        find_node_constant as find_node_constant,
        inline_function as inline_function,
        rewrite_nodes as rewrite_nodes,
        separate_outputs as separate_outputs,
    )
    from xrt.operators.traits import (
        SHAPE_OPERANDS as SHAPE_OPERANDS,
        Trait as Trait,
        has_trait as has_trait,
        is_deterministic as is_deterministic,
        is_training as is_training,
        list_operators as list_operators,
        list_shape_operands as list_shape_operands,
    )

__all__, __getattr__, __dir__ = load_lazily(__name__)
