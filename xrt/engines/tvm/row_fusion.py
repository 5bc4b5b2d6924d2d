"""Several nests that go over the same rows, as softmax and normalisation do: each row goes through all of them at once.

What one nest hands to the next is then as long as a row, and stays in the cache that is next to the processor.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from tvm import s_tir
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.tirx import ForKind

from xrt.engines.tvm.loop_schedules import PARALLEL_WORK, CpuModel, LoopNest, vectorize

__all__ = ["fuse_rows", "move_block"]

LONGEST = 65536
"""Elements of a row up to which what is kept of one fits in a cache near the processor (256 KiB of float32)."""


def fuse_rows(
    schedule: s_tir.Schedule, blocks: Sequence[SBlockInfo], movable: Collection[str], machine: CpuModel
) -> s_tir.Schedule | None:
    """Return the schedule with the blocks under one loop over the rows that they share, None where they share none.

    Each of their reductions must give one number per row. ``movable`` names the blocks that may be computed element by
    element where they are read.
    """
    axes = _shared_axes(schedule, blocks, machine)
    if not axes:
        return None
    trial = schedule.copy()
    try:
        _arrange(trial, blocks, movable, machine, axes)
    except s_tir.ScheduleError:
        return None
    return trial


def move_block(schedule: s_tir.Schedule, block: SBlockInfo) -> bool:
    """Compute an element just before its readers need it, where they share a loop; return whether they do.

    A buffer of one element is a register for LLVM.
    """
    loops = min((schedule.get_loops(reader) for reader in schedule.get_consumers(block.block_rv)), key=len)
    while loops and schedule.get(loops[-1]).kind == ForKind.VECTORIZED:
        loops.pop()
    try:
        schedule.compute_at(block.block_rv, loops[-1])
    except (IndexError, s_tir.ScheduleError):
        return False
    return True


def _shared_axes(schedule: s_tir.Schedule, blocks: Sequence[SBlockInfo], machine: CpuModel) -> int:
    """Return how many leading axes make the rows, 0 where there are none worth walking together."""
    nests = [LoopNest(schedule, block, machine) for block in blocks]
    if not all(nest.is_plain for nest in nests) or "R" not in "".join(nest.kinds for nest in nests[:-1]):
        return 0
    prefix = _common_prefix([nest.extents[: nest.spatial] for nest in nests])
    rows, longest = math.prod(nests[-1].extents[:prefix]), max(nest.work for nest in nests)
    single = all(math.prod(n.extents[prefix : n.spatial]) == 1 for n in nests if n.spatial < len(n.kinds))
    fits = rows >= machine.threads and longest >= PARALLEL_WORK and longest <= LONGEST * rows
    return prefix if single and fits and blocks[-1].is_injective() else 0


def _common_prefix(shapes: Sequence[Sequence[int]]) -> int:
    length = 0
    for extents in zip(*shapes, strict=False):
        if len(set(extents)) > 1:
            break
        length += 1
    return length


def _arrange(
    schedule: s_tir.Schedule, blocks: Sequence[SBlockInfo], movable: Collection[str], machine: CpuModel, axes: int
) -> None:
    sums = {block.name: LoopNest(schedule, block, machine).side_by_side() for block in blocks if not block.is_injective()}
    loops = schedule.get_loops(blocks[-1].block_rv)
    row = schedule.fuse(*loops[:axes]) if axes > 1 else loops[0]
    _flatten(schedule, blocks[-1].block_rv)
    for block in reversed(blocks[:-1]):
        if block.name not in movable or not move_block(schedule, block):
            _into_row(schedule, block, sums.get(block.name), row)
    if machine.threads > 1:
        schedule.parallel(row)
    reduced = [(partial, vectorize(schedule, partial)) for partial in sums.values() if partial is not None]
    for partial, loop in reduced:  # last: of a reduction in two blocks TVM no longer knows that it is one
        schedule.decompose_reduction(partial, loop)


def _into_row(schedule: s_tir.Schedule, block: SBlockInfo, partial: Any, row: Any) -> None:
    """Compute the part of a block that belongs to a row inside of the loop over rows."""
    schedule.compute_at(block.block_rv, row)
    if partial is not None:
        schedule.compute_at(partial, row)
    elif block.is_injective():
        _flatten(schedule, block.block_rv)


def _flatten(schedule: s_tir.Schedule, block: Any) -> None:
    """Make one loop, which LLVM vectorises, of those inside a row."""
    _, *inner = schedule.get_loops(block)
    if len(inner) > 1:
        schedule.fuse(*inner)
