"""Decompose operators that OpenVINO lacks: by decompositions of `xrt.operators` and of ONNX."""

from __future__ import annotations

from functools import lru_cache

from xrt import passes
from xrt.engines.openvino.tables import may_mask_all_keys
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import ModelError
from xrt.graph import Function, Node
from xrt.graph.node import rename_node
from xrt.operators import as_function

MAX_CACHED_DECOMPOSITIONS = 1024
"""Size of the cache of decompositions. Equal nodes share an entry."""


def find_decomposition(node: Node, function: Function) -> Function | None:
    """Decompose the node into other operators and fold their constants; None if no decomposition is known to be correct."""
    if node.domain or node.bodies or node.control:
        return passes.find_decomposition(node, function)
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
