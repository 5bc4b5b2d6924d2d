"""What a compiled model holds of its own: the growth of the process over the compile, because OpenVINO does not tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xrt.engines.contract.memory_use import MemoryUse
from xrt.graph.memory_map import find_file_offset

if TYPE_CHECKING:
    from xrt.engines.toolkit.allocation_tracker import AllocationTracker

__all__ = ["report_memory"]


def report_memory(copied: int, growth: AllocationTracker, blob: memoryview | None = None) -> tuple[MemoryUse, ...]:
    """Return what an executable holds and takes: copies of constants, and what its compile has grown the process by.

    ``blob`` is what it was loaded from, which the library reads where it is.
    """
    held = [MemoryUse("copied weights", copied, _COPIED)] if copied else []
    if blob is not None:
        held.append(MemoryUse("blob", len(blob), _BLOB, shared=find_file_offset(np.frombuffer(blob, np.uint8)) is not None))
    return (*held, MemoryUse("model", growth.nbytes, _MODEL), MemoryUse("workspace", None, _WORKSPACE, per_call=True))


_COPIED = "constants that did not lie in order"
_BLOB = "the graph and the constants as OpenVINO exports them, which it reads where they were loaded"
_MODEL = "weights packed for its products and convolutions, constants that it has folded or been handed small, kernels and plans"
_WORKSPACE = "inner values and scratch, which its streams keep from call to call; the library does not tell"
