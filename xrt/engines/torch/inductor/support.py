"""Why Inductor cannot take a node that a kernel serves: no compiler, or the kernel cannot be traced.

A kernel can be traced if what it calls, and the shapes of what it makes, do not depend on numbers that only a call shows.
"""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache

from xrt.engines.toolkit.node_rewrite import as_function
from xrt.engines.torch.inductor.compiler import why_no_compiler
from xrt.engines.torch.inductor.known_issues import find_known_issue
from xrt.graph import Function, Node, TensorType
from xrt.graph.opaque_call import DOMAIN

__all__ = ["why_not"]

_FOLDER = "TORCHINDUCTOR_CACHE_DIR"


def why_not(node: Node, function: Function) -> str | None:
    """Return why Inductor cannot take a node that a kernel serves; None when it can."""
    if reason := why_no_compiler():
        return reason
    if node.domain == DOMAIN:
        return "mode=inductor leaves operators of PyTorch's own to mode=eager"
    for name in (*node.uses, *filter(None, node.outputs)):
        type_ = function.get_type(name)
        if not isinstance(type_, TensorType):
            return f"mode=inductor compiles tensors alone, and {name!r} is {type_}"
        if type_.shape is None:
            return f"mode=inductor needs the number of dimensions of {name!r}"
    return find_known_issue(node, function) or _why_not_traced(as_function(node, function))


@lru_cache(maxsize=4096)
def _why_not_traced(one: Function) -> str | None:
    """Return why a Function of one node is not traced.

    When it first traces, torch makes Inductor's folder and names it in the environment. Here it gets one that exists, and the
    name is removed: the caller's own compiles use the folder that they always do.
    """
    is_named = _FOLDER in os.environ
    if not is_named:
        os.environ[_FOLDER] = tempfile.gettempdir()
    try:
        from xrt.engines.torch.inductor.tracer import why_not_traced

        return why_not_traced(one)
    finally:
        if not is_named:
            os.environ.pop(_FOLDER, None)
