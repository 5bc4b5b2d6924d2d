"""The steps of `auto.py`. Each runs in a new process, with a request and a result in JSON.

``tune`` lets auto search and store its decision. ``probe`` compiles and calls an engine that the search did not measure.
``compare`` measures auto, with its stored decision, and single engines in turn.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import xrt
from xrt.bench import BenchTarget
from xrt.comparison import compare_all, tolerance_for
from xrt.engines.contract import registry
from xrt.errors import XRTError
from xrt.formats.placement_file import CandidateRecord
from xrt.graph import Function
from xrt.measure.statistics import take_turns
from xrt.measure.timing import Clock, choose_calls, measure_call, measure_turn, time_call
from xrt.models import sample_inputs
from xrt.partition import Plan
from xrt.placement.result import describe_plan

Call: TypeAlias = Callable[[], Any]

TURN_SECONDS = 0.04
"""Seconds per turn; a slower call is made once."""
WARM_UP_SECONDS = 0.2
"""Seconds: a shorter call is made once before its turn, to wake its threads; for a longer call the effect is negligible."""
MIN_ROUNDS, MAX_ROUNDS = 8, 60
"""Minimum and maximum number of rounds."""
MIN_SLOW_ROUNDS, MAX_OVERRUN = 4, 4
"""MIN_SLOW_ROUNDS rounds are enough after MAX_OVERRUN times the requested seconds: some engines take seconds per call."""
MAX_SLOWDOWN = 10.0
"""An engine that is slower than the fastest by this factor is not compared."""
ALWAYS_COMPARED = ("auto", "ort")
"""Candidates that are compared in any case."""


def make_module(function: Function, engine: Any, request: Mapping[str, Any], **more: Any) -> xrt.XRTModule:
    return xrt.XRTModule(function, engine, strict=True, cache=request["store"], threads=request["threads"], **more)


def list_auto(request: Mapping[str, Any]) -> list[str]:
    return [*request["engines"], "auto"]


def load(request: Mapping[str, Any], *, imports: bool = True) -> tuple[Function, dict[str, Any]]:
    """Load the model and sample its inputs; with ``imports`` also import the libraries of the engines, before the model."""
    for engine in request["engines"] if imports else ():
        registry.create(engine)
    function = BenchTarget.parse(request["model"]).load()
    return function, sample_inputs(function)


# ---------------------------------------------------------------------- tune


def tune(request: Mapping[str, Any]) -> dict[str, Any]:
    """Let auto search on the model of the request; return the chosen plan, the seconds of the search and its candidates."""
    function, inputs = load(request)
    start = time.perf_counter()
    auto = make_module(function, list_auto(request), request, budget=request["budget"])
    auto.compile(**inputs)
    wall, tuned = time.perf_counter() - start, auto.tuned
    assert tuned is not None
    record = tuned.record
    facts = {"chosen": describe_plan(tuned.plan), "how": tuned.how, "budget": record.budget, "spent": record.spent, "wall": wall}
    more = {"measurements": tuned.measurements, "rounds": record.rounds, "notes": list(record.notes)}
    versions = {engine: registry.create(engine).version() for engine in request["engines"]}
    return {**facts, **more, "contenders": [describe_contender(c) for c in record.candidates], "versions": versions}


def describe_contender(contender: CandidateRecord[Plan]) -> dict[str, Any]:
    names = ("title", "verdict", "seconds", "ratio", "ratio_low", "ratio_high", "note")
    values = {name: getattr(contender, name) for name in names}
    launches, regions = contender.plan.launches, list(contender.regions)
    return {
        **values,
        "engines": sorted(contender.plan.used_engines),
        "count": len(launches),
        "regions": sum(regions) if regions else None,
    }


# ---------------------------------------------------------------------- probe


def probe(request: Mapping[str, Any]) -> dict[str, Any]:
    """Compile the model of the request for one engine and measure a call."""
    function, inputs = load(request)
    single = make_module(function, request["engines"][0], request)
    _, compile_seconds = time_call(partial(single.compile, **inputs))
    first = measure_call(lambda: single(**inputs))
    calls = max(1, min(5, int(1 / first)))
    return {"compile": compile_seconds, "seconds": min(measure_call(lambda: single(**inputs)) for _ in range(calls))}


# ---------------------------------------------------------------------- compare


def compare(request: Mapping[str, Any]) -> dict[str, Any]:
    """Measure auto, with its stored decision, and the single engines in turn.

    Planning is measured as in a second process of a user: no engine is imported before.
    """
    function, inputs = load(request, imports=False)
    start = time.perf_counter()
    auto = make_module(function, list_auto(request), request, budget=request["budget"])
    plan = auto.plan_for(**inputs)
    planned = time.perf_counter() - start
    modules = {"auto": auto, **{spec: make_module(function, spec, request) for spec in request["singles"]}}
    calls, left = compile_all(modules, inputs)
    expected = list_outputs(make_module(function, "toy{native=off}", request)(**inputs))
    differences = {name: find_difference(list_outputs(call()), expected) for name, call in calls.items()}
    correct = {name: call for name, call in calls.items() if not differences[name][0]}
    rounds, slow = measure_in_turn(correct, request["seconds"])
    wrong = {name: f"wrong: {message}" for name, (message, _) in differences.items() if message}
    how = auto.tuned.how if auto.tuned else "priority"
    chosen = {"plan": describe_plan(plan), "engines": sorted(plan.used_engines), "regions": len(plan.launches)}
    off = {name: largest for name, (_, largest) in differences.items()}
    return {"planned": planned, "how": how, **chosen, "rounds": rounds, "left": {**left, **slow, **wrong}, "off": off}


def compile_all(
    modules: Mapping[str, xrt.XRTModule], inputs: Mapping[str, Any]
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Compile and run modules by name; return the calls of those that work, and why the others do not."""
    calls: dict[str, Callable[[], Any]] = {}
    failed: dict[str, str] = {}
    for name, module in modules.items():
        values = [inputs[value.name] for value in module.inputs]
        try:
            module(*values)
            calls[name] = partial(module, *values)
        except XRTError as error:
            failed[name] = f"failed: {' '.join(str(error).split())[:300]}"
    return calls, failed


def list_outputs(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple) else [results]


def find_difference(actual: list[Any], expected: list[Any]) -> tuple[str, float]:
    """Return the message of the first difference beyond the tolerance (empty if there is none), and the largest difference."""
    pairs = zip(actual, expected, strict=True)
    comparisons = [compare_all([a], [b], tolerance_for(b.dtype, "network")) for a, b in pairs]
    return next((c.message for c in comparisons if not c), ""), max((c.absolute for c in comparisons), default=0.0)


def measure_in_turn(
    calls: Mapping[str, Call], seconds: float, clock: Clock = time.perf_counter
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return seconds per call by round, and the candidates that are too slow.

    A turn starts after the threads of the previous one are asleep; its first call is not counted unless it is long.
    """
    alone = {name: min(measure_call(call, 1, clock) for _ in range(2)) for name, call in calls.items()}
    best = min(alone.values())
    slow = {
        name: f"slow: {t / best:.0f} x the fastest" for name, t in alone.items() if t > MAX_SLOWDOWN * best and name != "auto"
    }
    fast = {name: call for name, call in calls.items() if name not in slow}
    turns = {
        name: partial(measure_turn, call, choose_calls(call, TURN_SECONDS, clock), clock, warms=alone[name] < WARM_UP_SECONDS)
        for name, call in fast.items()
    }
    start = clock()

    def is_over(rounds: int, times: object) -> bool:
        elapsed = clock() - start
        return (rounds >= MIN_ROUNDS and elapsed > seconds) or (rounds >= MIN_SLOW_ROUNDS and elapsed > MAX_OVERRUN * seconds)

    return take_turns(turns, MAX_ROUNDS, is_over), slow


STEPS = {step.__name__: step for step in (tune, probe, compare)}


if __name__ == "__main__":
    print("\n" + json.dumps(STEPS[sys.argv[1]](json.loads(sys.argv[2]))))
