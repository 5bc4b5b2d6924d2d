"""Lower a Function to the operators that IREE's compiler imports and computes correctly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.engines.toolkit.rewrites import write_convolutions_as_products
from xrt.graph import Attribute, Function, Node, TensorType
from xrt.operators import NodeWriter, decompose_nodes, rewrite_nodes
from xrt.operators.decompositions import write_decomposition
from xrt.passes import drop_dead_nodes, find_decomposition, fold_constants, infer_shapes
from xrt.passes.opset_upgrade import upgrade_opset

Array = np.ndarray[Any, Any]


def is_decomposed(node: Node, function: Function) -> bool:
    """Whether the node is rewritten before the export; its inputs must have types."""
    return _write(NodeWriter(node, function)) is not None


def _write(w: NodeWriter) -> str | Sequence[str] | None:
    if w.node.op in LOWERED:
        return write_decomposition(w)
    since, rule = _REWRITTEN.get(w.node.op, (0, None))
    return None if rule is None or w.opset < since else rule(w)


# ---------------------------------------------------------------------- forms that IREE's compiler gets wrong


def _index_along_axis(w: NodeWriter) -> str:
    """The same operator with indices that count from the start and are inside the bounds."""
    return _write_indexed(w, np.array(w.extents(w.x)[w.attr("axis", 0)]))


def _index_by_tuples(w: NodeWriter) -> str:
    batch, depth = w.attr("batch_dims", 0), w.extents(w.node.inputs[1])[-1]
    return _write_indexed(w, np.array(w.extents(w.x)[batch : batch + depth]))


def _write_indexed(w: NodeWriter, extents: Array) -> str:
    """Write the node with normalized indices; the extents broadcast to them."""
    return w.op(w.node.op_type, w.x, _normalize_indices(w, extents), *w.node.inputs[2:], attributes=w.node.attributes)


def _normalize_indices(w: NodeWriter, extents: Array) -> str:
    indices, constant = w.node.inputs[1], w.find_input(1)
    if constant is not None and bool(((constant >= 0) & (constant < extents)).all()):
        return indices
    integer = w.dtype(indices).numpy
    zero = w.constant(0, integer)
    from_start = w.op("Add", indices, w.constant(extents, integer))
    counted = w.op("Where", w.op("Less", indices, zero), from_start, indices)
    return w.op("Min", w.op("Max", counted, zero), w.constant(extents - 1, integer))


def _conv(w: NodeWriter) -> str | None:
    """Remove elements behind a window that fits only once along an axis, which IREE's compiler would include."""
    if len(w.node.inputs) < 2 or w.attr("auto_pad", "NOTSET") != "NOTSET":
        return None
    extents = np.array(w.extents(w.x)[2:])
    if not extents.all():
        return None
    fronts, backs = np.array(w.attr("pads") or [0] * 2 * len(extents)).reshape(2, -1)
    unread = _unread(w, extents + fronts + backs)
    padding = np.minimum(unread, backs)
    ends = extents - unread + padding
    if not unread.any() or (ends < 1).any():
        return None
    axes = np.arange(2, 2 + len(ends))
    name = w.x if padding.sum() == unread.sum() else w.op("Slice", w.x, *map(w.constant, (axes * 0, ends, axes)))
    pads = Attribute.of("pads", [*fronts.tolist(), *(backs - padding).tolist()])
    others = (attribute for attribute in w.node.attributes if attribute.name != "pads")
    return w.op("Conv", name, *w.node.inputs[1:], attributes=(*others, pads))


def _unread(w: NodeWriter, extents: Array) -> Array:
    """Number of elements behind the only window of each axis; 0 if there are several windows."""
    window = np.array(w.extents(w.node.inputs[1])[2:])
    strides, dilations = (np.array(w.attr(name) or np.ones_like(window)) for name in ("strides", "dilations"))
    behind = extents - (window - 1) * dilations - 1
    return np.where(behind < strides, behind, 0)


LOWERED = frozenset(
    {
        *("CastLike", "DepthToSpace", "Dropout", "Gelu", "LpNormalization", "Pad", "Pow", "RMSNormalization"),
        *("ReduceLogSumExp", "Softsign", "Swish"),
    }
)
"""Operators that IREE does not import in every form: decomposed where possible."""
EXPANDED = frozenset({"Attention", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})
"""Operators that IREE does not import, replaced by ONNX's function bodies."""
_REWRITTEN: Mapping[str, tuple[int, Callable[[NodeWriter], str | None]]] = {
    **dict.fromkeys(("Gather", "GatherElements", "ScatterElements"), (12, _index_along_axis)),
    **dict.fromkeys(("GatherND", "ScatterND"), (12, _index_by_tuples)),
    "Conv": (11, _conv),
}
"""Operators whose computation IREE gets wrong in some forms: the first opset of the form that the rule reads, and the rule."""


def _find_body(node: Node, function: Function) -> Function | None:
    return find_decomposition(node, function) if node.op in EXPANDED else None


OPSET = 18
"""Lowest opset of exported Functions: IREE has no rules for many older operator versions."""


def preprocess(function: Function) -> Function:
    """Prepare a Function for export: infer types, upgrade the opset, fold constants, decompose operators.

    Constants are folded here, because IREE simplifies exp(-(1 / c) * c) to exp(-1) even for c = 0. Convolutions are written as
    products if those are faster.

    Raises ModelError, which is a ValueError, if an operator cannot be upgraded to `OPSET`. Depends only on the content of the
    Function, so that a saved module fits the Function that it is loaded for.
    """
    # Nothing here has side effects, so control edges order nothing.
    free = function.replace(nodes=tuple(replace(node, control=()) for node in function.nodes))
    expanded = decompose_nodes(infer_shapes(upgrade_opset(infer_shapes(free), OPSET)), _find_body)
    folded = infer_shapes(fold_constants(infer_shapes(expanded), evaluate))
    rewritten = rewrite_nodes(infer_shapes(write_convolutions_as_products(folded)), _write)
    return infer_shapes(drop_dead_nodes(rewritten))


def why_not_sized(function: Function) -> str | None:
    """Name an input or output whose shape does not follow from the inputs; None if all do."""
    input_dims: set[object] = set()
    for value in function.inputs:
        input_dims.update(getattr(value.type, "shape", None) or ())
    for value in (*function.inputs, *function.outputs):
        type_ = function.get_type(value.name)
        shape = type_.shape if isinstance(type_, TensorType) else None
        if shape is None or not all(isinstance(dim, int) or (dim is not None and dim in input_dims) for dim in shape):
            return f"the shape of {value.name!r} is not known before the run"
    return None
