"""The reference engine: what constants are folded with and results are held against."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from xrt.engines import CompileContext, GraphCompiler, registry
from xrt.graph import Function

__all__ = ["REFERENCE", "evaluate"]

REFERENCE = "toy{native=off}"
"""The engine that folds constants and that results are held against: right to the bit, wherever XRT was built."""


@cache
def _engine() -> GraphCompiler:
    """Return the engine, made once: constants are folded by the hundred."""
    return registry.create(REFERENCE)


def evaluate(function: Function, inputs: Sequence[Any], threads: int = 1) -> list[Any]:
    """Run a function on the reference engine; raises CompileRefused where it has no kernel."""
    executable = _engine().compile(function, CompileContext(threads=threads))
    executable.prepare()
    try:
        return list(executable.run(inputs))
    finally:
        executable.close()
