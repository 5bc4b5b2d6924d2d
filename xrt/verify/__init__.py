"""Whether a result is right: a plan held against the reference region by region, and the smallest part that is wrong.

A Plan and the reference come in, with inputs; a `Verification` or a `Culprit` goes out. Nothing here knows which engine is the
reference: it is handed in as a function that runs functions.
"""

from xrt.verify.bisection import Culprit, bisect, bisect_plan
from xrt.verify.comparison import Judgement, Verdict, judge
from xrt.verify.regions import RegionCheck, ValueCheck, Verification, verify
from xrt.verify.running import Run
from xrt.verify.witnesses import Dissent, Review, WitnessedReference, Witnesses

__all__ = [
    "Culprit",
    "Dissent",
    "Judgement",
    "RegionCheck",
    "Review",
    "Run",
    "ValueCheck",
    "Verdict",
    "Verification",
    "WitnessedReference",
    "Witnesses",
    "bisect",
    "bisect_plan",
    "judge",
    "verify",
]
