"""Placement by measurement, case by case: each search is a real one, with a small budget, and all of it in this process."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from xrt.cache import CompileCache
from xrt.engines import CompileContext, GraphCompiler
from xrt.graph import Function
from xrt.module.automatic import AUTO, engines_at_hand
from xrt.module.build import Build
from xrt.module.reference import evaluate
from xrt.module.settings import EngineList, Settings
from xrt.runtime import Program, available_cores
from xrt.testing.running import fitted_for
from xrt.tune import Bounds, Tuned, tune
from xrt.tune.contest import Rules

__all__ = ["engines_for", "placed_program"]

BUDGET = 0.5
"""Seconds of a search, which what has begun may overrun by a compile; a search that knows all ends before."""

BOUNDS = Bounds(
    survey=0.5,
    longest=0.003,
    calibration=0.02,
    plans=2,
    apart=False,
    rules=Rules(turn=0.001, least=2, most=3),
)
"""Samples and turns as short as can be: what is wanted is that plans differ and race, not the last per cent of time."""


def engines_for(asked: Sequence[str | GraphCompiler]) -> list[GraphCompiler]:
    """Return the engines that a list with "auto" in it stands for: those beside it, or else all that are ready.

    Raises EngineUnavailable for one that is listed and missing, or broken.
    """
    context = CompileContext(threads=available_cores())
    named = [one for one in asked if one != AUTO]
    return engines_at_hand(asked, context, None, strict=bool(named))[0]


def placed_program(function: Function, inputs: Sequence[Any], engines: Sequence[GraphCompiler]) -> Program:
    """Return the compiled Program of the plan that a search on those inputs finds.

    What the search had no time for may be refused at compile: as in a module, the next best plan takes its place. Raises
    PlanError for a node that no engine takes, CompileFailed where an engine's library fails.
    """
    context, cache = CompileContext(threads=available_cores()), CompileCache()
    listed = EngineList(tuple(_turned(engines, function)), None, context, is_auto=True)

    def place(function: Function) -> Tuned:
        reference = partial(evaluate, threads=context.threads)
        engines = listed.engines
        return tune(function, engines, context, budget=BUDGET, cache=cache, reference=reference, inputs=inputs, bounds=BOUNDS)

    fit = fitted_for(function, inputs, engines)
    return Build(fit, listed, Settings(strict=True), cache, original=fit, place=place).program()


def _turned(engines: Sequence[GraphCompiler], function: Function) -> list[GraphCompiler]:
    """Return the engines, each Function's from another one on: who comes first is measured, however slowly it compiles."""
    first = zlib.crc32(function.fingerprint.encode()) % len(engines)
    return [*engines[first:], *engines[:first]]
