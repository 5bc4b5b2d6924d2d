"""What holds for the whole process."""

from __future__ import annotations

from xrt.engines import ExecutionOptions
from xrt.engines.contract import registry
from xrt.module.options import validate_budget
from xrt.runtime import set_default_budget

__all__ = ["configure"]


def configure(*, threads: int | None = None, shared_ort_pool: bool = False) -> None:
    """Set, for this process, the thread budget of modules that name none, and whether ort's sessions share one pool.

    ``threads=None`` is the cores that the process may use. With ``shared_ort_pool`` every session of the ``ort`` engine runs
    on one pool of that size instead of one of its own. ONNX Runtime then refuses, process-wide, all sessions with
    a pool of their own, those of other libraries too; there is no way back, and a module with another budget is refused.

    Modules that exist keep what they have. Raises OptionError for no number of threads, or when a session exists already;
    EngineUnavailable where a shared pool is asked for and ONNX Runtime is not installed.
    """
    budget = validate_budget(ExecutionOptions(threads=threads))
    if shared_ort_pool:
        registry.engine_class("ort").share_pool(budget)
    set_default_budget(threads)
