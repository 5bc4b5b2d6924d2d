"""The load of a lock, repeated by a module: instances with the plans of the lock, under the load of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from xrt.errors import LockError, OptionError
from xrt.module.lockfile import LockedPlacement
from xrt.module.throughput import ModuleBench, RequestPool
from xrt.placement.lockfile import list_machine_mismatches
from xrt.placement.sizes import read_sizes
from xrt.placement.throughput.load_check import LoadCheckResult, check_load
from xrt.placement.throughput.request import Split
from xrt.placement.throughput.result import ServingConfiguration
from xrt.runtime.threads import available_cores

if TYPE_CHECKING:
    from xrt.formats.placement_file import PlacementFile
    from xrt.module.module import XRTModule
    from xrt.placement.result import TuningResult

__all__ = ["check_module_load"]


class _LockedBench(ModuleBench):
    """A bench whose plans are those of a lock, at each size the nearest one."""

    def __init__(self, module: XRTModule, pool: RequestPool, locked: ServingConfiguration, lock: PlacementFile) -> None:
        super().__init__(module, pool, [Split(locked.instances, locked.threads)], locked.sizes or (locked.batch,), 0.0)
        self._lock = LockedPlacement(lock, "that is checked")

    def _place(self, module: XRTModule, threads: int, size: int, values: list[Any]) -> TuningResult:
        automatic, sizes = module._automatic, read_sizes(self._pool.inputs, values)
        build = module._specialize(values, place=partial(self._lock.place_for_load, automatic=automatic, sizes=sizes))
        assert build.tuned is not None  # it has just been placed
        return build.tuned


def check_module_load(
    module: XRTModule, lock: PlacementFile, values: Sequence[Any], limit: float, seconds: float, *, seed: int = 0
) -> LoadCheckResult:
    """Return what comes of repeating the load of a lock here, for at most so many seconds, compiles not counted.

    ``module`` places by measurement, with all threads of the configuration; nothing is measured for a plan, since the lock has
    them. ``values`` are those of a call. On fewer cores than the configuration has threads no load is run.
    Raises LockError where the lock is of another model, or a plan cannot run here.
    """
    assert lock.serving is not None
    locked = ServingConfiguration.from_record(lock.serving)
    wanted, cores = locked.instances * locked.threads, available_cores()
    if cores < wanted:
        why = f"its instances need {wanted} threads, and this process may use {cores}"
        return LoadCheckResult("undecided", limit, locked, note=why)
    try:
        pool = RequestPool(module, values, locked.dim or None, seed)
    except OptionError as error:
        raise LockError(f"the lock's requests cannot be joined: {error}") from error
    bench = _LockedBench(module, pool, locked, lock)
    try:
        differs = list_machine_mismatches(lock, module._engines.context)
        return check_load(bench, locked, limit, seconds, differs=differs)
    finally:
        bench.close()
