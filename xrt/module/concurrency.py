"""Whether calls of one module compute at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xrt.module.module import XRTModule

__all__ = ["count_modules"]


def count_modules(module: XRTModule, calls: int) -> int:
    """Return how many modules that many calls need to compute at the same time, by what the module has compiled.

    With several threads each call has a module: callers of one executable would share its threads. With one thread a call
    computes in the thread that makes it, and one module serves all, unless an executable bounds how many run.
    """
    if module.threads > 1:
        return calls
    found = (build.concurrent_calls for build in module._specializations.to_dict().values())
    return -(-calls // min((bound for bound in found if bound is not None), default=calls))
