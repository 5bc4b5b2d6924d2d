"""PyTorch front end: convert modules to Functions and back, and compile them.

`torch.export` captures a module, and lowering rules translate each operator to ONNX operators. An operator without a rule
becomes an opaque node of the domain ``aten``, so that every exportable module can be captured. Nothing is downloaded or
written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from xrt.errors import ModelError

if TYPE_CHECKING:
    import torch

    from xrt.graph import Function
    from xrt.module.module import XRTModule

__all__ = ["from_torch", "to_torch"]


def from_torch(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None, dynamic_shapes: Any = None
) -> Function:
    """Capture a PyTorch module with example inputs as a Function.

    ``dynamic_shapes`` is as in ``torch.export.export``; a string names a dynamic dim. Each input tensor becomes an input of the
    Function, other values are fixed. Parameters become constants that share the module's memory: do not change them while the
    Function is in use. Checks of values and indices (``torch._check``) are dropped.

    A buffer that the module updates becomes an additional input with an alias. Nodes are named after their submodules, for pins
    such as ``"name:encoder.layer.3/*=ort"``.

    Do not run the module in another thread meanwhile. Raises ModelError if PyTorch is missing or cannot export the module, and
    if the code of the module constrains a dynamic size beyond the range of its `torch.export.Dim`.
    """
    try:
        from xrt.frontends.torch.capture import capture
    except ModuleNotFoundError as error:
        raise ModelError(
            f"xrt.from_torch needs PyTorch, which cannot be imported ({error}): pip install 'xrt-engine[torch]'"
        ) from error

    return capture(module, args, kwargs, dynamic_shapes).function


def to_torch(function: Function | XRTModule, engine: Any = None, **options: Any) -> torch.nn.Module:
    """Wrap a Function or an `XRTModule` as a `torch.nn.Module` that takes and returns tensors.

    The default engine is ONNX Runtime if installed; the options are those of `XRTModule`, and not allowed for an XRTModule.
    Constants become buffers that share the Function's memory: do not write to them. Gradients do not pass through.
    `torch.export` and `torch.compile` can capture it; `from_torch` and the backend ``xrt`` restore its nodes. Raises ModelError
    if PyTorch is missing or the module has no Function.
    """
    try:
        from xrt.frontends.torch.function_module import FunctionModule
    except ModuleNotFoundError as error:
        raise ModelError(
            f"xrt.to_torch needs PyTorch, which cannot be imported ({error}): pip install 'xrt-engine[torch]'"
        ) from error
    return FunctionModule(function, engine, **options)
