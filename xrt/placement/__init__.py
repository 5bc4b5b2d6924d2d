"""Placement: which engine runs which node, by priority or by measurement.

A Function and engines come in. Regions are profiled in worker processes, the search proposes plans from the measured costs, and
the plans run interleaved until more rounds would not change the order. The fastest plan that computes what the reference
computes comes out, with all that was measured. Names load on first use: a call that places nothing by measurement pays for
none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import list_names, load_lazily

if TYPE_CHECKING:
    from xrt.cache.cost_store import CostStore as CostStore
    from xrt.placement.autotune import tune as tune
    from xrt.placement.budget import TuningBudget as TuningBudget
    from xrt.placement.prediction import (
        BoundaryCost as BoundaryCost,
        Prediction as Prediction,
        RegionPrediction as RegionPrediction,
        predict_cost as predict_cost,
    )
    from xrt.placement.report import CostReport as CostReport
    from xrt.placement.result import (
        CandidateComparison as CandidateComparison,
        CandidateResult as CandidateResult,
        Progress as Progress,
        TuningResult as TuningResult,
    )
    from xrt.placement.search import (
        MissingSupport as MissingSupport,
        ProfilingRequest as ProfilingRequest,
        SearchOptions as SearchOptions,
        choose_requests as choose_requests,
        propose_plans as propose_plans,
        rank_missing_support as rank_missing_support,
    )
    from xrt.placement.session import ProgressCallback as ProgressCallback
    from xrt.placement.throughput.result import (
        ServingCandidate as ServingCandidate,
        ServingConfiguration as ServingConfiguration,
        ThroughputResult as ThroughputResult,
    )

_MODULES = {
    "xrt.cache.cost_store": ("CostStore",),
    "xrt.placement.autotune": ("tune",),
    "xrt.placement.budget": ("TuningBudget",),
    "xrt.placement.prediction": ("BoundaryCost", "Prediction", "RegionPrediction", "predict_cost"),
    "xrt.placement.report": ("CostReport",),
    "xrt.placement.result": ("CandidateComparison", "CandidateResult", "Progress", "TuningResult"),
    "xrt.placement.search": (
        "MissingSupport",
        "ProfilingRequest",
        "SearchOptions",
        "choose_requests",
        "propose_plans",
        "rank_missing_support",
    ),
    "xrt.placement.session": ("ProgressCallback",),
    "xrt.placement.throughput.result": ("ServingCandidate", "ServingConfiguration", "ThroughputResult"),
}

__all__ = [*list_names(_MODULES)]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
