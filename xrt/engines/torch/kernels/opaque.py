"""Calls of operators of PyTorch that have no ONNX form: nodes of the domain ``aten``, made by calling the operator itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from xrt.errors import CompileRefused
from xrt.graph.opaque_call import OpaqueCall, Tagged

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext
    from xrt.engines.torch.table import Run, Tensor

__all__ = ["make_opaque_kernel"]


def make_opaque_kernel(at: TorchKernelContext) -> Run:
    """Return what computes a node that calls an operator of PyTorch.

    Raises ModelError where its attributes describe no call, and CompileRefused where this process does not have the operator.
    """
    call = OpaqueCall.read(at.node)
    operator = _find_operator(call.operator)

    def run(*inputs: Any) -> tuple[Any, ...]:
        args, kwargs = call.resolve(lambda tagged: _resolve(tagged, inputs))
        results = operator(*args, **kwargs)
        return tuple(map(_to_tensor, results if isinstance(results, tuple | list) else (results,)))

    return run


def _find_operator(name: str) -> Any:
    """Return the overload that is called ``namespace::operator.overload``."""
    namespace, _, rest = name.partition("::")
    operator, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), operator), overload or "default")
    except (AttributeError, RuntimeError):
        raise CompileRefused(
            f"this process has no operator {name} of PyTorch; import the library that registers it before the model is compiled"
        ) from None


def _resolve(tagged: Tagged, inputs: tuple[Any, ...]) -> Any:
    if tagged.kind == "tensor":
        return inputs[tagged.value]
    if tagged.kind == "number":
        return inputs[tagged.value].item()
    return torch.device(tagged.value) if tagged.kind == "device" else getattr(torch, tagged.value)


def _to_tensor(result: Any) -> Tensor:
    """Return a result as a tensor whose memory holds what it means: without the marks of a conjugate or an opposite."""
    if isinstance(result, torch.Tensor):
        return result.resolve_conj().resolve_neg()
    return None if result is None else torch.tensor(result, dtype=torch.float64 if isinstance(result, float) else None)
