"""Evaluate Functions on the reference engine, for constant folding and expected results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from xrt.engines.contract import registry
from xrt.engines.contract.graph_compiler import GraphCompiler, prepare_or_close
from xrt.engines.contract.options import CompileContext

if TYPE_CHECKING:
    from xrt.graph import Function

REFERENCE = "toy{native=off}"
"""The spec of the reference engine. Without native kernels, its results are the same on every machine."""


@cache  # constant folding uses it hundreds of times
def _get_reference_engine() -> GraphCompiler:
    return registry.create(REFERENCE)


def evaluate(function: Function, inputs: Sequence[Any], threads: int = 1) -> list[Any]:
    """Compute the outputs of a Function. Raises CompileRefused if a node has no kernel.

    Products with packed weights (MatMulNBits) are computed in floating point.
    """
    if any(node.op_type == "MatMulNBits" for node in function.nodes):
        from xrt.passes.quantize.packed import unpack_weights  # imported only if needed

        function = unpack_weights(function)
    executable = prepare_or_close(_get_reference_engine().compile(function, CompileContext(threads=threads)))
    try:
        return list(executable.run(inputs))
    finally:
        executable.close()
