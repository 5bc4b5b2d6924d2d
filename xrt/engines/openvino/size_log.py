"""Sizes that an executable with symbolic dims has met: each new one leaves kernels on the heap, and holes between them.

OpenVINO and its oneDNN make a kernel when a size is met, and keep it. It is small and is put behind the arrays of its call. Where
sizes grow, the next arrays fit into no hole that the last ones have left: the heap then grows by the arrays of every call.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Hashable

__all__ = ["SizeLog", "limit_kernels"]

KERNELS_KEPT = (512, 2048)
"""Kernels for sizes of symbolic dims that an executable keeps, at least and at most, some 25 kB each; the library's own limit is
5,000, and oneDNN keeps 1,024 for the process."""
SIZES_KEPT = 128
"""Sizes whose kernels are kept where every node makes one for each size; few nodes do."""
TRIM_EVERY = 64
"""New sizes after which the heap gives back its holes: 0.5 to 1.4 ms of processor time, as much as two calls of a new size."""
MET_KEPT = 2048
"""Sizes that are known as met; beyond that all count as new once more."""


def limit_kernels(nodes: int) -> int:
    """Return how many kernels an executable of so many nodes keeps for the sizes that it meets."""
    least, most = KERNELS_KEPT
    return min(max(SIZES_KEPT * nodes, least), most)


class SizeLog:
    """Notes sizes, and has the heap give memory back after every so many new ones. Safe from several threads."""

    def __init__(self, trim: Callable[[], object] | None = None) -> None:
        self._met: set[Hashable] = set()
        self._trim = trim or trim_in_background

    def note(self, sizes: Hashable) -> None:
        """Note the sizes of a call that has run."""
        if sizes in self._met:
            return
        if len(self._met) >= MET_KEPT:
            self._met.clear()
        self._met.add(sizes)
        if len(self._met) % TRIM_EVERY == 0:
            self._trim()


def trim_in_background() -> None:
    """Have the C library give the pages of holes in its heap back to the system, while the caller goes on.

    What is in use stays as it is. Nothing happens where the C library has no such function (others than glibc).
    """
    if _malloc_trim is None:
        return
    try:
        threading.Thread(target=_malloc_trim, args=(0,), name="xrt-openvino-trim", daemon=True).start()
    except RuntimeError:  # the interpreter ends, or the system has no thread left: the holes stay
        return


def _find_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return None


_malloc_trim = _find_trim()
