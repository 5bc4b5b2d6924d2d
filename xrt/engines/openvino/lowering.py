"""Decompose operators that OpenVINO lacks: by decompositions of `xrt.operators` and of ONNX, and by a rule for Pad."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from xrt import passes
from xrt.engines.openvino.tables import may_crop_whole_axis, may_mask_all_keys
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import ModelError
from xrt.graph import Function, Node
from xrt.graph.node import rename_node
from xrt.operators import NodeWriter, as_function, rewrite_nodes

MAX_CACHED_DECOMPOSITIONS = 1024
"""Size of each cache of decompositions. Equal nodes share an entry."""


def find_decomposition(node: Node, function: Function) -> Function | None:
    """Decompose the node into other operators and fold their constants; None if no decomposition is known to be correct."""
    if node.domain or node.bodies or node.control:
        return passes.find_decomposition(node, function)
    if node.op_type == "Pad":
        # The decomposition contains a Pad, which must not be decomposed again.
        return _decompose_pad(as_function(node, function)) if may_crop_whole_axis(node, function) else None
    if node.op_type == "Attention" and may_mask_all_keys(node, function):
        # ONNX's decomposition compares the maximum of a row with -inf, and OpenVINO's ReduceMax never returns -inf.
        return None
    return _decompose(as_function(node, function))


@lru_cache(maxsize=MAX_CACHED_DECOMPOSITIONS)
def _decompose(isolated: Function) -> Function | None:
    """Decompose the single node of a Function. None if the decomposition needs another opset, in which it cannot be inlined."""
    decomposition = passes.find_decomposition(isolated.nodes[0], isolated)
    if decomposition is None or decomposition.opset() != isolated.opset():
        return None
    return _fold_shapes(decomposition)


@lru_cache(maxsize=MAX_CACHED_DECOMPOSITIONS)
def _decompose_pad(isolated: Function) -> Function | None:
    rewritten = rewrite_nodes(isolated, _write_pad)
    return None if rewritten is isolated else _fold_shapes(rewritten.replace(types={}))


def _fold_shapes(decomposition: Function) -> Function | None:
    """Fold computed shapes and axes, because OpenVINO needs some of them as constants; None if the types are inconsistent."""
    try:
        folded = passes.fold_constants(passes.infer_shapes(decomposition), evaluate)
    except ModelError:
        return None
    return _add_identities(passes.drop_dead_nodes(passes.infer_shapes(folded)))


def _add_identities(function: Function) -> Function:
    """Compute each output that is a constant by an Identity, because support and types are checked for nodes only."""
    constant_outputs = [value.name for value in function.outputs if value.name in function.constants]
    if not constant_outputs:
        return function
    new_names = {name: f"{name}/constant" for name in constant_outputs}  # of the constants, as the Identities take the old names
    nodes = tuple(rename_node(node, new_names, {}) for node in function.nodes)
    identities = (Node("Identity", (constant,), (output,)) for output, constant in new_names.items())
    constants = {new_names.get(name, name): constant for name, constant in function.constants.items()}
    return function.replace(nodes=(*nodes, *identities), constants=constants)


def _write_pad(w: NodeWriter) -> str | None:
    """Write a Pad that may crop as a Pad that only adds elements, and a Slice.

    None if the mode is not ``constant``, because others read the elements to crop, or if a rank is unknown.
    """
    x, pads = w.find_type(w.x), w.find_type(w.get_input(1))
    num_pads = pads.shape[0] if pads is not None and pads.shape else None
    if x is None or x.shape is None or not isinstance(num_pads, int) or w.attr("mode", "constant") != "constant":
        return None
    zero = w.constant(0, np.int64)
    # Positive pads add elements, negative ones remove them.
    positive, negative = (w.op(kind, w.node.inputs[1], zero) for kind in ("Max", "Min"))
    padded = w.op("Pad", w.x, positive, *w.node.inputs[2:], attributes=w.node.attributes)
    axes = w.get_input(3) or w.integers(range(len(x.shape)))
    # The first half of the pads are the amounts before each axis, the second half those after it.
    first, middle, last = (w.integers([position]) for position in (0, num_pads // 2, num_pads))
    # A negative pad of -n before an axis is a Slice that begins at n; after an axis, one that ends n elements before the end.
    begins = w.op("Neg", w.op("Slice", negative, first, middle))
    sizes = w.op("Gather", w.op("Shape", padded), axes)
    ends = w.op("Max", w.op("Add", sizes, w.op("Slice", negative, middle, last)), zero)
    return w.op("Slice", padded, begins, ends, axes)
