"""Placement by measurement, case by case: each search is a real one, with a small budget, and all of it in this process."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from xrt.cache import CompileCache
from xrt.engines import CompileContext, GraphCompiler
from xrt.module.options import ModuleOptions
from xrt.module.specialization import Specialization
from xrt.placement import TuningBudget, TuningResult, tune
from xrt.placement.available_engines import list_available_engines
from xrt.placement.engine_list import AUTO, EngineList
from xrt.placement.interleaved import StoppingRule
from xrt.placement.reference import evaluate
from xrt.placement.request import PlacementRequest
from xrt.runtime import Program, available_cores
from xrt.testing.running import fit_inputs_for

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["engines_for", "make_auto_program"]

BUDGET = 0.5
"""Seconds of a search, which what has begun may overrun by a compile; a search that knows all ends before."""

BOUNDS = TuningBudget(
    survey=0.5,
    longest=0.003,
    calibration=0.02,
    plans=2,
    apart=False,
    rules=StoppingRule(turn=0.001, least=2, most=3),
)
"""Samples and turns as short as can be: what is wanted is that plans differ and race, not the last per cent of time."""


def engines_for(asked: Sequence[str | GraphCompiler]) -> list[GraphCompiler]:
    """Return the engines that replace "auto" in a list: the other engines of the list, or else all that are ready.

    Raises EngineUnavailable for one that is listed and missing, or broken.
    """
    context = CompileContext(threads=available_cores())
    named = [one for one in asked if one != AUTO]
    return list_available_engines(asked, context, None, strict=bool(named))[0]


def make_auto_program(function: Function, inputs: Sequence[Any], engines: Sequence[GraphCompiler]) -> Program:
    """Return the compiled Program of the plan that a search on those inputs finds.

    What the search had no time for may be refused at compile: as in a module, the next best plan takes its place. Raises
    PlanError for a node that no engine takes, CompileFailed where an engine's library fails.
    """
    context, cache = CompileContext(threads=available_cores()), CompileCache()
    listed = EngineList(tuple(_turned(engines, function)), None, context, is_auto=True)

    def place(function: Function) -> TuningResult:
        reference = partial(evaluate, threads=context.threads)
        request = PlacementRequest(function, listed.engines, context, budget=BUDGET)
        return tune(request, cache=cache, reference=reference, inputs=inputs, bounds=BOUNDS)

    fit = fit_inputs_for(function, inputs, engines)
    return Specialization(fit, listed, ModuleOptions(strict=True), cache, original=fit, place=place).program()


def _turned(engines: Sequence[GraphCompiler], function: Function) -> list[GraphCompiler]:
    """Return the engines, each Function's from another one on: who comes first is measured, however slowly it compiles."""
    first = zlib.crc32(function.fingerprint.encode()) % len(engines)
    return [*engines[first:], *engines[:first]]
