"""Passes: from a Function to a Function that computes the same.

Each is a function without state; what cannot be improved stays as it is, so no pass fails on a model that runs. None of them
runs an operator itself: the evaluator that `fold_constants` needs is handed in, and `evaluated` is one, ONNX's own, for
engines, which may not see another.
"""

from xrt.passes.dead import drop_dead_nodes
from xrt.passes.evaluation import evaluated
from xrt.passes.folding import fold_constants, known_value
from xrt.passes.shapes import infer_shapes
from xrt.passes.specialise import bind_dims, specialise

__all__ = ["bind_dims", "drop_dead_nodes", "evaluated", "fold_constants", "infer_shapes", "known_value", "specialise"]
