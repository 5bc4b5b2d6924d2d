"""What holds for the whole process."""

from __future__ import annotations

from xrt.engines import ExecutionOptions
from xrt.engines.contract import registry
from xrt.module.options import validate_budget
from xrt.runtime import set_default_budget

__all__ = ["configure"]


def configure(*, threads: int | None = None, shared_pool: str | None = None) -> None:
    """Set, for this process, the thread budget of modules that name none, and the engine whose executables share one pool.

    ``threads=None`` is the cores that the process may use. With ``shared_pool="ort"`` every session of that engine runs on one
    pool of that size instead of one of its own. ONNX Runtime then refuses, process-wide, all sessions with
    a pool of their own, those of other libraries too; there is no way back, and a module with another budget is refused.

    Modules that exist keep what they have. Raises OptionError for no number of threads, an engine that has no such pool, or
    when a session exists already; UnknownEngine and EngineUnavailable for an engine that cannot be had.
    """
    budget = validate_budget(ExecutionOptions(threads=threads))
    if shared_pool is not None:
        registry.engine_class(shared_pool).share_pool(budget)
    set_default_budget(threads)
