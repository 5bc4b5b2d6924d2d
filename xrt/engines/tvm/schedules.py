"""How loops run on a CPU: TVM's own CPU pipeline has no schedules, and leaves one naive thread.

A PrimFunc comes in, as FuseTIR makes it: a row of blocks, each with its own loop nest over intermediate buffers. It goes
out with elementwise producers inlined into their consumers, and each remaining nest arranged by what it is (`nests`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.analysis import estimate_tir_flops
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func
from tvm.target import Target
from tvm.target.codegen import llvm_get_vector_width

from xrt.engines.tvm.nests import Machine, Nest

__all__ = ["CpuSchedule"]

INLINE_GROWTH = 2.0
"""How much more arithmetic inlining may cost than storing every intermediate result would."""
ALWAYS_INLINE = 16384
"""Operations in all up to which nobody counts."""


class CpuSchedule(dlight.ScheduleRule):  # type: ignore[misc]  # TVM has no types
    """Inlines what is elementwise, and arranges the remaining loop nests for vectors and threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        """Return the scheduled function, None for one that is not a row of plain blocks."""
        schedule = s_tir.Schedule(func)
        blocks = normalize_prim_func(schedule)
        if blocks is None:
            return None
        schedule, remaining = _inlined(schedule, blocks)
        machine = Machine(self.threads, llvm_get_vector_width(target))
        for block in remaining:
            schedule = _arranged(schedule, block, machine)
        return schedule


def _arranged(schedule: s_tir.Schedule, block: SBlockInfo, machine: Machine) -> s_tir.Schedule:
    """Return the schedule with the block's loops arranged by the first way that fits and that TVM can follow."""
    nest = Nest(schedule, block, machine)
    if not nest.is_plain:
        return schedule
    if nest.is_large_reduction:
        for way in (Nest.tile, Nest.split_rows):
            trial = schedule.copy()
            with suppress(s_tir.ScheduleError):
                if way(Nest(trial, block, machine)):
                    return trial
    nest.walk()
    return schedule


def _inlined(schedule: s_tir.Schedule, blocks: Sequence[SBlockInfo]) -> tuple[s_tir.Schedule, list[SBlockInfo]]:
    """Inline the elementwise producers, but for those that would multiply the arithmetic; return the blocks that remain.

    What is read twice is computed twice when it is inlined, so a chain of squares would grow without bound.
    """
    limit = INLINE_GROWTH * estimate_tir_flops(schedule.mod) + ALWAYS_INLINE
    trial = schedule.copy()
    gone: list[SBlockInfo] = []
    for block in blocks[:-1]:
        if not _inline(trial, block, blocks):
            continue
        if estimate_tir_flops(trial.mod) <= limit:
            gone.append(block)
        else:
            trial = schedule.copy()
            for earlier in gone:
                trial.compute_inline(earlier.block_rv)
    return trial, [block for block in blocks if block not in gone]


def _inline(schedule: s_tir.Schedule, block: SBlockInfo, blocks: Sequence[SBlockInfo]) -> bool:
    """Inline the block where it is elementwise and no reduction would compute it again and again; return whether it was."""
    if not block.is_injective():
        return False
    readers = {schedule.get(reader).name_hint for reader in schedule.get_consumers(block.block_rv)}
    if any(r.name in readers and not r.is_injective() and _size(r) > _size(block) for r in blocks):
        return False
    try:
        schedule.compute_inline(block.block_rv)
    except s_tir.ScheduleError:
        return False
    return True


def _size(block: SBlockInfo) -> int:
    size = 1
    for extent in block.dom():
        size *= extent if isinstance(extent, int) else 1
    return size
