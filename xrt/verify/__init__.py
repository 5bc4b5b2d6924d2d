"""Verify results: compare a plan with the reference region by region, and find the smallest failing subgraph.

The results are a `Verification` or a `FailingSubgraph`. The reference is passed as a function that runs Functions.
"""

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.verify.comparison import CheckVerdict as CheckVerdict, Verdict as Verdict, judge_outputs as judge_outputs
    from xrt.verify.regions import (
        FailingSubgraph as FailingSubgraph,
        RegionCheck as RegionCheck,
        ValueCheck as ValueCheck,
        Verification as Verification,
        bisect as bisect,
        bisect_plan as bisect_plan,
        verify as verify,
    )

__all__, __getattr__, __dir__ = load_lazily(__name__)
