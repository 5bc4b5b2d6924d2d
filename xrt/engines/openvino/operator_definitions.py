"""Operators that OpenVINO lacks or computes otherwise, said by others: as ONNX defines them, or as `spelling` does."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from xrt import passes
from xrt.engines.openvino.decompositions import decompose_node
from xrt.engines.openvino.negative_pads import may_cut_off_more_than_there_is
from xrt.engines.toolkit import node_rewrite
from xrt.engines.toolkit.learned_models import ML, find_learned_definition
from xrt.engines.toolkit.node_rewrite import as_function, rename_part
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import ModelError
from xrt.formats.onnx import expand
from xrt.graph import Function, Node

__all__ = ["decompose", "find_decomposition"]

REMEMBERED = 1024
"""Meanings that are kept, so that equal nodes are looked up once."""


def find_decomposition(node: Node, function: Function) -> Function | None:
    """Return a Function that computes what the node does with other operators, its constant parts computed; None without one.

    Its inputs are called i0, i1 ... after what the node reads, and its outputs o0, o1 ... after the node's.
    """
    if node.bodies or node.control:
        return None
    if node.op_type == "Pad" and not may_cut_off_more_than_there_is(node, function):
        return None  # what a Pad is said in has such a one
    return find_learned_definition(node, function) if node.domain == ML else _meaning(as_function(node, function))


def decompose(function: Function, is_said: Callable[[Node, Function], bool]) -> Function:
    """Return the Function with each node that is to be said so in the words of its meaning.

    The meaning's own nodes are treated likewise.
    """
    return node_rewrite.rewrite_nodes(function, lambda node, at: find_decomposition(node, at) if is_said(node, at) else None)


@lru_cache(maxsize=REMEMBERED)
def _meaning(one: Function) -> Function | None:
    try:
        meaning = decompose_node(one) or expand(one)
        if meaning is None or meaning.opset() != one.opset():
            return None
        folded = passes.fold_constants(passes.infer_shapes(meaning), evaluate)
    except ModelError:
        return None
    return _with_constants_passed_on(passes.drop_dead_nodes(passes.infer_shapes(folded)))


def _with_constants_passed_on(meaning: Function) -> Function:
    """Return the meaning with an Identity for each result all of which was computed, so that its type counts as a node's does."""
    computed = [value.name for value in meaning.outputs if value.name in meaning.constants]
    if not computed:
        return meaning
    names = {name: f"{name}/constant" for name in computed}
    nodes = tuple(rename_part(node, lambda name: names.get(name, name)) for node in meaning.nodes)
    passed = (Node("Identity", (constant,), (name,)) for name, constant in names.items())
    constants = {names.get(name, name): constant for name, constant in meaning.constants.items()}
    return meaning.replace(nodes=(*nodes, *passed), constants=constants)
