"""Correctness of results: a plan is compared with the reference region by region, and the smallest wrong part is found.

Input: a Plan, the reference and inputs. Output: a `Verification` or a `FailingSubgraph`. Nothing here knows which engine is the
reference: it is passed as a function that runs functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.verify.bisection import FailingSubgraph as FailingSubgraph
    from xrt.verify.bisection import bisect as bisect
    from xrt.verify.bisection import bisect_plan as bisect_plan
    from xrt.verify.comparison import CheckVerdict as CheckVerdict
    from xrt.verify.comparison import Verdict as Verdict
    from xrt.verify.comparison import judge_outputs as judge_outputs
    from xrt.verify.execution import Run as Run
    from xrt.verify.regions import RegionCheck as RegionCheck
    from xrt.verify.regions import ValueCheck as ValueCheck
    from xrt.verify.regions import Verification as Verification
    from xrt.verify.regions import verify as verify

_MODULES = {
    "CheckVerdict": "xrt.verify.comparison",
    "FailingSubgraph": "xrt.verify.bisection",
    "RegionCheck": "xrt.verify.regions",
    "Run": "xrt.verify.execution",
    "ValueCheck": "xrt.verify.regions",
    "Verdict": "xrt.verify.comparison",
    "Verification": "xrt.verify.regions",
    "bisect": "xrt.verify.bisection",
    "bisect_plan": "xrt.verify.bisection",
    "judge_outputs": "xrt.verify.comparison",
    "verify": "xrt.verify.regions",
}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
