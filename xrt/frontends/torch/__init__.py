"""PyTorch: a module goes in with example inputs, and a Function comes out that computes the same and shares its parameters.

`torch.export` captures the module, and rules of XRT's own write each operator in operators of ONNX. An operator without a rule
stays in the Function as an opaque node of the domain ``aten``, so that no module is refused. Nothing is downloaded or written.
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
    """Return a module of PyTorch as a Function, captured with example inputs.

    ``dynamic_shapes`` is that of ``torch.export.export``; a text in it is a dimension of that name. Every tensor among the inputs
    is an input of the Function, other values are fixed. Parameters are constants that share the module's memory: change no
    parameter as long as the Function is used. Checks of values and indices (``torch._check``) are not kept.

    A buffer that the module updates is an input with an alias, after the others.
    Nodes are named after the modules that they belong to, so that a pin can be ``"name:encoder.layer.3/*=ort"``.

    The module must not run elsewhere during its capture. Raises ModelError where PyTorch is not installed or cannot export the
    module, and where the module's code restricts a size that is to be free, other than by the range of a `torch.export.Dim`.
    """
    try:
        from xrt.frontends.torch.capture import capture
    except ModuleNotFoundError as error:
        raise ModelError(
            f"xrt.from_torch needs PyTorch, which cannot be imported ({error}): pip install 'xrt-engine[torch]'"
        ) from error

    return capture(module, args, kwargs, dynamic_shapes).function


def to_torch(function: Function | XRTModule, engine: Any = None, **options: Any) -> torch.nn.Module:
    """Return a Function, or that of an `XRTModule`, as a `torch.nn.Module` on engines, which takes and returns tensors.

    Without ``engine`` it is ONNX Runtime where that is installed; the options are those of `XRTModule`, and an XRTModule has its
    own. Constants are buffers of the module under their names, in the Function's memory: write to none. No gradient passes
    through it. `torch.export` and `torch.compile` capture it; `from_torch` and the backend ``xrt`` find its nodes again.
    Raises ModelError where PyTorch is not installed, and for a module without a Function.
    """
    try:
        from xrt.frontends.torch.function_module import FunctionModule
    except ModuleNotFoundError as error:
        raise ModelError(
            f"xrt.to_torch needs PyTorch, which cannot be imported ({error}): pip install 'xrt-engine[torch]'"
        ) from error
    return FunctionModule(function, engine, **options)
