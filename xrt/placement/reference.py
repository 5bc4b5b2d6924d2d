"""Evaluate Functions on the reference engine, for constant folding and expected results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xrt.engines.toolkit import reference_evaluator

if TYPE_CHECKING:
    from xrt.graph import Function


def evaluate(function: Function, inputs: Sequence[Any], threads: int = 1) -> list[Any]:
    """Compute the outputs of a Function on the reference engine; raises CompileRefused for an operator without a kernel.

    A product with packed weights (MatMulNBits) is computed in floating point.
    """
    if any(node.op_type == "MatMulNBits" for node in function.nodes):
        from xrt.passes.quantize.packed import unpack_weights  # imported only if needed

        function = unpack_weights(function)
    return reference_evaluator.evaluate(function, inputs, threads=threads)
