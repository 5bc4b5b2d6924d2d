"""Test tools for engine authors: the conformance run, the regression corpus, generated graphs and fault injection.

Each reports per case whether the engine passed, declined or failed, and why. Importing this package needs neither pytest nor
hypothesis: only the submodules `suite` (both) and `strategies` (hypothesis) need them, and they are imported by name. Within
XRT, only the command line may import this package.
"""

from xrt.testing.cases import GROUPS, ConformanceCase, group_cases, node_cases
from xrt.testing.conformance import ConformanceReport, KnownFailure, Outcome, ResultWord, conform, run_case, settle

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
