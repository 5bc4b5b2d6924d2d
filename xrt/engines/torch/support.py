"""Decide whether the engine supports a node: by its types, by the table of kernels, and by trying to make its kernel."""

from __future__ import annotations

from functools import lru_cache

from xrt.engines.toolkit.libraries import summarize_error
from xrt.engines.toolkit.support import LibrarySupport, close_over, why_not_defined
from xrt.engines.torch.dtypes import BIT_MASKS, COMPLEX, NATIVE
from xrt.engines.torch.kernels import TorchKernelContext, ops
from xrt.engines.torch.namespace import TORCH
from xrt.engines.torch.opaque import make_opaque_kernel
from xrt.engines.torch.program import make_program
from xrt.engines.torch.tables import CONTROL_OPS, CONVERTING_OPS, MOVING_OPS, UINT64_OPS
from xrt.errors import CompileRefused, ModelError
from xrt.graph import DType, Function, Node, OptionalType, SequenceType, TensorType, Type
from xrt.graph.node import ATEN_DOMAIN
from xrt.operators import as_function
from xrt.passes import find_decomposition


def why_not(node: Node, function: Function) -> str | None:
    return _SUPPORT.why_not(node, function)


def _why_not_type(node: Node, name: str, type_: Type) -> str | None:
    if isinstance(type_, SequenceType | OptionalType):
        return _why_not_type(node, name, type_.element)
    if not isinstance(type_, TensorType):
        return f"{name!r} is {type_}, and this engine supports only tensors, sequences and optionals"
    if _supports_dtype(node, type_.dtype, is_input=name in node.inputs):
        return None
    return f"{name!r} is {type_.dtype}, and this engine does not support {node.op} in that type"


def _supports_dtype(node: Node, dtype: DType, *, is_input: bool) -> bool:
    """Whether the kernel of a node supports an input, or an output, of this element type."""
    if dtype in NATIVE:
        return True
    # Kernels of ONNX's operators support no complex tensors. Opaque calls do, but support no types that PyTorch lacks.
    if node.domain == ATEN_DOMAIN:
        return dtype in COMPLEX
    if dtype is DType.STRING or dtype in COMPLEX:
        return False
    if dtype in BIT_MASKS or node.op_type in CONTROL_OPS:
        return True
    if node.op_type in MOVING_OPS or node.op_type in CONVERTING_OPS:
        # FLOAT8E8M0 is supported as an input only: casts to it have rounding modes, which this engine does not implement.
        return is_input or dtype is not DType.FLOAT8E8M0
    return dtype is DType.UINT64 and node.op_type in UINT64_OPS


def _why_not_kernel(node: Node, function: Function) -> str | None:
    """Explain why neither a kernel nor a decomposition supports the node; None if one does."""
    try:
        if node.domain == ATEN_DOMAIN:
            make_opaque_kernel(TorchKernelContext(node, function, TORCH, make_program))
            return None
        kernel = ops.find(node, function)
        if not isinstance(kernel, str):
            if not node.bodies:
                kernel.code(node, TorchKernelContext(node, function, TORCH, make_program))
            return None
    except (CompileRefused, ModelError) as refused:
        return str(refused)
    except Exception as cause:  # noqa: BLE001  # a node that violates its schema may raise anything
        return f"torch does not support this {node.op}: {summarize_error(cause)}"
    return kernel if node.bodies else _why_not_decomposed(as_function(node, function), kernel)


@lru_cache(maxsize=4096)
def _why_not_decomposed(isolated: Function, reason: str) -> str | None:
    """Explain why the decomposition of a node is not supported; None if it is. ``reason`` explains why the node has no kernel."""
    (node,) = isolated.nodes
    try:
        decomposition = find_decomposition(node, isolated)
    except ModelError as cause:
        return f"{reason}; {summarize_error(cause)}"
    if decomposition is None:
        return reason
    for inner in decomposition.nodes:
        if inner_reason := why_not(inner, decomposition):
            return f"{reason}, and its decomposition contains {inner.op}, which is not supported: {inner_reason}"
    return None


_SUPPORT = LibrarySupport(
    operator=(lambda node, function: None if node.domain == ATEN_DOMAIN else why_not_defined(node, function),),
    why_not_type=_why_not_type,
    tables=(_why_not_kernel,),
    query=lambda node, function: None,
    close_body=close_over,
)
