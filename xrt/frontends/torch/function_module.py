"""A Function as a module of PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from xrt.frontends.torch.dtypes import share_array, share_tensor
from xrt.frontends.torch.engines import add_torch_engine, choose_default_engines
from xrt.graph import Function
from xrt.module.module import XRTModule

__all__ = ["FunctionModule"]


class FunctionModule(nn.Module):  # type: ignore[misc]  # PyTorch is not seen by the type checker
    """A Function on a list of engines; its inputs are tensors by position, its outputs tensors.

    The constants are buffers under their names, for ``state_dict``. They are copies: the Function never changes.
    """

    def __init__(self, function: Function, engine: Any = None, **options: Any) -> None:
        super().__init__()
        chosen = engine or choose_default_engines()
        listed = add_torch_engine(chosen, function, is_strict=bool(options.get("strict")))
        self._xrt_module = XRTModule(function, listed, **options)
        for name, constant in function.constants.items():
            *path, last = name.split(".")
            owner: Any = self
            for part in path:
                owner = owner._modules.setdefault(part, nn.Module())
            owner._buffers[last] = share_tensor(constant.array)  # register_buffer refuses names such as "forward"

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return the output, or a tuple of several."""
        results = self._xrt_module(*map(share_array, inputs))
        return tuple(map(share_tensor, results)) if isinstance(results, tuple) else share_tensor(results)
