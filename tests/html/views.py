"""Things that notebooks show, each with names as bad as a name can be."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from tests.bench.test_page import HOSTILE, LONG, chain, report, row
from xrt.bench import BenchCandidate, BenchReport, Group, ReportRow
from xrt.formats.placement_file import SearchRecord, ServingCandidate, ServingConfiguration
from xrt.graph import Constant, DType, FrozenDict, Function, Node, TensorType, Value
from xrt.module.explain import Explanation, RegionReport
from xrt.partition import Plan, Reason
from xrt.partition.plan import launch_node
from xrt.placement.race import make_candidate
from xrt.placement.report import CostReport
from xrt.placement.result import TuningResult
from xrt.placement.search import RegionPrediction
from xrt.placement.throughput import ThroughputResult
from xrt.runtime import LaunchTime, Profile
from xrt.runtime.devices.interface import TransferStats
from xrt.runtime.profile import Moment

__all__ = ["VIEWS", "make_chain", "make_plan"]

F32 = TensorType(DType.FLOAT32, (2, 3))


def make_chain(count: int, name: str = "") -> Function:
    """Return nodes in a row, whose names begin with a name."""
    values = [f"{name}v{number}" for number in range(count + 1)]
    nodes = [Node("Relu", (a,), (b,), name=f"{name}n{i}") for i, (a, b) in enumerate(pairwise(values))]
    ends = (Value(values[0], F32),), (Value(values[-1], F32),)
    weights = {f"{name}w": Constant(np.ones(3, "float32"))}
    types = dict.fromkeys(values[1:-1], F32)
    return Function(*ends, tuple(nodes), weights, opsets={"": 20}, types=types, name=name or "main", doc=name)


def make_plan(count: int, name: str = "") -> Plan:
    """Return a plan of nodes in a row, each a region, on two engines in turn."""
    model, engines = make_chain(count, name), (name or "ort", f"xla{name}")
    launches = []
    for number, node in enumerate(model.nodes):
        ends = (Value(node.inputs[0], F32),), (Value(node.outputs[0], F32),)
        body = Function(*ends, (node,), opsets={"": 20})
        launches.append(launch_node(f"{name}r{number}", engines[number % 2], body, (node.name,)))
    folded = Function(model.inputs, model.outputs, tuple(launches), opsets={"xrt": 1}, types=model.types)
    reasons = tuple(Reason(node.name, "Relu", engines[0], f"no kernel {name}") for node in model.nodes)
    return Plan(folded, engines, reasons, implicit=engines[1])


def make_profile(name: str = "") -> Profile:
    """Return a profile of two launches, with a call around them."""
    launches = tuple(LaunchTime(f"{name}r{number}", f"{name}ort", 2, 0.25, f"{name}cpu") for number in range(2))
    call = Moment("call", "call", "cpu", (1, name), 0.0, 0.3)
    return Profile(launches, 2, TransferStats(calls=2), (call,))


def make_result(name: str = "") -> TuningResult:
    """Return a search in which one plan won, one lost and one failed."""
    plan = make_plan(2, name)
    figures = {"ratio": 0.5, "ratio_low": 0.4, "ratio_high": 0.6, "regions": (0.0004, 0.0005)}
    candidates = (
        make_candidate(plan, "won", 0.001, 0.0009, 0.0011, note=name, **figures),
        make_candidate(make_plan(3, name), "lost", 0.002, note=name, is_baseline=True),
        make_candidate(make_plan(1, name), "failed", note=name),
    )
    record = SearchRecord(candidates=candidates, rounds=20, budget=20.0, notes=(name,), unmeasured={name: name})
    return TuningResult(plan, record)


def make_explanation(name: str = "") -> Explanation:
    """Return an explanation with everything that one can have."""
    plan = make_plan(3, name)
    regions = tuple(
        RegionReport(x.name, x.engine, 1, ((f"Relu{name}", 1),), (name,), (name,), 12, (f"a remark {name}",))
        for x in plan.launches
    )
    account = CostReport(0.001, 0.002, (RegionPrediction(f"{name}r0", name, 1, 0.001, "measured", name),))
    more: dict[str, Any] = {"idle_pins": (name,), "placement": (name,), "copies": (name,), "graph": name, "checks": name}
    return Explanation(plan.engines, plan.implicit, regions, 2, plan.reasons, account=account, plan=plan, **more)


def make_report(name: str = "") -> BenchReport:
    """Return a comparison in which one ran, and one failed."""
    plan = tuple(replace(region, name=f"{name}{region.name}") for region in chain("ort", "toy"))
    failed = ReportRow(BenchCandidate((name or "xla",)), "failed", name)
    result = report(Group(name, None, 1, (row("ort", 0.002, plan, verdict="fastest"), failed)), command=name)
    return replace(result, machine=FrozenDict({f"processor {name}": name}))


def make_throughput(name: str = "") -> ThroughputResult:
    """Return a search for throughput in which one candidate was chosen, one exceeded the bound and one was declined."""
    spec = name or "ort"
    candidates = (
        ServingCandidate(4, 2, 1, 8, "chosen", spec, 100.0, 0.002, 0.01, 1 << 20, name),
        ServingCandidate(8, 2, 1, 16, "over", spec, 200.0, 0.01, 0.5, note=name),
        ServingCandidate(16, 2, 1, 32, "declined", spec, note=name),
    )
    chosen = ServingConfiguration(4, 2, 1, 8, 100.0, 0.002, 0.01, 0.02, name, (1, 4), (spec, spec), 1 << 20)
    return ThroughputResult(chosen, candidates, 0.02, 60.0, 12.0, (name,))


MAKERS = {
    "function": lambda name: make_chain(5, name),
    "large function": lambda name: make_chain(40, name),
    "plan": lambda name: make_plan(4, name),
    "large plan": lambda name: make_plan(40, name),
    "profile": make_profile,
    "tuning result": make_result,
    "throughput result": make_throughput,
    "explanation": make_explanation,
    "report": make_report,
}
VIEWS = {kind: make(HOSTILE.replace("\x00", "") + LONG) for kind, make in MAKERS.items()} | {
    f"plain {k}": make("") for k, make in MAKERS.items()
}
"""By what it is: with hostile names, and with harmless ones."""
