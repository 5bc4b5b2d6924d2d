"""What an engine author runs to prove an engine: conformance, a corpus, generated graphs, and engines that misbehave.

An engine goes in, and what it passes, declines and fails comes out, case by case with the reason. Importing the package
needs neither pytest nor hypothesis: `suite` needs the first, `strategies` the second, and both are imported by name. Nothing
else in XRT but the command line may import it.
"""

from xrt.testing.cases import GROUPS, ConformanceCase, group_cases, node_cases
from xrt.testing.conformance import conform, run_case
from xrt.testing.report import ConformanceReport, KnownFailure, Outcome, ResultWord, settle

__all__ = [
    "GROUPS",
    "ConformanceCase",
    "ConformanceReport",
    "KnownFailure",
    "Outcome",
    "ResultWord",
    "conform",
    "group_cases",
    "node_cases",
    "run_case",
    "settle",
]
