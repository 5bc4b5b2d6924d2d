"""The reference engine: it folds constants and computes expected results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xrt.engines.toolkit import reference_evaluator

if TYPE_CHECKING:
    from xrt.graph import Function


def evaluate(function: Function, inputs: Sequence[Any], threads: int = 1) -> list[Any]:
    """Return the outputs of a Function from its inputs, both in its order; raises CompileRefused where there is no kernel.

    A product with packed weights (MatMulNBits) is computed as one of floats.
    """
    if any(node.op_type == "MatMulNBits" for node in function.nodes):
        from xrt.passes.quantize.packed import unpack_weights  # for those alone who have some

        function = unpack_weights(function)
    return reference_evaluator.evaluate(function, inputs, threads=threads)
