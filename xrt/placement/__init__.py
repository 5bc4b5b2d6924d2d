"""Placement: which engine runs which node, by priority or by measurement.

A search has three stages: whole models are measured on single engines, regions are profiled on the leading ones, and the fastest
engines race with the mixtures that are proposed from the measured costs. The fastest plan with correct results wins.
Names are imported on first use, so that placement by priority does not pay for the search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.cache.cost_store import CostStore as CostStore
    from xrt.placement.autotune import ProgressCallback as ProgressCallback, TuningBudget as TuningBudget, tune as tune
    from xrt.placement.report import CostReport as CostReport
    from xrt.placement.result import TuningResult as TuningResult
    from xrt.placement.search import (
        ProfilingRequest as ProfilingRequest,
        choose_requests as choose_requests,
        predict_cost as predict_cost,
        propose_plans as propose_plans,
    )

__all__, __getattr__, __dir__ = load_lazily(__name__)
