"""Explain why the engine does not support a node: types, the table of kernels, and known issues."""

from __future__ import annotations

from functools import lru_cache

from xrt.engines.toolkit.support import LibrarySupport, close_over, why_not_defined
from xrt.engines.torch.dtypes import COMPLEX, DIRECT, MASKS, summarize_error
from xrt.engines.torch.kernels import TorchKernelContext, ops
from xrt.engines.torch.namespace import TORCH
from xrt.engines.torch.opaque import make_opaque_kernel
from xrt.engines.torch.program import make_program
from xrt.engines.torch.tables import CONTROL, CONVERTING, IN_UINT64, MOVING
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
        return f"{name!r} is {type_}, and this engine takes tensors, sequences and optionals"
    dtype = type_.dtype
    if dtype in DIRECT or (dtype in MASKS and node.domain != DOMAIN) or (node.op_type in CONTROL and dtype not in _NO_TENSORS):
        return None
    # FLOAT8E8M0 is only read: casts to it have rounding modes, which this engine does not implement.
    if (
        dtype not in _NO_TENSORS
        and (dtype is not DType.FLOAT8E8M0 or name in node.inputs)
        and (node.op_type in MOVING or node.op_type in CONVERTING)
    ):
        return None
    if dtype is DType.UINT64 and node.op_type in IN_UINT64:
        return None
    # No kernel of ONNX's operators reads complex tensors; opaque calls do.
    if dtype in COMPLEX and node.domain == DOMAIN:
        return None
    return f"{name!r} is {dtype}, in which this engine does not compute {node.op}"


_NO_TENSORS = frozenset({DType.STRING, *COMPLEX})


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
        return f"torch cannot take this {node.op}: {summarize_error(cause)}"
    return kernel if node.bodies else _why_not_decomposed(as_function(node, function), kernel)


@lru_cache(maxsize=4096)
def _why_not_decomposed(isolated: Function, reason: str) -> str | None:
    """Explain why the decomposition of a node without a kernel is not supported."""
    (node,) = isolated.nodes
    try:
        decomposition = find_decomposition(node, isolated)
    except ModelError as cause:
        return f"{reason}; {summarize_error(cause)}"
    if decomposition is None:
        return reason
    for inner in decomposition.nodes:
        if refused := why_not(inner, decomposition):
            return f"{reason}, and of its definition {inner.op} is not taken: {refused}"
    return None


_SUPPORT = LibrarySupport(
    operator=(_why_not_operator,),
    why_not_type=_why_not_type,
    tables=(_why_not_kernel,),
    answer=lambda node, function: None,
    close_body=close_over,
)
