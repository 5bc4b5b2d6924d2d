"""What one process of `auto.py` does: a step on one model, which comes as JSON and is answered as JSON.

``tune`` lets auto search, and keeps what it decides in a directory. ``probe`` compiles an engine and calls it, where the
search could not. ``judge`` has auto, from what was kept, and single engines take turns.
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
from xrt.graph import Function
from xrt.measure.statistics import take_turns
from xrt.measure.timing import Clock, choose_calls, seconds_per_call, seconds_per_turn, time_call
from xrt.models import sample_inputs
from xrt.placement.result import CandidateResult, describe_plan

Call: TypeAlias = Callable[[], Any]

TURN = 0.04
"""Seconds of a turn; a slower call is made once in it."""
BRIEF = 0.2
"""Seconds of a call that is made once more before a turn, to wake its threads; in a longer one that does not show."""
LEAST, MOST = 8, 60
"""Rounds..."""
FEWEST, SLOWEST = 4, 4
"""... or these, once so many times the seconds that are asked for are over: an engine of seconds per call is among them."""
FAR = 10.0
"""An engine that is this many times as slow as the quickest takes no turns."""
ALWAYS = ("auto", "ort")
"""Who takes turns in any case: everything is told in relation to these."""


def module(function: Function, engine: Any, asked: Mapping[str, Any], **more: Any) -> xrt.XRTModule:
    return xrt.XRTModule(function, engine, strict=True, cache=asked["store"], threads=asked["threads"], **more)


def auto_of(asked: Mapping[str, Any]) -> list[str]:
    return [*asked["engines"], "auto"]


def loaded(asked: Mapping[str, Any], *, imports: bool = True) -> tuple[Function, dict[str, Any]]:
    """Return the model and inputs for it; unless it is told not to, with the engines' libraries imported before."""
    for engine in asked["engines"] if imports else ():
        registry.create(engine)
    function = BenchTarget.parse(asked["model"]).load()
    return function, sample_inputs(function)


# ---------------------------------------------------------------------- tune


def tune(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Let auto search within its budget."""
    function, given = loaded(asked)
    began = time.perf_counter()
    auto = module(function, auto_of(asked), asked, budget=asked["budget"])
    auto.compile(**given)
    wall, tuned = time.perf_counter() - began, auto.tuned
    assert tuned is not None
    facts = {"chosen": describe_plan(tuned.plan), "how": tuned.how, "budget": tuned.budget, "spent": tuned.spent, "wall": wall}
    more = {"measurements": tuned.measurements, "rounds": tuned.race.rounds, "notes": list(tuned.notes)}
    versions = {engine: registry.create(engine).version() for engine in asked["engines"]}
    return {**facts, **more, "contenders": [contender(one) for one in tuned.race.contenders], "versions": versions}


def contender(one: CandidateResult) -> dict[str, Any]:
    names = ("title", "verdict", "seconds", "ratio", "ratio_low", "ratio_high", "note")
    own = {name: getattr(one, name) for name in names}
    regions, engines = list(one.regions), sorted({launch.engine for launch in one.plan.launches})
    return {**own, "engines": engines, "count": len(one.plan.launches), "regions": sum(regions) if regions else None}


# ---------------------------------------------------------------------- probe


def probe(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Compile and call the one engine that is asked for."""
    function, given = loaded(asked)
    single = module(function, asked["engines"][0], asked)
    _, compile_seconds = time_call(partial(single.compile, **given))
    first = seconds_per_call(lambda: single(**given))
    calls = max(1, min(5, int(1 / first)))
    return {"compile": compile_seconds, "seconds": min(seconds_per_call(lambda: single(**given)) for _ in range(calls))}


# ---------------------------------------------------------------------- judge


def judge(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Have auto and the single engines take turns; auto does not search, it remembers.

    Its planning is that of a second process: nothing of any engine is imported when it begins.
    """
    function, given = loaded(asked, imports=False)
    began = time.perf_counter()
    auto = module(function, auto_of(asked), asked, budget=asked["budget"])
    plan = auto.plan_for(**given)
    planned = time.perf_counter() - began
    modules = {"auto": auto, **{spec: module(function, spec, asked) for spec in asked["singles"]}}
    calls, left = compiled(modules, given)
    expected = outputs(module(function, "toy{native=off}", asked)(**given))
    differ = {name: difference(outputs(call()), expected) for name, call in calls.items()}
    rounds, slow = in_turns({name: call for name, call in calls.items() if not differ[name][0]}, asked["seconds"])
    wrong = {name: f"wrong: {found[0]}" for name, found in differ.items() if found[0]}
    how = auto.tuned.how if auto.tuned else "priority"
    chosen = {"plan": describe_plan(plan), "engines": sorted({x.engine for x in plan.launches}), "regions": len(plan.launches)}
    off = {name: found[1] for name, found in differ.items()}
    return {"planned": planned, "how": how, **chosen, "rounds": rounds, "left": {**left, **slow, **wrong}, "off": off}


def compiled(
    modules: Mapping[str, xrt.XRTModule], given: Mapping[str, Any]
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Return the calls of those that compile and run, and why the others do not."""
    calls: dict[str, Callable[[], Any]] = {}
    failed: dict[str, str] = {}
    for name, one in modules.items():
        values = [given[value.name] for value in one.inputs]
        try:
            one(*values)
            calls[name] = lambda one=one, values=values: one(*values)
        except XRTError as error:
            failed[name] = f"failed: {' '.join(str(error).split())[:300]}"
    return calls, failed


def outputs(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple) else [results]


def difference(actual: list[Any], expected: list[Any]) -> tuple[str, float]:
    """Return what differs beyond the tolerance, and the largest difference."""
    found = [
        compare_all([mine], [right], tolerance_for(right.dtype, "network")) for mine, right in zip(actual, expected, strict=True)
    ]
    return next((one.message for one in found if not one), ""), max((one.absolute for one in found), default=0.0)


def in_turns(
    calls: Mapping[str, Call], seconds: float, clock: Clock = time.perf_counter
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return seconds per call, round by round, and who was too slow to take part.

    A turn begins when the threads of the one before are asleep, and its first call does not count, unless it is long.
    """
    alone = {name: min(seconds_per_call(call, 1, clock) for _ in range(2)) for name, call in calls.items()}
    best = min(alone.values())
    slow = {
        name: f"slow: {took / best:.0f} x the quickest" for name, took in alone.items() if took > FAR * best and name != "auto"
    }
    taking = {name: call for name, call in calls.items() if name not in slow}
    turns = {
        name: partial(seconds_per_turn, call, choose_calls(call, TURN, clock), clock, warms=alone[name] < BRIEF)
        for name, call in taking.items()
    }
    began = clock()

    def is_over(rounds: int, taken: object) -> bool:
        took = clock() - began
        return (rounds >= LEAST and took > seconds) or (rounds >= FEWEST and took > SLOWEST * seconds)

    return take_turns(turns, MOST, is_over), slow


STEPS = {step.__name__: step for step in (tune, probe, judge)}


if __name__ == "__main__":
    answer = STEPS[sys.argv[1]](json.loads(sys.argv[2]))
    print("\n" + json.dumps(answer))
