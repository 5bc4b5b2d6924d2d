"""What a compiled model holds of its own: the growth of the process over the compile, because OpenVINO does not tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.engines.contract.memory_use import MemoryUse

if TYPE_CHECKING:
    from xrt.engines.toolkit.allocation_tracker import AllocationTracker

__all__ = ["report_memory"]


def report_memory(copied: int, growth: AllocationTracker) -> tuple[MemoryUse, ...]:
    """Return what an executable holds and takes: copies of constants, and what its compile has grown the process by."""
    held = [MemoryUse("copied weights", copied, _COPIED)] if copied else []
    return (*held, MemoryUse("model", growth.nbytes, _MODEL), MemoryUse("workspace", None, _WORKSPACE, per_call=True))


_COPIED = "constants that did not lie in order"
_MODEL = "weights packed for its products and convolutions, constants that it has folded or been handed small, kernels and plans"
_WORKSPACE = "inner values and scratch, which its streams keep from call to call; the library does not tell"
