"""Tuning: where the nodes of a model go, found out by measurement.

A Function and engines come in; pieces of it are measured in workers, the planner proposes plans, and these race against the
best engine alone until more rounds would tell no more. The quickest plan that computes what the reference does comes out, with
all that was measured. Nothing here knows which engine is the reference, or guesses a time that could be measured.
"""

from xrt.cache.disk.costs import CostStore
from xrt.tune.account import Account
from xrt.tune.bounds import Bounds
from xrt.tune.driving import tune
from xrt.tune.search import Told
from xrt.tune.tuned import Contender, Progress, Race, Tuned

__all__ = ["Account", "Bounds", "Contender", "CostStore", "Progress", "Race", "Told", "Tuned", "tune"]
