"""What a session holds of its own: the growth of the process over its opening, because ONNX Runtime does not tell."""

from __future__ import annotations

from xrt.engines.contract.memory_use import MemoryUse
from xrt.engines.toolkit.allocation_tracker import AllocationTracker

__all__ = ["AllocationTracker", "report_memory"]


def report_memory(copied: int, mapped: int, growth: AllocationTracker) -> tuple[MemoryUse, ...]:
    """Return what an executable holds and takes: constants in other forms, and what its session has grown the process by."""
    held = [MemoryUse("copied weights", copied, _COPIED)] if copied else []
    held += [MemoryUse("mapped weights", mapped, _MAPPED, shared=True)] if mapped else []
    return (*held, MemoryUse("session", growth.nbytes, _SESSION), MemoryUse("workspace", None, _WORKSPACE, per_call=True))


_COPIED = "constants in another form than the model's: packed to a byte, put in order, or laid out again in a saved session"
_MAPPED = "weights as the library lays them out and packs them, in the file that was loaded"
_SESSION = "weights packed for its products and convolutions, constants that it has folded, kernels and plans"
_WORKSPACE = "inner values and scratch, in an arena that grows to the largest calls; the library does not tell"
