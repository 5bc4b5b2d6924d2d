"""Draft."""

from xrt.engines.openvino.values import why_not_carried
from xrt.graph import Function, Node


def why_not(node: Node, function: Function) -> str | None:
    if node.domain:
        return "domain"
    for n in (*node.uses, *node.defines):
        r = why_not_carried(n, function.type_of(n))
        if r:
            return r
    return None
