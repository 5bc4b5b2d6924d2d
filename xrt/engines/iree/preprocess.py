"""What is done to a Function before it is written as MLIR."""

from __future__ import annotations

from dataclasses import replace

from xrt.engines.iree.decompositions import decompose
from xrt.engines.iree.function_bodies import expand_bodies
from xrt.engines.toolkit.convolution_products import write_convolutions_as_products
from xrt.engines.toolkit.learned_models import find_learned_definition
from xrt.engines.toolkit.node_rewrite import rewrite_nodes
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.graph import Function, TensorType
from xrt.passes import fold_constants, infer_shapes
from xrt.passes.opset_upgrade import upgrade_opset

__all__ = ["OPSET", "preprocess", "why_not_sized"]

OPSET = 18
"""The least opset that is handed over: IREE has no rules for many older forms of operators."""


def preprocess(function: Function) -> Function:
    """Return the Function as it is written: Constant nodes and the Shape of a static value are constants, all types are known,
    what IREE gets wrong is spelled otherwise, and so are convolutions that take it longer than products.

    What depends on constants alone is computed here: of exp(-(1 / c) * c) with a constant c, IREE makes exp(-1), also for c = 0.

    Raises ModelError, which is a ValueError, where an operator of an older opset cannot be brought to `OPSET`.
    Equal Functions, whatever their names, give equal ones; so a saved module fits the Function it is loaded for.
    """
    free = function.replace(
        nodes=tuple(replace(node, control=()) for node in function.nodes)
    )  # nothing here has effects to order
    said = rewrite_nodes(infer_shapes(free), find_learned_definition)
    whole = expand_bodies(infer_shapes(upgrade_opset(infer_shapes(said), OPSET)))
    folded = infer_shapes(fold_constants(infer_shapes(whole), evaluate))
    return infer_shapes(decompose(infer_shapes(write_convolutions_as_products(folded))))


def why_not_sized(function: Function) -> str | None:
    """Return which input or output has a shape that its inputs do not tell; None when they tell all."""
    known: set[object] = set()
    for value in function.inputs:
        known.update(getattr(value.type, "shape", None) or ())
    for value in (*function.inputs, *function.outputs):
        type_ = function.get_type(value.name)
        shape = type_.shape if isinstance(type_, TensorType) else None
        if shape is None or not all(isinstance(dim, int) or (dim is not None and dim in known) for dim in shape):
            return f"the shape of {value.name!r} is not known before the run"
    return None
