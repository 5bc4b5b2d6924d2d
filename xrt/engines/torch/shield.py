"""What keeps the caller's modes of torch out of a run: automatic casts, a default device, and modes of functions."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch

__all__ = ["shield"]


def shield() -> AbstractContextManager[Any]:
    """Return a context in which torch computes on the CPU and in the types that a kernel says, whatever the caller has set.

    It holds for the calling thread, and does nothing where the caller has set nothing.
    """
    casts = torch.is_autocast_enabled("cpu")
    if not casts and not torch._C._len_torch_function_stack():
        return _NOTHING
    stack = ExitStack()
    stack.enter_context(torch._C.DisableTorchFunction())  # a default device is such a mode
    if casts:
        stack.enter_context(torch.autocast("cpu", enabled=False))
    return stack


_NOTHING = nullcontext()
