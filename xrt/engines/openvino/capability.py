"""Draft."""
from xrt.engines.openvino.values import why_not_carried
def why_not(node, function):
    if node.domain: return "domain"
    for n in (*node.uses, *node.defines):
        r = why_not_carried(n, function.type_of(n))
        if r: return r
    return None
