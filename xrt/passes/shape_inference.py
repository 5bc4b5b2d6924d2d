"""Infer types: what ONNX infers of the whole, and then node by node what follows from more than ONNX looks at."""

from __future__ import annotations

from xrt.graph import Function, TensorType
from xrt.graph.gc_pause import pause_gc
from xrt.passes.inference import infer_by_onnx
from xrt.passes.propagation import Knowledge, propagate_types

__all__ = ["infer_shapes"]


def infer_shapes(function: Function) -> Function:
    """Return the Function with all that can be known of its values' types, in bodies too.

    Where the operators and the declaration differ: a number beats a name, and a name beats nothing; between two
    names the declared one stays. Where both are numbers, or the element types or ranks differ, the operators are right, for
    outputs too: a declaration does not change what is computed. The types of the main inputs are the caller's to give and
    stay as they are. Names that onnx makes up (``unk__0``) are no knowledge and become None.

    Contents of shapes that are computed are followed element by element, and operators of com.microsoft and ai.onnx.ml give
    what their definition says. The Function must obey the rules of `xrt.graph.verify`. What cannot be inferred keeps its
    declaration. The function itself is returned where nothing new is known. Weights are not copied. Linear.
    """
    with pause_gc(function.size):
        inferred = infer_by_onnx(function)
        return inferred if _is_settled(inferred) else propagate_types(inferred, Knowledge(inferred))


def _is_settled(function: Function) -> bool:
    """Whether every value is a tensor of known extents, and nothing is hidden in a body."""
    if any(not isinstance(v.type, TensorType) or not v.type.is_static for v in function.outputs):
        return False
    for node in function.nodes:
        if node.bodies:
            return False
        for name in node.outputs:
            if name:
                type_ = function.get_type(name)
                if not isinstance(type_, TensorType) or not type_.is_static:
                    return False
    return True
