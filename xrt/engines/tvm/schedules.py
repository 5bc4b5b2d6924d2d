"""How loops run on a CPU: TVM's own CPU pipeline has no schedules, and leaves one naive thread.

A PrimFunc comes in, as FuseTIR makes it: a row of blocks, each with its own loop nest over intermediate buffers. It goes
out with cheap producers inlined into their consumers, neighbouring loops collapsed where every access stays
contiguous, so that LLVM vectorises the innermost one by itself, and the outermost loop shared between the threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.analysis import estimate_tir_flops
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func
from tvm.target import Target

__all__ = ["Nests"]

Loop: TypeAlias = s_tir.schedule.LoopRV

PARALLEL_WORK = 16384
"""Loop iterations from which on waking a second thread (some 5 us) pays."""

INLINE_GROWTH = 2.0
"""How much more arithmetic inlining may cost than storing every intermediate result would."""


class Nests(dlight.ScheduleRule):  # type: ignore[misc]  # TVM has no types
    """Inline, collapse, vectorise by contiguity, and run the outermost loop on every thread."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        """Return the scheduled function, None for one that is not a row of plain blocks."""
        schedule = s_tir.Schedule(func)
        blocks = normalize_prim_func(schedule)
        if blocks is None:
            return None
        for block in _inlined(schedule, blocks):
            self._nest(schedule, block)
        return schedule

    def _nest(self, schedule: s_tir.Schedule, block: SBlockInfo) -> None:
        kinds = block.dom_kind()
        spatial = kinds.rstrip("R")
        if not kinds or set(spatial) - {"S"}:
            return
        groups = _collapsed(schedule, block, len(spatial))
        if groups and self.threads > 1 and _work(block) >= PARALLEL_WORK:
            schedule.parallel(groups[0])
        if len(spatial) < len(kinds) and len(groups) > 1:
            _innermost(schedule, block, groups[-1], block.iters[len(spatial)].loop_rv)


def _work(block: SBlockInfo) -> int:
    work = 1
    for extent in block.dom():
        work *= extent if isinstance(extent, int) else 1
    return work


def _inlined(schedule: s_tir.Schedule, blocks: Sequence[SBlockInfo]) -> list[SBlockInfo]:
    """Inline every elementwise producer that does not multiply the arithmetic, and return the blocks that remain."""
    remaining = list(blocks)
    limit = INLINE_GROWTH * estimate_tir_flops(schedule.mod) + PARALLEL_WORK
    for block in blocks[:-1]:
        if not block.is_injective():
            continue
        trial = schedule.copy()
        try:
            trial.compute_inline(trial.get_sblock(block.name))
        except s_tir.ScheduleError:
            continue
        if estimate_tir_flops(trial.mod) <= limit:
            schedule.compute_inline(block.block_rv)
            remaining.remove(block)
    return remaining


def _collapsed(schedule: s_tir.Schedule, block: SBlockInfo, count: int) -> list[Loop]:
    """Fuse each run of the first ``count`` loops that every access walks as one, and return the loops that result."""
    stmt = schedule.get(block.block_rv)
    accesses = [*stmt.reads, *stmt.writes]
    runs: list[list[Any]] = []
    for item in block.iters[:count]:
        if runs and all(_walks_as_one(access, runs[-1][-1], item) for access in accesses):
            runs[-1].append(item)
        else:
            runs.append([item])
    return [schedule.fuse(*(item.loop_rv for item in run)) if len(run) > 1 else run[0].loop_rv for run in runs]


def _walks_as_one(access: Any, outer: Any, inner: Any) -> bool:
    """Whether the access does not see the two loop variables, or sees them as neighbouring, whole dimensions."""
    starts = [dim.min for dim in access.region]
    if inner.dom == 1 or outer.dom == 1:
        return True
    seen = [any(v.same_as(i.var) for s in starts for v in tirx.analysis.undefined_vars(s)) for i in (outer, inner)]
    if not any(seen):
        return True
    for k in range(len(starts) - 1):
        if starts[k].same_as(outer.var) and starts[k + 1].same_as(inner.var):
            return bool(access.source.shape[k + 1] == inner.dom)
    return False


def _innermost(schedule: s_tir.Schedule, block: SBlockInfo, spatial: Loop, reduction: Loop) -> None:
    """Bring a spatial loop inside the reduction, where consecutive iterations touch consecutive elements."""
    loops = schedule.get_loops(block.block_rv)
    rest = list(loops[loops.index(reduction) :]) if reduction in loops else []
    schedule.decompose_reduction(block.block_rv, reduction)
    schedule.reorder(*rest, spatial)
