"""How loops run on a CPU: TVM's own CPU pipeline has no schedules, and leaves one naive thread.

A PrimFunc comes in, as FuseTIR makes it: a row of blocks, each with its own loop nest over intermediate buffers. It goes
out with elementwise producers inlined into their consumers, or computed into a register where several places read them,
and the remaining nests under one loop over the rows that they share (`rows`), or each arranged by what it is (`nests`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func
from tvm.target import Target
from tvm.target.codegen import llvm_get_vector_width

from xrt.engines.tvm.expressions import differences, loads, operations
from xrt.engines.tvm.loop_schedules import CpuModel, LoopNest
from xrt.engines.tvm.row_fusion import fuse_rows, move_block

__all__ = ["CpuSchedule"]

ALWAYS_INLINE = 16384
"""Operations in all that may be computed again: a nest of its own would cost more."""
REPEATED = 8
"""Operations that an expression may repeat at one inlining: less than it costs to find another way."""
LARGEST = 128
"""Operations in an expression that repeats any: TVM's simplifier takes more than linear time."""


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
        machine = CpuModel(self.threads, llvm_get_vector_width(target))
        remaining = _inlined(schedule, blocks)
        movable = {block.name for block in remaining[:-1] if _can_move(schedule, block, remaining)}
        together = fuse_rows(schedule, remaining, movable, machine)
        return _one_by_one(schedule, remaining, movable, machine) if together is None else together


def _one_by_one(
    schedule: s_tir.Schedule, blocks: Sequence[SBlockInfo], movable: Collection[str], machine: CpuModel
) -> s_tir.Schedule:
    """Return the schedule with each nest arranged on its own, those that move last: where to, their readers decide."""
    for block in blocks:
        if block.name not in movable:
            schedule = _arranged(schedule, block, machine)
    for block in reversed(blocks):
        if block.name in movable and not move_block(schedule, block):
            schedule = _arranged(schedule, block, machine)
    return schedule


def _arranged(schedule: s_tir.Schedule, block: SBlockInfo, machine: CpuModel) -> s_tir.Schedule:
    """Return the schedule with the block's loops arranged by the first way that fits and that TVM can follow."""
    nest = LoopNest(schedule, block, machine)
    if not nest.is_plain:
        nest.share_open_rows()
        return schedule
    if nest.is_large_reduction:
        for way in (LoopNest.tile, LoopNest.split_rows):
            trial = schedule.copy()
            with suppress(s_tir.ScheduleError):
                if way(LoopNest(trial, block, machine)):
                    return trial
    nest.walk()
    return schedule


def _inlined(schedule: s_tir.Schedule, blocks: Sequence[SBlockInfo]) -> list[SBlockInfo]:
    """Inline the elementwise producers, but for those that would multiply the expressions; return the blocks that remain.

    What is read in three places is written out in three, so that a chain of maxima would grow without bound.
    """
    budget = ALWAYS_INLINE
    remaining = list(blocks)
    for block in blocks[:-1]:
        if not block.is_injective():
            continue
        reading = _Reading.of(schedule, block, remaining)
        if reading.is_worth_inlining(budget) and _inline(schedule, block):
            budget -= max(reading.extra, 0)
            remaining.remove(block)
    return remaining


@dataclass(frozen=True, slots=True)
class _Reading:
    """How the result of an elementwise block is read."""

    cost: int
    """The operations of its expression."""
    extra: int
    """The operations in all that inlining adds: each reader computes it, once, however often its expression repeats it."""
    repeated: int
    """The operations that inlining writes out again."""
    largest: int
    """The operations in the largest expression that inlining leaves."""
    can_move: bool
    """Whether all readers walk the same elements in the same order, so that it can stay in a register instead."""
    is_reduced: bool
    """Whether a reader would compute an element again and again."""
    may_cancel: bool
    """Whether one expression would then subtract, and read some number twice. TVM simplifies what it inlines as if numbers were
    exact: ``(x + c) - c`` becomes ``x``, where rounding, or an infinity, makes something else of it."""

    @classmethod
    def of(cls, schedule: s_tir.Schedule, block: SBlockInfo, blocks: Sequence[SBlockInfo]) -> _Reading:
        names = {schedule.get(reader).name_hint for reader in schedule.get_consumers(block.block_rv)}
        readers = [other for other in blocks if other.name in names]
        buffer, cost = schedule.get(block.block_rv).writes[0].source, operations(schedule.get(block.block_rv).body)
        bodies = [schedule.get(reader.block_rv).body for reader in readers]
        times = [loads(body, buffer) for body in bodies]
        return cls(
            cost=cost,
            extra=cost * (sum(map(_size, readers)) - _size(block)),
            repeated=cost * (sum(times) - 1),
            largest=max((operations(b) + n * cost for b, n in zip(bodies, times, strict=True)), default=0),
            can_move=all(_walks_alike(schedule, block, reader) for reader in readers),
            is_reduced=any(not r.is_injective() and _size(r) > _size(block) for r in readers),
            may_cancel=any(_may_cancel(schedule.get(block.block_rv), schedule.get(r.block_rv)) for r in readers),
        )

    def is_worth_inlining(self, budget: int) -> bool:
        """Whether to inline it, when that many operations may still be computed again."""
        if self.may_cancel or self.is_reduced or (self.cost > REPEATED and self.extra > max(budget, 0)):
            return False
        return self.repeated <= REPEATED or (self.largest <= LARGEST and not self.can_move)


def _may_cancel(block: Any, reader: Any) -> bool:
    buffer = block.writes[0].source
    if not differences(block.body) + differences(reader.body):
        return False
    times = loads(reader.body, buffer)
    sources = [access.source for access in (*block.reads, *reader.reads) if not access.source.same_as(buffer)]
    return any(times * loads(block.body, source) + loads(reader.body, source) > 1 for source in sources)


def _walks_alike(schedule: s_tir.Schedule, block: SBlockInfo, reader: SBlockInfo) -> bool:
    """Whether the reader is elementwise too, and reads at each place what the block writes there."""
    written = schedule.get(block.block_rv).writes[0]
    read = [access for access in schedule.get(reader.block_rv).reads if access.source.same_as(written.source)]
    return (
        reader.is_injective()
        and reader.dom() == block.dom()
        and _is_whole(written, block)
        and all(_is_whole(access, reader) for access in read)
    )


def _is_whole(access: Any, block: SBlockInfo) -> bool:
    """Whether the places of the access are the block's loop variables, one by one."""
    return len(access.region) == len(block.iters) and all(
        dim.min.same_as(item.var) for dim, item in zip(access.region, block.iters, strict=True)
    )


def _inline(schedule: s_tir.Schedule, block: SBlockInfo) -> bool:
    """Inline the block into its readers, unless TVM cannot; return whether it was."""
    try:
        schedule.compute_inline(block.block_rv)
    except s_tir.ScheduleError:
        return False
    return True


def _can_move(schedule: s_tir.Schedule, block: SBlockInfo, blocks: Sequence[SBlockInfo]) -> bool:
    """Whether the block may be computed element by element where it is read."""
    return block.is_injective() and bool(schedule.get_consumers(block.block_rv)) and _Reading.of(schedule, block, blocks).can_move


def _size(block: SBlockInfo) -> int:
    size = 1
    for extent in block.dom():
        size *= extent if isinstance(extent, int) else 1
    return size
