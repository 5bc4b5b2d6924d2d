"""Passes: from a Function to a Function that computes the same.

Each is a function without state; what cannot be improved stays as it is, so no pass fails on a model that runs. None of them
runs an operator itself, integers of computed shapes excepted: the evaluator that `fold_constants` needs is handed in, and
`evaluated` is one, ONNX's own, for engines, which may not see another.
"""

from xrt.passes.dead import drop_dead_nodes
from xrt.passes.evaluation import evaluated
from xrt.passes.folding import fold_constants, known_value
from xrt.passes.inlining import inline_constant_control_flow
from xrt.passes.shape_specialization import bind_dims, specialise
from xrt.passes.shapes import infer_shapes

__all__ = [
    "bind_dims",
    "drop_dead_nodes",
    "evaluated",
    "fold_constants",
    "infer_shapes",
    "inline_constant_control_flow",
    "known_value",
    "specialise",
]
