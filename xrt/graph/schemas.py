"""The operator schemas of the ``onnx`` package: the only part of it that the graph reads."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from onnx import defs

if TYPE_CHECKING:
    from xrt.graph.function import Function
    from xrt.graph.node import Node

__all__ = ["find_schema", "is_deterministic", "is_training", "latest_opset", "since_version"]

_VERSIONS = 1 << 31
"""Where the versions end that ``onnx`` can be asked about; models may say larger ones."""


@lru_cache(maxsize=4096)
def find_schema(op_type: str, version: int, domain: str = "") -> defs.OpSchema | None:
    """Return the operator's schema in force at an opset version, None where the domain or the operator is unknown."""
    if abs(version) >= _VERSIONS:
        return None
    try:
        return defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return None


def since_version(node: Node, function: Function) -> int | None:
    """Return the version at which the node's operator took its present meaning; None where it is unknown."""
    version = function.opsets.get(node.domain)
    schema = None if version is None else find_schema(node.op_type, version, node.domain)
    return None if schema is None else schema.since_version


@lru_cache(maxsize=1)
def latest_opset() -> int:
    """Return the newest version of ai.onnx that the installed ``onnx`` knows."""
    return int(defs.onnx_opset_version())


_RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})


def is_deterministic(node: Node, function: Function) -> bool:
    """Whether the node gives the same outputs whenever it is given the same inputs.

    It is false for random operators, Dropout in training mode, operators of domains that ``onnx`` does not describe, and nodes
    whose bodies contain such a node. These are never folded into constants, merged or shared.
    """
    if since_version(node, function) is None or node.op_type in _RANDOM:
        return False
    if node.op_type == "Dropout" and is_training(node, function):
        return False
    return all(is_deterministic(inner, body) for body in node.bodies for inner in body.nodes)


def is_training(node: Node, function: Function) -> bool:
    """Whether the node is the training form of its operator; a Dropout whose flag is not a constant counts as one."""
    if node.op == "Dropout" and function.opsets.get("", 7) < 7:
        return not node.attr("is_test", 0)
    if node.op == "Dropout" and len(node.inputs) > 2 and node.inputs[2]:
        flag = function.constants.get(node.inputs[2])
        return flag is None or bool(flag.array)
    return node.op_type == "BatchNormalization" and node.attr("training_mode", 0) == 1
