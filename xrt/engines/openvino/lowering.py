"""Decompose operators that OpenVINO lacks: by the decompositions of `xrt.operators`, by ONNX's, or by the rule below."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from xrt import passes
from xrt.engines.openvino.tables import may_crop_beyond_extent, may_mask_all_keys
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import ModelError
from xrt.graph import Function, Node
from xrt.graph.node import rename_node
from xrt.operators import NodeWriter, as_function, decompose_nodes, rewrite_nodes

REMEMBERED = 1024
"""Cached decompositions; equal nodes share one."""


def find_decomposition(node: Node, function: Function) -> Function | None:
    """Decompose the node into other operators and fold constants; None if no decomposition is known."""
    if node.domain or node.bodies or node.control:
        return passes.find_decomposition(node, function)
    if node.op_type == "Pad":
        # The decomposition contains a Pad.
        return _decompose_pad(as_function(node, function)) if may_crop_beyond_extent(node, function) else None
    if node.op_type == "Attention" and may_mask_all_keys(node, function):
        return None
    return _decompose(as_function(node, function))


def decompose(function: Function, is_lowered: Callable[[Node, Function], bool]) -> Function:
    """Replace each node that `is_lowered` selects by its decomposition, recursively."""
    return decompose_nodes(function, lambda node, at: find_decomposition(node, at) if is_lowered(node, at) else None)


@lru_cache(maxsize=REMEMBERED)
def _decompose(isolated: Function) -> Function | None:
    lowered = passes.find_decomposition(isolated.nodes[0], isolated)
    return None if lowered is None or lowered.opset() != isolated.opset() else _fold(lowered)


@lru_cache(maxsize=REMEMBERED)
def _decompose_pad(isolated: Function) -> Function | None:
    lowered = rewrite_nodes(isolated, _write_pad)
    return None if lowered is isolated else _fold(lowered.replace(types={}))


def _fold(lowered: Function) -> Function | None:
    """Compute constant shapes and axes, on which OpenVINO's support depends."""
    try:
        folded = passes.fold_constants(passes.infer_shapes(lowered), evaluate)
    except ModelError:
        return None
    return _add_identities(passes.drop_dead_nodes(passes.infer_shapes(folded)))


def _add_identities(lowered: Function) -> Function:
    """Add an Identity for each result that was folded to a constant, so that its type is checked as a node's."""
    computed = [value.name for value in lowered.outputs if value.name in lowered.constants]
    if not computed:
        return lowered
    names = {name: f"{name}/constant" for name in computed}
    nodes = tuple(rename_node(node, names, {}) for node in lowered.nodes)
    identities = (Node("Identity", (constant,), (name,)) for name, constant in names.items())
    constants = {names.get(name, name): constant for name, constant in lowered.constants.items()}
    return lowered.replace(nodes=(*nodes, *identities), constants=constants)


def _write_pad(w: NodeWriter) -> str | None:
    """Split a Pad into a non-negative Pad and a Slice; None for an unknown rank or a mode that reads the cropped elements."""
    x, pads = w.find_type(w.x), w.find_type(w.get_input(1))
    count = pads.shape[0] if pads is not None and pads.shape else None
    if x is None or x.shape is None or not isinstance(count, int) or w.attr("mode", "constant") != "constant":
        return None
    zero = w.constant(0, np.int64)
    # Positive pads add elements, negative ones remove them.
    positive, negative = (w.op(kind, w.node.inputs[1], zero) for kind in ("Max", "Min"))
    padded = w.op("Pad", w.x, positive, *w.node.inputs[2:], attributes=w.node.attributes)
    axes = w.get_input(3) or w.integers(range(len(x.shape)))
    first, middle, last = (w.integers([place]) for place in (0, count // 2, count))
    begins = w.op("Neg", w.op("Slice", negative, first, middle))
    sizes = w.op("Gather", w.op("Shape", padded), axes)
    ends = w.op("Max", w.op("Add", sizes, w.op("Slice", negative, middle, last)), zero)
    return w.op("Slice", padded, begins, ends, axes)
