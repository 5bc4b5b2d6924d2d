"""A search on engines whose costs are far apart."""

from __future__ import annotations

from typing import Any

from tests.module.test_faults import X, chain
from tests.tune.uneven import Uneven
from xrt.cache import CompileCache
from xrt.engines import CompileContext, GraphCompiler, registry
from xrt.graph import Function
from xrt.module.reference import evaluate
from xrt.tune import Bounds, Tuned, tune

TOY = registry.create("toy")
PAIR = chain("Exp", "Cos")
SLOW_EXP, SLOW_COS = Uneven(slow="Exp"), Uneven(slow="Cos")


def tuned(function: Function, *engines: GraphCompiler, **options: Any) -> Tuned:
    bounds = Bounds(calibration=0.0)
    options = {
        "budget": 60.0,
        "bounds": bounds,
        "inputs": [X],
        "context": CompileContext(threads=1),
        "cache": CompileCache(),
        "reference": evaluate,
    } | options
    return tune(function, engines, **options)


def verdicts(found: Tuned) -> dict[str, str]:
    return {one.title: one.verdict for one in found.race.contenders}
