"""Compare engines on models: correctness, start-up costs, time per call and memory.

Each candidate compiles and runs in a separate process, first alone and then in turns with the others; candidates are compared by
their ratio within a round.
"""

from xrt.bench.comparison import compare_engines
from xrt.bench.job_server import BenchOptions
from xrt.bench.report import Agreement, BenchReport, Group, ReportRow, machine, page
from xrt.bench.targets import BenchCandidate, BenchTarget
from xrt.measure.statistics import Interval, RatioInterval, Timing, bootstrap, compute_ratio, interleave
from xrt.placement.engine_list import AUTO

__all__ = [
    "AUTO",
    "Agreement",
    "BenchCandidate",
    "BenchOptions",
    "BenchReport",
    "BenchTarget",
    "Group",
    "Interval",
    "RatioInterval",
    "ReportRow",
    "Timing",
    "bootstrap",
    "compare_engines",
    "compute_ratio",
    "interleave",
    "machine",
    "page",
]
