"""The reference engine: it folds constants and computes expected results, also for an engine that folds what it compiles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from xrt.engines.contract import registry
from xrt.engines.contract.graph_compiler import GraphCompiler
from xrt.engines.contract.options import CompileContext

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["REFERENCE", "evaluate", "get_reference_engine"]

REFERENCE = "toy{native=off}"
"""The engine that folds constants and computes expected results: bit-exact, wherever XRT was built."""


@cache
def get_reference_engine() -> GraphCompiler:
    """Return the engine, made once: constants are folded by the hundred."""
    return registry.create(REFERENCE)


def evaluate(function: Function, inputs: Sequence[Any], threads: int = 1) -> list[Any]:
    """Return the outputs of a Function from its inputs, both in its order; raises CompileRefused where there is no kernel."""
    executable = get_reference_engine().compile(function, CompileContext(threads=threads))
    executable.prepare()
    try:
        return list(executable.run(inputs))
    finally:
        executable.close()
