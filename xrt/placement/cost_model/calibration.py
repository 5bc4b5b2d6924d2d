"""What it costs here to launch nothing, and to hand a value from one engine to another: measured once, and kept."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.cache import CompileCache
from xrt.errors import EngineError, OutOfDeviceMemory, PlanError
from xrt.graph import DType, FrozenDict, Function, Node, TensorType, Value
from xrt.measure.interleave import take_turns
from xrt.measure.timing import Clock, choose_calls_per_turn, median_interval, seconds_per_call, seconds_per_turn
from xrt.partition.device_map import DeviceMap
from xrt.partition.explicit import plan_from_assignment
from xrt.partition.support_matrix import SupportMatrix
from xrt.placement.profiling.runners import Runner, TrialLimits
from xrt.placement.time_limit import OutOfTime, within
from xrt.runtime import Program, compile_plan

if TYPE_CHECKING:
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.partition.cost_table import CostTable

__all__ = ["Calibration", "find_light_operator", "measure_launch_overhead", "measure_transfer"]

OPERATORS = ("Neg", "Abs", "Relu", "Sqrt", "Exp", "Identity")
"""Operators for an almost empty region: the first that an engine supports is used."""
SIZES = (16, 1 << 20)
"""Elements of float32: a value that costs its launch alone, and one that leaves the nearer caches."""
ROUNDS = 9
TURN = 0.003
OPSET = 20
LEAST = 0.1
"""Seconds of the samples of one launch."""


@dataclass(frozen=True)
class Calibration:
    """Measures launches and boundaries of engines that are ready."""

    engines: Mapping[str, GraphCompiler]
    ways: Mapping[str, Runner]
    contexts: Mapping[str, CompileContext]
    """By spec."""
    context: CompileContext
    """Where values come in and go out."""
    homes: DeviceMap
    limit: float
    """Seconds that each may take."""
    clock: Clock
    report: Callable[[str], object]
    """Hears of each before it is begun."""

    def of(self, table: CostTable, specs: Sequence[str], until: float) -> CostTable:
        """Return the table with what is not known yet of those engines, as far as time allows."""
        for spec in specs:
            if spec not in table.launches and self.clock() < until:
                self.report(f"measuring what a launch costs on {spec}")
                given = self.engines[spec], self.ways[spec], self.contexts[spec], LEAST, self.limit
                with suppress(EngineError, OutOfDeviceMemory):
                    if (seconds := measure_launch_overhead(*given)) is not None:
                        table = table.with_launch(spec, seconds)
        for source, target in permutations([spec for spec in specs if spec in table.launches], 2):
            if (source, target) not in table.boundaries and self.clock() < until:
                self.report(f"measuring what a boundary costs from {source} to {target}")
                if (found := self._crossing(source, target)) is not None:
                    table = table.with_boundary(source, target, *found)
        return table

    def _crossing(self, source: str, target: str) -> tuple[float, float] | None:
        fronts = self.ways[source].compiler, self.ways[target].compiler
        try:
            return within(self.limit, partial(measure_transfer, *fronts, self.context, self.clock, self.homes.by_engine))
        except OutOfTime:
            return None


def find_light_operator(engine: GraphCompiler, device: str = "cpu") -> str | None:
    """Return an operator that costs next to nothing and that the engine takes there; None where it takes none of these."""
    chains = ((op, _chain([op], 16)) for op in OPERATORS)
    return next((op for op, chain in chains if SupportMatrix.of(chain, [engine], device).reason(0, 0) is None), None)


def measure_launch_overhead(
    engine: GraphCompiler, way: Runner, context: CompileContext, seconds: float, limit: float | None
) -> float | None:
    """Return the seconds of one launch with next to nothing in it; None where the engine takes nothing so light.

    Raises EngineError.
    """
    op = find_light_operator(engine, context.device)
    if op is None:
        return None
    trial = way.trial(_chain([op], SIZES[0]), context, [_values(SIZES[0])], TrialLimits(seconds, limit, limit))
    return median_interval(trial.samples)[0]


def measure_transfer(
    source: GraphCompiler,
    target: GraphCompiler,
    context: CompileContext,
    clock: Clock,
    devices: Mapping[str, str] = FrozenDict(),
) -> tuple[float, float] | None:
    """Return the seconds, and the seconds per byte, by which two regions in a row cost more than each alone.

    The three take turns, and what counts is the difference within a round. ``devices`` are as in `tune`: between two devices
    a copy is part of it. None where an engine takes nothing so light, or fails.
    """
    homes = DeviceMap(context.device, devices)
    ops = [find_light_operator(one, homes.of(one.spec)) for one in (source, target)]
    try:
        small, large = (
            _excess(source, target, [op for op in ops if op is not None], size, context, clock, homes) for size in SIZES
        )
    except (EngineError, PlanError, ValueError):
        return None
    return small, max(0.0, large - small) / (4 * (SIZES[1] - SIZES[0]))


def _excess(
    source: GraphCompiler,
    target: GraphCompiler,
    ops: Sequence[str],
    size: int,
    context: CompileContext,
    clock: Clock,
    homes: DeviceMap,
) -> float:
    first, second = ops
    engines = {engine.spec: engine for engine in (source, target)}
    cache = CompileCache()
    made = [
        _program(_chain([first, second], size), [source, target], engines, context, cache, homes),
        _program(_chain([first], size), [source], engines, context, cache, DeviceMap(homes.of(source.spec))),
        _program(_chain([second], size), [target], engines, context, cache, DeviceMap(homes.of(target.spec))),
    ]
    try:
        calls = [
            made[0].make_timed_call([_values(size)]),
            _before_another(made[1], size),
            made[2].make_timed_call([_values(size)]),
        ]
        both, one, other = _interleaved(calls, clock)
        excess = max(0.0, statistics.median(b - x - y for b, x, y in zip(both, one, other, strict=True)))
        is_across = homes.of(source.spec) != homes.of(target.spec)
        return excess / 2 if is_across else excess  # the way back, or the way there, was measured with it
    finally:
        for program in made:
            program.close()


def _program(
    function: Function,
    homes: Sequence[GraphCompiler],
    engines: Mapping[str, GraphCompiler],
    context: CompileContext,
    cache: CompileCache,
    where: DeviceMap,
) -> Program:
    placed = {node.name: engine.spec for node, engine in zip(function.nodes, homes, strict=True)}
    groups = {node.name: number for number, node in enumerate(function.nodes)}
    plan = plan_from_assignment(function, list(engines.values()), placed, groups=groups, device=where)
    made = compile_plan(plan, engines, context, cache)
    if not isinstance(made, Program):
        raise made[0].error
    return made


def _before_another(program: Program, size: int) -> Callable[[], object]:
    """Return the call of one launch as others read its result: in memory that is there, if the engine can compute into that."""
    if type(program) is Program and all(executable.supports_io_binding() for executable in program.executables):
        return program.bind([_values(size)], [np.empty(size, np.float32)])
    return program.make_timed_call([_values(size)])


def _interleaved(calls: Sequence[Callable[[], object]], clock: Clock) -> list[list[float]]:
    repeats = [choose_calls_per_turn(min(seconds_per_call(call, 1, clock) for _ in range(3)), TURN) for call in calls]
    pairs = zip(calls, repeats, strict=True)
    turns = {str(number): partial(seconds_per_turn, *pair, clock, idle=0.0) for number, pair in enumerate(pairs)}
    return list(take_turns(turns, ROUNDS).values())


def _chain(ops: Sequence[str], size: int) -> Function:
    """Return operators in a row on so many numbers."""
    type_ = TensorType(DType.FLOAT32, (size,))
    names = ["x", *(f"v{number}" for number in range(1, len(ops))), "y"]
    nodes = tuple(Node(op, (names[i],), (names[i + 1],), name=f"n{i}") for i, op in enumerate(ops))
    inner = dict.fromkeys(names[1:-1], type_)
    return Function((Value("x", type_),), (Value("y", type_),), nodes, opsets={"": OPSET}, types=inner, name="calibration")


def _values(size: int) -> Any:
    return np.full(size, 0.5, np.float32)
