"""Modules with open sizes, an engine that compiles each of them, and searches that are simulated: nothing is timed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

import xrt
from tests.module.small_models import relu
from xrt.cache import CompileCache
from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.graph import Function, Node
from xrt.partition.partitioner import map_nodes_to_engines, plan_from_assignment
from xrt.placement import TuningResult
from xrt.placement.result import CandidateComparison, CandidateResult, PlacementRequest

PATIENCE = 60.0
MODEL = relu(("N", 3))


@dataclass(frozen=True)
class Static(GraphCompiler):
    """The reference, for one size at a time; a compile waits until it may go on."""

    name: ClassVar[str] = "static"
    may_compile: ClassVar[threading.Event] = threading.Event()

    label: str = "small"

    def why_not(self, node: Node, function: Function) -> str | None:
        return registry.create(REFERENCE).why_not(node, function)

    def version(self) -> str:
        return "1"

    def compile(self, function: Function, context: CompileContext) -> Executable:
        assert self.may_compile.wait(PATIENCE)
        return registry.create(REFERENCE).compile(function, context)


@dataclass(frozen=True)
class Dynamic(Static):
    """The same with one executable for all sizes."""

    name: ClassVar[str] = "dynamic"
    supports_dynamic_shapes: ClassVar[bool] = True


SMALL, LARGE, DYNAMIC = Static("small"), Static("large"), Dynamic("all")


@dataclass
class Searches:
    """What was searched for; each search decides for the large engine from 32 rows on."""

    rows: list[int] = field(default_factory=list)
    budgets: list[float] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    may_end: threading.Event = field(default_factory=threading.Event)
    ended: list[str] = field(default_factory=list)

    def tune(
        self, request: PlacementRequest, *, inputs: Sequence[Any], progress: Callable[[Any], object], **_: Any
    ) -> TuningResult:
        (rows, _) = request.function.inputs[0].type.shape
        assert inputs[0].shape == (rows, 3)
        self.rows.append(rows)
        self.budgets.append(request.budget)
        self.inputs.append(inputs[0])
        try:
            while not self.may_end.wait(0.01):
                progress(None)
        except KeyboardInterrupt:
            self.ended.append("interrupted")
        first = SMALL.spec if rows < 32 else LARGE.spec
        specs = sorted((engine.spec for engine in request.engines if engine.spec != request.implicit), key=lambda x: x != first)
        names = [node.name for node in request.function.nodes]
        plans = [plan_from_assignment(request.function, request.engines, dict.fromkeys(names, spec)) for spec in specs]
        race = CandidateComparison(tuple(CandidateResult(plan, "lost" if number else "won") for number, plan in enumerate(plans)))
        return TuningResult(plans[0], race=race, how="measured", budget=request.budget)


def simulate_searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Searches]:
    """Yield what is searched for; searches end at once unless the test says otherwise."""
    found = Searches()
    found.may_end.set()
    monkeypatch.setattr("xrt.placement.auto.tune", found.tune)
    monkeypatch.setattr(Static, "may_compile", threading.Event())
    Static.may_compile.set()
    yield found
    found.may_end.set()
    Static.may_compile.set()


def make(*engines: Any, **options: Any) -> xrt.XRTModule:
    listed = [*(engines or (SMALL, LARGE)), "auto"]
    return xrt.XRTModule(MODEL, listed, **{"cache": CompileCache(), "budget": 30, "progress": False, **options})


def call(module: xrt.XRTModule, rows: int) -> str:
    """Call the module and return the engine that it was on."""
    values = np.arange(rows * 3, dtype="float32").reshape(rows, 3) - 7
    np.testing.assert_array_equal(module(values), np.maximum(values, 0))
    (engine,) = set(map_nodes_to_engines(module.plan).values())
    return engine
