"""Whether a result is right: a plan held against the reference region by region, and the smallest part that is wrong.

A Plan and the reference come in, with inputs; a `Verification` or a `Culprit` goes out. Nothing here knows which engine is the
reference: it is handed in as a function that runs functions.
"""

from xrt.verify.bisect import Culprit, bisect, bisect_plan
from xrt.verify.judge import Judgement, Verdict, judge
from xrt.verify.regions import RegionCheck, ValueCheck, Verification, verify
from xrt.verify.running import Run

__all__ = [
    "Culprit",
    "Judgement",
    "RegionCheck",
    "Run",
    "ValueCheck",
    "Verdict",
    "Verification",
    "bisect",
    "bisect_plan",
    "judge",
    "verify",
]
