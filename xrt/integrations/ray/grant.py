"""What Ray grants to the process of an actor or a task."""

from __future__ import annotations

import sys
from typing import Any

from xrt.errors import OptionError

__all__ = ["count_granted_threads", "import_ray"]


def import_ray() -> Any:
    """Return the package of Ray; raises OptionError, with the line for pip, where it is missing."""
    try:
        import ray
    except ImportError as error:
        raise OptionError(f"xrt.ray needs Ray, which cannot be imported ({error}): pip install 'xrt-engine[ray]'") from error
    return ray


def count_granted_threads() -> int | None:
    """Return the processors of this actor or task as a thread budget, at least 1; None in another process.

    Ray sets no affinity. Of the engines' thread pools it limits those that read ``OMP_NUM_THREADS``.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():  # an actor's process has imported it
        return None
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:
        return None
    return max(1, int(context.get_assigned_resources().get("CPU", 0)))
