"""One loop nest, arranged for a CPU by what it is: elementwise, a reduction with reuse, a reduction along rows, or another.

Each arrangement leaves one outermost loop, which the threads share, and innermost loops over consecutive elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo

from xrt.engines.tvm.expressions import is_arithmetic, loads, operations

__all__ = ["PARALLEL_WORK", "CpuModel", "LoopNest", "vectorize"]

Loop: TypeAlias = "s_tir.schedule.LoopRV"

PARALLEL_WORK = 16384
"""Loop iterations from which on waking a second thread (some 5 us) pays, and from which on a nest is worth arranging."""

LONG = 16
"""Operations in a row of which LLVM no longer interleaves several."""


@dataclass(frozen=True, slots=True)
class CpuModel:
    """What the arrangements have to know of the processor."""

    threads: int
    vector_bits: int

    def lanes(self, bits: int) -> int:
        """Return how many elements of that width a vector holds."""
        return max(self.vector_bits // bits, 1)

    @property
    def accumulators(self) -> int:
        """How many vector registers a nest may keep sums in: three quarters of them."""
        return 24 if self.vector_bits >= 512 else 12


class LoopNest:
    """A block of a PrimFunc under the loops that are its own: first those over its result, then those that it reduces."""

    def __init__(self, schedule: s_tir.Schedule, block: SBlockInfo, machine: CpuModel) -> None:
        self.schedule = schedule
        self.block = block.block_rv
        self.machine = machine
        self.kinds = block.dom_kind()
        self.extents = block.dom()
        self.variables = [item.var for item in block.iters]
        self.spatial = len(self.kinds.rstrip("R"))

    @property
    def is_plain(self) -> bool:
        """Whether the loops are of known extents, those over the result first."""
        return bool(self.spatial) and set(self.kinds[: self.spatial]) == {"S"} and all(isinstance(e, int) for e in self.extents)

    def share_open_rows(self) -> None:
        """Share the outermost loop where extents of the result are symbolic dims; LLVM arranges what is inside."""
        if self.machine.threads == 1 or not self.spatial or set(self.kinds[: self.spatial]) != {"S"}:
            return
        pairs = zip(self.schedule.get_loops(self.block), self.extents[: self.spatial], strict=False)
        if (row := next((loop for loop, extent in pairs if not isinstance(extent, int) or extent > 1), None)) is not None:
            self.schedule.parallel(row)

    @property
    def is_large_reduction(self) -> bool:
        return self.spatial < len(self.kinds) and self.work >= PARALLEL_WORK

    def walk(self) -> None:
        """Collapse what is walked as one, go across in squares, and share the outermost loop."""
        runs = self._runs()
        loops = self._collapse(runs)
        if self.spatial < len(self.kinds):
            self._share(loops[0])
        else:
            self._share(self._several_vectors(loops[0]) if len(runs) == 1 else self._turn(runs, loops))

    @property
    def work(self) -> int:
        work = 1
        for extent in self.extents:
            work *= extent
        return work

    def _share(self, outermost: Loop) -> None:
        if self.machine.threads > 1 and self.work >= PARALLEL_WORK:
            self.schedule.parallel(outermost)

    # ------------------------------------------------------------------ elementwise

    def _runs(self) -> list[list[int]]:
        """Return the spatial loops in runs that every access walks as one."""
        stmt = self.schedule.get(self.block)
        accesses = [*stmt.reads, *stmt.writes]
        runs = [[0]]
        for index in range(1, self.spatial):
            if all(self._walks_as_one(access, runs[-1][-1], index) for access in accesses):
                runs[-1].append(index)
            else:
                runs.append([index])
        return runs

    def _collapse(self, runs: list[list[int]]) -> list[Loop]:
        """Fuse each run, so that LLVM can vectorise the last of them."""
        loops = self.schedule.get_loops(self.block)
        return [self.schedule.fuse(*(loops[i] for i in run)) if len(run) > 1 else loops[run[0]] for run in runs]

    def _several_vectors(self, loop: Loop) -> Loop:
        """Compute several vectors of a long expression side by side, if it is one of plain arithmetic; return the outer loop.

        Each of its operations waits for the one before. A processor looks some hundred operations ahead, and of 50 in a row
        finds too few to do at once; LLVM interleaves short loops only.
        """
        body = self.schedule.get(self.block).body
        if operations(body) < LONG or not is_arithmetic(body):
            return loop
        vectors = self.machine.accumulators // (3 if loads(body) == 1 else 6)
        wide = self.machine.lanes(self._widest)
        lanes = _divisor(self.work, vectors * wide)
        if lanes < 2 * wide:
            return loop
        outer, lane = self.schedule.split(loop, [None, lanes])
        self.schedule.vectorize(lane)
        return outer

    def _turn(self, runs: list[list[int]], loops: list[Loop]) -> Loop:
        """Walk in squares of a cache line where something is read across the order of writing; return the outermost loop.

        Vectors go along what is read, one write per element: measured, that is twice as quick as the other way round.
        """
        across = self._read_across(runs)
        if across is None or self.work < PARALLEL_WORK:
            return loops[0]
        schedule, (*others, last) = self.schedule, loops
        others[across], high = schedule.split(others[across], [None, self._tile_side(runs[across])])
        column, wide = schedule.split(last, [None, self._tile_side(runs[-1])])
        schedule.reorder(*others, column, wide, high)
        schedule.vectorize(high)
        return schedule.fuse(*others) if len(others) > 1 else others[0]

    def _read_across(self, runs: list[list[int]]) -> int | None:
        """Return the run whose neighbours are read from consecutive elements, where that is not the last one.

        What does not depend on the last run at all, a number per row, is read once per row and no reason to turn.
        """
        last = [self.variables[index] for index in runs[-1]]
        for read in self.schedule.get(self.block).reads:
            if not any(_reads(dim, variable) for dim in read.region for variable in last):
                continue
            for place, run in enumerate(runs[:-1]):
                if _is_consecutive(read, self.variables[run[-1]]) and self.extents[run[-1]] > 1:
                    return place
        return None

    def _tile_side(self, run: list[int]) -> int:
        length = 1
        for index in run:
            length *= self.extents[index]
        return _divisor(length, 8)

    def _walks_as_one(self, access: Any, outer: int, inner: int) -> bool:
        """Whether the access sees neither loop, or sees them as neighbouring dimensions of which the inner is whole."""
        if 1 in (self.extents[outer], self.extents[inner]):
            return True
        region, pair = access.region, (self.variables[outer], self.variables[inner])
        if not any(_reads(dim, variable) for dim in region for variable in pair):
            return True
        return any(
            region[k].min.same_as(pair[0])
            and region[k + 1].min.same_as(pair[1])
            and access.source.shape[k + 1] == self.extents[inner]
            for k in range(len(region) - 1)
        )

    # ------------------------------------------------------------------ sums kept in registers

    def tile(self) -> bool:
        """Keep a tile of the result in registers: some vectors of its last axis, times some of an axis that reuses them.

        Matrix products reuse across rows, convolutions across output channels. Without such an axis it is still worth it
        where the vectors are read from consecutive elements, as in a sum over the first axis. Return whether it fits.
        """
        last = self.spatial - 1
        reads = [read for read in self.schedule.get(self.block).reads if _runs_along(read, self.variables[last])]
        reuse = self._reused(reads)
        if not reads or (reuse is None and any(_runs_along(r, v) for r in reads for v in self.variables[self.spatial :])):
            return False
        lanes = _divisor(self.extents[last], self.machine.lanes(self._bits))
        vectors = _divisor(self.extents[last] // lanes, 2 if reuse is not None else 4)
        rows = _divisor(self.extents[reuse], min(8, self.machine.accumulators // vectors)) if reuse is not None else 1
        self._reorder_tile(reuse, rows, vectors, lanes)
        return True

    def _reused(self, reads: list[Any]) -> int | None:
        """Return the innermost axis of the result that none of those reads depends on."""
        for axis in range(self.spatial - 2, -1, -1):
            if self.extents[axis] > 1 and not any(_reads(dim, self.variables[axis]) for read in reads for dim in read.region):
                return axis
        return None

    def _reorder_tile(self, reuse: int | None, rows: int, vectors: int, lanes: int) -> None:
        schedule = self.schedule
        registers = schedule.cache_write(self.block, 0, "local")
        loops = schedule.get_loops(self.block)
        outer, reduced = loops[: self.spatial - 1], loops[self.spatial :]
        inner = []
        if reuse is not None:
            outer[reuse], row = schedule.split(outer[reuse], [None, rows])
            inner.append(row)
        column, vector, lane = schedule.split(loops[self.spatial - 1], [None, vectors, lanes])
        schedule.reorder(*outer, column, *reduced, *inner, vector, lane)
        outermost = schedule.fuse(*outer) if len(outer) > 1 else [*outer, column][0]
        schedule.reverse_compute_at(registers, column)
        self._share(outermost)
        schedule.vectorize(lane)
        for loop in (*inner, vector):
            schedule.unroll(loop)
        schedule.decompose_reduction(self.block, reduced[0])

    # ------------------------------------------------------------------ sums along consecutive elements

    def split_rows(self) -> bool:
        """Sum each row as several vectors side by side, which are added up at the end. Return whether it fits."""
        schedule, partial = self.schedule, self.side_by_side()
        if partial is None:
            return False
        spatial = schedule.get_loops(self.block)[: self.spatial]
        outermost = schedule.fuse(*spatial) if len(spatial) > 1 else spatial[0]
        schedule.compute_at(partial, outermost)
        self._share(outermost)
        schedule.decompose_reduction(partial, vectorize(schedule, partial))
        return True

    def side_by_side(self) -> Any:
        """Split the sum of each row into several; return the new block that computes them, None where none fits."""
        reads = self.schedule.get(self.block).reads
        width = _divisor(self.extents[-1], min(self.extents[-1] // 2, 4 * self.machine.lanes(self._bits)))
        if width < 4 or not any(_is_consecutive(read, self.variables[-1]) for read in reads):
            return None
        _, side = self.schedule.split(self.schedule.get_loops(self.block)[-1], [None, width])
        return self.schedule.rfactor(side, -1)

    @property
    def _widest(self) -> int:
        """The bits of the widest element that the block reads or writes."""
        stmt = self.schedule.get(self.block)
        return max(int(access.source.dtype.bits) for access in (*stmt.reads, *stmt.writes))

    @property
    def _bits(self) -> int:
        return int(self.schedule.get(self.block).writes[0].source.dtype.bits)


def vectorize(schedule: s_tir.Schedule, partial: Any) -> Loop:
    """Arrange the sums side by side of one row as vectors; return the loop before which they begin."""
    _, lane, *reduced = schedule.get_loops(partial)
    schedule.reorder(*reduced, lane)
    schedule.vectorize(lane)
    return reduced[0]


def _reads(dim: Any, variable: Any) -> bool:
    return any(v.same_as(variable) for v in tirx.analysis.undefined_vars(dim.min))


def _runs_along(access: Any, variable: Any) -> bool:
    """Whether the place on the access's last axis depends on the variable."""
    return bool(len(access.region)) and _reads(access.region[-1], variable)


def _is_consecutive(access: Any, variable: Any) -> bool:
    """Whether the place on the access's last axis is the variable, so that steps go to neighbouring elements."""
    return bool(len(access.region)) and bool(access.region[-1].min.same_as(variable))


def _divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number up to a limit."""
    return next((d for d in range(min(number, most), 0, -1) if number % d == 0), 1)
