"""A search on engines whose costs are far apart."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.module.test_faults import X, chain
from tests.placement.uneven import Uneven
from xrt.cache import CompileCache
from xrt.engines import CompileContext, GraphCompiler
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.graph import Function
from xrt.placement import TuningResult, tune
from xrt.placement.result import PlacementRequest

TOY = registry.create("toy")
PAIR = chain("Exp", "Cos")
TERMS = {field.name for field in dataclasses.fields(PlacementRequest)}
SLOW_EXP, SLOW_COS = Uneven(slow="Exp"), Uneven(slow="Cos")


def tuned(function: Function, *engines: GraphCompiler, **options: Any) -> TuningResult:
    results = {"budget": 60.0, "context": CompileContext(threads=1)} | {k: options.pop(k) for k in TERMS & options.keys()}
    options = {"inputs": [X], "cache": CompileCache(), "reference": evaluate} | options
    return tune(PlacementRequest(function, engines, **results), **options)


def verdicts(result: TuningResult) -> dict[str, str]:
    return {candidate.title: candidate.verdict for candidate in result.race.contenders}
