"""Placement: which engine runs which node, by priority or by measurement.

A Function and engines come in. Regions are profiled in worker processes, the search proposes plans from the measured costs, and
the plans run interleaved until more rounds would not change the order. The fastest plan that computes what the reference
computes comes out, with all that was measured. Names load on first use: a call that places nothing by measurement pays for
none of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xrt.cache.disk.cost_store import CostStore as CostStore
    from xrt.placement.autotune import tune as tune
    from xrt.placement.budget import TuningBudget as TuningBudget
    from xrt.placement.prediction import BoundaryCost as BoundaryCost
    from xrt.placement.prediction import Prediction as Prediction
    from xrt.placement.prediction import RegionPrediction as RegionPrediction
    from xrt.placement.prediction import predict_cost as predict_cost
    from xrt.placement.report import CostReport as CostReport
    from xrt.placement.result import CandidateComparison as CandidateComparison
    from xrt.placement.result import CandidateResult as CandidateResult
    from xrt.placement.result import Progress as Progress
    from xrt.placement.result import TuningResult as TuningResult
    from xrt.placement.search import MissingSupport as MissingSupport
    from xrt.placement.search import ProfilingRequest as ProfilingRequest
    from xrt.placement.search import SearchOptions as SearchOptions
    from xrt.placement.search import choose_requests as choose_requests
    from xrt.placement.search import propose_plans as propose_plans
    from xrt.placement.search import rank_missing_support as rank_missing_support
    from xrt.placement.session import ProgressCallback as ProgressCallback
    from xrt.placement.throughput.result import ServingCandidate as ServingCandidate
    from xrt.placement.throughput.result import ServingConfiguration as ServingConfiguration
    from xrt.placement.throughput.result import ThroughputResult as ThroughputResult

_MODULES = {
    "BoundaryCost": "prediction",
    "CandidateComparison": "result",
    "CandidateResult": "result",
    "CostReport": "report",
    "MissingSupport": "search",
    "Prediction": "prediction",
    "ProfilingRequest": "search",
    "Progress": "result",
    "ProgressCallback": "session",
    "RegionPrediction": "prediction",
    "SearchOptions": "search",
    "ServingCandidate": "throughput.result",
    "ServingConfiguration": "throughput.result",
    "ThroughputResult": "throughput.result",
    "TuningBudget": "budget",
    "TuningResult": "result",
    "choose_requests": "search",
    "predict_cost": "prediction",
    "propose_plans": "search",
    "rank_missing_support": "search",
    "tune": "autotune",
}

__all__ = [*_MODULES, "CostStore"]


def __getattr__(name: str) -> Any:
    if name == "CostStore":
        value = importlib.import_module("xrt.cache.disk.cost_store").CostStore
    elif name in _MODULES:
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
