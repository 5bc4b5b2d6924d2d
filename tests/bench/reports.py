"""Made-up comparisons: a page is tested on figures whose truth is known, without measuring anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xrt.bench import Agreement, BenchCandidate, BenchReport, Group, ReportRow, Timing
from xrt.bench.job_server import Start
from xrt.graph import FrozenDict
from xrt.html.views import INPUTS, MeanCall, Reading, RegionTimes
from xrt.measure.statistics import compute_round_ratio

HOSTILE = "</title><script>fetch('https://example.org/')</script><img src=https://example.org/x onerror=alert(1)>\"'&\u202e\x00"
LONG = "models/" + "a_name_without_any_place_to_break_" * 8 + ".onnx"


def rounds(seconds: float, spread: float = 0.02, seed: int = 0, count: int = 20) -> tuple[float, ...]:
    """Return that many rounds around a time."""
    return tuple(seconds * np.exp(spread * np.random.default_rng(seed).standard_normal(count)))


def chain(*engines: str) -> tuple[RegionTimes, ...]:
    """Return regions that run one after the other, each on the result of the one before."""
    last = len(engines) - 1
    return tuple(
        RegionTimes(
            f"xrt_{engine}_{index}",
            engine,
            3 + index,
            (("Conv", 2), ("Relu", 1 + index)),
            (Reading(index - 1 if index else INPUTS, f"v{index}: float32[1,64,56,56]", 802_816),),
            index == last,
        )
        for index, engine in enumerate(engines)
    )


def branched() -> tuple[RegionTimes, ...]:
    """Return a fork with a long way around, and one that merely waits."""
    reads = [[INPUTS], [0], [0], [1, 2], [0, 3], [4]]
    engines = ("ort", "xla", "openvino", "ort", "xla", "ort")
    regions = chain(*engines)
    found = [
        replace(region, reads=tuple(Reading(source, f"v{source}: float32[8,8]", 256) for source in sources))
        for region, sources in zip(regions, reads, strict=True)
    ]
    found[5] = replace(found[5], reads=(*found[5].reads, Reading(2, "")))
    return tuple(found)


def started(plan: Sequence[RegionTimes], *, steady: bool = True) -> Start:
    engines = tuple(dict.fromkeys(region.engine for region in plan))
    spent = (0.31, 1.72, 0.0124)
    regions = tuple(region.engine for region in plan)
    return Start(
        tuple(f"lib{e} 1.2" for e in engines), regions, *spent, 21, steady, 0.0026, 92_000_000, 311_000_000, tuple(plan), engines
    )


def row(name: str, seconds: float, plan: Sequence[RegionTimes], best: Timing | None = None, **more: Any) -> ReportRow:
    """Return a candidate that ran."""
    timing = Timing(rounds(seconds, seed=len(name)))
    shares = np.linspace(1, 2, len(plan))
    spent = tuple(float(share) for share in 0.97 * seconds * shares / shares.sum())
    return replace(
        ReportRow(
            BenchCandidate.parse(name),
            "slower",
            "",
            started(plan),
            Agreement("", 2.4e-6, 3e-5),
            timing.seconds,
            timing.median,
            timing.interval,
            compute_round_ratio(timing.seconds, (best or timing).seconds),
            MeanCall(20, seconds, spent),
        ),
        **more,
    )


def group(model: str = "squeezenet") -> Group:
    """Return one of everything: the fastest, a tie, slower ones, one that is cut, a wrong one and failures."""
    first = row("ort,xla,openvino", 0.00271, branched(), verdict="fastest")
    best = Timing(first.rounds)
    reason = "strict: 2 nodes are on no engine\n  LRN_1 (LRN): the library computes it wrongly\n  <b>TopK_2</b> (TopK): refused"
    rows = (
        first,
        row("openvino", 0.00273, chain("openvino"), best, verdict="tie"),
        row("ort", 0.0033, chain("ort"), best),
        row(
            "tvm,ort with Conv|MatMul=ort",
            0.0061,
            chain(*["ort", "tvm"] * 45),
            best,
            start=started(chain(*["ort", "tvm"] * 45), steady=False),
        ),
        row("iree", 0.31, chain("iree"), best),
        row("xla", 0.0012, chain("xla"), verdict="wrong", reason="differs in 2 of 1000 elements, by 0.31", ratio=None),
        ReportRow(BenchCandidate.parse("toy"), "failed", reason),
        ReportRow(BenchCandidate.parse("nobody"), "failed", "the process ended (SIGSEGV): it said nothing"),
    )
    return Group(model, None, 2, rows)


def report(*groups: Group, command: str = "xrt bench squeezenet -e ort --html report.html") -> BenchReport:
    machine = {"processor": "A processor with a name (TM) of some length @ 2.40GHz", "cores": 2, "load": "0.10", "numpy": "2.4.6"}
    settings = {"rounds": 20, "turn_seconds": 0.05, "limit_seconds": 120.0, "seed": 0}
    return BenchReport(FrozenDict(machine), FrozenDict(settings), groups or (group(),), "2026-11-21 10:00", command)
