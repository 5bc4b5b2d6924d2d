"""The comparison of engines: models and candidates come in, a Report goes out that says what each costs.

Each candidate compiles and runs in a process of its own, first alone and then in turns with the others; what is compared
is the ratio within a round. Nothing here decides what a module does.
"""

from xrt.bench.comparison import Settings, compare_engines
from xrt.bench.figures import Interval, Timing, ratio
from xrt.bench.html import page
from xrt.bench.machine_info import machine
from xrt.bench.report import Agreement, Group, Report, Row
from xrt.bench.subjects import AUTO, Candidate, Subject
from xrt.bench.turns import interleaved
from xrt.runtime.rounds import Ratio, bootstrap

__all__ = [
    "AUTO",
    "Agreement",
    "Candidate",
    "Group",
    "Interval",
    "Ratio",
    "Report",
    "Row",
    "Settings",
    "Subject",
    "Timing",
    "bootstrap",
    "compare_engines",
    "interleaved",
    "machine",
    "page",
    "ratio",
]
