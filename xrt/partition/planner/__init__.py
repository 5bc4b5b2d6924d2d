"""The planner: from what regions were measured to cost, to the plans that are worth trying.

A Function, engines and a cost table come in; pieces to measure, predictions and Plans go out. It has no clock, touches no
file and draws no lot: whoever drives it (`xrt.tune`) measures.
"""

from xrt.partition.planner.options import SearchOptions
from xrt.partition.planner.prediction import BoundaryCost, Prediction, RegionPrediction, predicted
from xrt.partition.planner.profiling_requests import Piece, pieces
from xrt.partition.planner.proposing import propose
from xrt.partition.planner.searching import Found, search
from xrt.partition.planner.unlocking import Unlock, unlocks

__all__ = [
    "BoundaryCost",
    "Found",
    "Piece",
    "Prediction",
    "RegionPrediction",
    "SearchOptions",
    "Unlock",
    "pieces",
    "predicted",
    "propose",
    "search",
    "unlocks",
]
