"""The comparison of engines: models and candidates come in, a Report goes out that says what each costs.

Each candidate compiles and runs in a process of its own, first alone and then in turns with the others; what is compared
is the ratio within a round. Nothing here decides what a module does.
"""

from xrt.bench.comparison import BenchOptions, compare_engines
from xrt.bench.html import page
from xrt.bench.report import Agreement, BenchReport, Group, ReportRow, machine
from xrt.bench.targets import AUTO, BenchCandidate, BenchTarget
from xrt.measure.statistics import Interval, RatioInterval, Timing, bootstrap, interleave, ratio

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
    "interleave",
    "machine",
    "page",
    "ratio",
]
