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
"""Without native kernels: its results are bit-exact on every machine."""


@cache
def get_reference_engine() -> GraphCompiler:
    """The reference engine; cached, because constant folding uses it hundreds of times."""
    return registry.create(REFERENCE)


def evaluate(function: Function, inputs: Sequence[Any], threads: int = 1) -> list[Any]:
    """Compute the outputs of a Function; raises CompileRefused if a node has no kernel.

    A product with packed weights (MatMulNBits) is computed in floating point.
    """
    if any(node.op_type == "MatMulNBits" for node in function.nodes):
        from xrt.passes.quantize.packed import unpack_weights  # imported only if needed

        function = unpack_weights(function)
    executable = prepare_or_close(get_reference_engine().compile(function, CompileContext(threads=threads)))
    try:
        return list(executable.run(inputs))
    finally:
        executable.close()
