"""Decide whether the engine supports a node: by its types, by the table of kernels, and by trying to make its kernel."""

from __future__ import annotations

from functools import lru_cache

from xrt.engines.toolkit.support import LibrarySupport, close_over, why_not_defined
from xrt.engines.torch.dtypes import BIT_MASKS, COMPLEX, NATIVE, summarize_error
from xrt.engines.torch.kernels import TorchKernelContext, ops
from xrt.engines.torch.namespace import TORCH
from xrt.engines.torch.opaque import make_opaque_kernel
from xrt.engines.torch.program import make_program
from xrt.engines.torch.tables import CONTROL_OPS, CONVERTING_OPS, MOVING_OPS, UINT64_OPS
from xrt.errors import CompileRefused, ModelError
from xrt.graph import DType, Function, Node, OptionalType, SequenceType, TensorType, Type
from xrt.graph.node import DOMAIN
from xrt.operators import as_function
from xrt.passes import find_decomposition


def why_not(node: Node, function: Function) -> str | None:
    """Explain why PyTorch does not support the node in isolation; None if it does."""
    return _SUPPORT.why_not(node, function)


def _why_not_operator(node: Node, function: Function) -> str | None:
    return None if node.domain == DOMAIN else why_not_defined(node, function)


def _why_not_type(node: Node, name: str, type_: Type) -> str | None:
    if isinstance(type_, SequenceType | OptionalType):
        return _why_not_type(node, name, type_.element)
    if not isinstance(type_, TensorType):
        return f"{name!r} is {type_}, and this engine supports only tensors, sequences and optionals"
    dtype = type_.dtype
    if (
        dtype in NATIVE
        or (dtype in BIT_MASKS and node.domain != DOMAIN)
        or (node.op_type in CONTROL_OPS and dtype not in _UNSUPPORTED)
    ):
        return None
    # FLOAT8E8M0 is supported as an input only: casts to it have rounding modes, which this engine does not implement.
    if (
        dtype not in _UNSUPPORTED
        and (dtype is not DType.FLOAT8E8M0 or name in node.inputs)
        and (node.op_type in MOVING_OPS or node.op_type in CONVERTING_OPS)
    ):
        return None
    if dtype is DType.UINT64 and node.op_type in UINT64_OPS:
        return None
    # The kernels of ONNX's operators do not support complex tensors. Opaque calls do.
    if dtype in COMPLEX and node.domain == DOMAIN:
        return None
    return f"{name!r} is {dtype}, and this engine does not support {node.op} in that type"


_UNSUPPORTED = frozenset({DType.STRING, *COMPLEX})


def _why_not_kernel(node: Node, function: Function) -> str | None:
    try:
        if node.domain == DOMAIN:
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
    """Explain why the decomposition of a node is not supported; None if it is. ``reason``, why it has no kernel, comes first."""
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
    operator=(_why_not_operator,),
    why_not_type=_why_not_type,
    tables=(_why_not_kernel,),
    answer=lambda node, function: None,
    close_body=close_over,
)
