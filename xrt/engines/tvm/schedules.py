"""CPU schedules: TVM's own CPU pipeline has none, and runs naive loops on one thread.

FuseTIR produces a PrimFunc with a sequence of blocks, each with a loop nest over intermediate buffers. Elementwise producers are
inlined into their consumers, or computed into a register if several blocks read them. The remaining nests are scheduled one by
one according to their kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.s_tir import dlight
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func
from tvm.target import Target
from tvm.target.codegen import llvm_get_vector_width
from tvm.tirx import ForKind

_FIELDS = ("a", "b", "condition", "true_value", "false_value", "value", "body")


def operations(statement: Any) -> int:
    """Number of operations in a block's body, without index computations."""
    return _total(statement, lambda node: 1 if next(_iter_operands(node), None) is not None else 0, {})


def loads(statement: Any, buffer: Any = None) -> int:
    """Number of loads in a block's body, of one buffer or of all."""
    return _total(
        statement, lambda node: int(isinstance(node, TensorLoad) and (buffer is None or node.source.same_as(buffer))), {}
    )


def differences(statement: Any) -> int:
    """Number of floating-point subtractions in a block's body without literal operands."""
    return _total(statement, lambda node: int(_is_difference(node)), {})


def is_arithmetic(statement: Any) -> bool:
    """Whether each operation of a block's body is a single vector instruction."""
    return not _total(statement, lambda node: int(not _is_instruction(node)), {})


def _is_instruction(node: Any) -> bool:
    name = getattr(getattr(node, "op", None), "name", "")
    return type(node).__name__ in _INSTRUCTIONS or name in _INTRINSICS or next(_iter_operands(node), None) is None


_INSTRUCTIONS = {
    *("TensorStore", "BufferStore", "TensorLoad", "Add", "Sub", "Mul", "Div", "Max", "Min", "Select", "Cast"),
    *("LT", "LE", "GT", "GE", "EQ", "NE", "And", "Or", "Not"),
}
_INTRINSICS = {
    f"tirx.{name}"
    for name in ("fabs", "sqrt", "floor", "ceil", "trunc", "fma", "isnan", "reinterpret", "shift_left", "shift_right")
}


def _is_difference(node: Any) -> bool:
    return (
        type(node).__name__ == "Sub" and "float" in str(node.ty) and not any(hasattr(part, "value") for part in (node.a, node.b))
    )


def _total(node: Any, count: Callable[[Any], int], totals: dict[int, int]) -> int:
    """Sum `count` over the expression tree. Linear, because shared subexpressions are memoized."""
    key = hash(node)  # the address, which is valid as long as the root lives
    if key not in totals:
        totals[key] = count(node) + sum(_total(part, count, totals) for part in _iter_operands(node))
    return totals[key]


def _iter_operands(node: Any) -> Iterator[Any]:
    # The operands of a load are its indices, which are no work of the block.
    if isinstance(node, TensorLoad):
        return
    for name in _FIELDS:
        if (part := getattr(node, name, None)) is not None and not isinstance(part, int | float):
            yield part
    yield from getattr(node, "args", ())


Loop: TypeAlias = "s_tir.schedule.LoopRV"
PARALLEL_WORK = 16384
"""Loop iterations from which a second thread (about 5 us to wake) or a schedule pays off."""
LONG = 16
"""Length of a chain of operations from which LLVM no longer interleaves iterations."""


@dataclass(frozen=True, slots=True)
class CpuModel:
    """The processor properties that schedules depend on."""

    threads: int
    vector_bits: int

    def lanes(self, bits: int) -> int:
        """Elements of this width per vector."""
        return max(self.vector_bits // bits, 1)

    @property
    def accumulators(self) -> int:
        """Vector registers for partial sums: three quarters of them; the rest hold operands."""
        return 24 if self.vector_bits >= 512 else 12


class LoopNest:
    """A block of a PrimFunc with its loops: spatial loops first, then reduction loops."""

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
        """Whether all extents are known and the spatial loops come first."""
        return bool(self.spatial) and set(self.kinds[: self.spatial]) == {"S"} and all(isinstance(e, int) for e in self.extents)

    def share_open_rows(self) -> None:
        """Parallelize the outermost loop of a nest with symbolic extents; LLVM optimizes the inner ones."""
        if self.machine.threads == 1 or not self.spatial or set(self.kinds[: self.spatial]) != {"S"}:
            return
        pairs = zip(self.schedule.get_loops(self.block), self.extents[: self.spatial], strict=False)
        if (row := next((loop for loop, extent in pairs if not isinstance(extent, int) or extent > 1), None)) is not None:
            self.schedule.parallel(row)

    @property
    def is_large_reduction(self) -> bool:
        return self.spatial < len(self.kinds) and self.work >= PARALLEL_WORK

    def walk(self) -> None:
        """Fuse loops over contiguous elements, tile transposed accesses, and parallelize the outermost loop."""
        runs = self._group_loops()
        loops = self._fuse_runs(runs)
        # A reduction here fits neither tiles nor split rows: leave its inner loops to LLVM.
        if self.spatial < len(self.kinds):
            self._parallelize(loops[0])
        else:
            self._parallelize(self._interleave(loops[0]) if len(runs) == 1 else self._tile_transposed(runs, loops))

    @property
    def work(self) -> int:
        work = 1
        for extent in self.extents:
            work *= extent
        return work

    def _parallelize(self, outermost: Loop) -> None:
        if self.machine.threads > 1 and self.work >= PARALLEL_WORK:
            self.schedule.parallel(outermost)

    # ------------------------------------------------------------------ elementwise

    def _group_loops(self) -> list[list[int]]:
        """Group neighboring spatial loops that every access traverses contiguously."""
        stmt = self.schedule.get(self.block)
        accesses = [*stmt.reads, *stmt.writes]
        runs = [[0]]
        for index in range(1, self.spatial):
            if all(self._is_one_run(access, runs[-1][-1], index) for access in accesses):
                runs[-1].append(index)
            else:
                runs.append([index])
        return runs

    def _fuse_runs(self, runs: list[list[int]]) -> list[Loop]:
        """Fuse each run, so that LLVM can vectorize the last one."""
        loops = self.schedule.get_loops(self.block)
        return [self.schedule.fuse(*(loops[i] for i in run)) if len(run) > 1 else loops[run[0]] for run in runs]

    def _interleave(self, loop: Loop) -> Loop:
        """Interleave several vectors of a long arithmetic expression; return the outer loop.

        Each operation depends on the previous one, and out-of-order execution looks only some hundred operations ahead. LLVM
        interleaves only short loops.
        """
        body = self.schedule.get(self.block).body
        if operations(body) < LONG or not is_arithmetic(body):
            return loop
        # Registers per interleaved vector: three for an expression of one operand, six for one of several.
        vectors = self.machine.accumulators // (3 if loads(body) == 1 else 6)
        wide = self.machine.lanes(self._widest)
        lanes = _find_divisor(self.work, vectors * wide)
        if lanes < 2 * wide:
            return loop
        outer, lane = self.schedule.split(loop, [None, lanes])
        self.schedule.vectorize(lane)
        return outer

    def _tile_transposed(self, runs: list[list[int]], loops: list[Loop]) -> Loop:
        """Tile by cache lines if an operand is read across the order of writing; return the outermost loop.

        Vectorize along reads and scatter writes: twice as fast as the opposite. Without tiles NHWC to NCHW takes 3 times as long.
        """
        across = self._find_transposed_run(runs)
        if across is None or self.work < PARALLEL_WORK:
            return loops[0]
        schedule, (*others, last) = self.schedule, loops
        others[across], high = schedule.split(others[across], [None, self._tile_side(runs[across])])
        column, wide = schedule.split(last, [None, self._tile_side(runs[-1])])
        schedule.reorder(*others, column, wide, high)
        schedule.vectorize(high)
        return schedule.fuse(*others) if len(others) > 1 else others[0]

    def _find_transposed_run(self, runs: list[list[int]]) -> int | None:
        """The run, other than the last, along which an operand is read contiguously; None if there is none.

        Operands that do not depend on the last run are read once per row and do not count.
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
        return _find_divisor(length, 8)

    def _is_one_run(self, access: Any, outer: int, inner: int) -> bool:
        """Whether the access depends on neither loop, or traverses both as adjacent dimensions with a full inner extent."""
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

    # ------------------------------------------------------------------ register tiles

    def tile(self) -> bool:
        """Accumulate a tile of the result in registers: vectors of the last axis times rows of an axis that reuses operands.

        Matrix products reuse across rows, convolutions across output channels. Without such an axis tiling still pays if the
        vectors are read contiguously, as in a sum over the first axis. Return whether the nest fits.
        """
        last = self.spatial - 1
        reads = [read for read in self.schedule.get(self.block).reads if _runs_along(read, self.variables[last])]
        reuse = self._find_reuse_axis(reads)
        # A sum along contiguous elements fills no tile: see `split_rows`.
        if not reads or (reuse is None and any(_runs_along(r, v) for r in reads for v in self.variables[self.spatial :])):
            return False
        # Rows times vectors must fit in the registers, and divide the extents: a remainder would need a second loop nest.
        lanes = _find_divisor(self.extents[last], self.machine.lanes(self._bits))
        vectors = _find_divisor(self.extents[last] // lanes, 2 if reuse is not None else 4)
        rows = _find_divisor(self.extents[reuse], min(8, self.machine.accumulators // vectors)) if reuse is not None else 1
        self._reorder_tile(reuse, rows, vectors, lanes)
        return True

    def _find_reuse_axis(self, reads: list[Any]) -> int | None:
        """The innermost axis of the result that none of the reads depends on."""
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
        self._parallelize(outermost)
        schedule.vectorize(lane)
        for loop in (*inner, vector):
            schedule.unroll(loop)
        # Set the accumulators to zero before the loop, not in its first iteration.
        schedule.decompose_reduction(self.block, reduced[0])

    # ------------------------------------------------------------------ sums along contiguous elements

    def split_rows(self) -> bool:
        """Sum each row in several vector accumulators that are added at the end. Return whether the nest fits."""
        schedule, reads = self.schedule, self.schedule.get(self.block).reads
        # Four vectors: consecutive additions to one register would wait for each other.
        width = _find_divisor(self.extents[-1], min(self.extents[-1] // 2, 4 * self.machine.lanes(self._bits)))
        if width < 4 or not any(_is_consecutive(read, self.variables[-1]) for read in reads):
            return False
        _, side = schedule.split(schedule.get_loops(self.block)[-1], [None, width])
        partial = schedule.rfactor(side, -1)
        spatial = schedule.get_loops(self.block)[: self.spatial]
        outermost = schedule.fuse(*spatial) if len(spatial) > 1 else spatial[0]
        schedule.compute_at(partial, outermost)
        self._parallelize(outermost)
        _, lane, *reduced = schedule.get_loops(partial)
        schedule.reorder(*reduced, lane)
        schedule.vectorize(lane)
        schedule.decompose_reduction(partial, reduced[0])
        return True

    @property
    def _widest(self) -> int:
        """Bits of the widest element type that the block accesses."""
        stmt = self.schedule.get(self.block)
        return max(int(access.source.dtype.bits) for access in (*stmt.reads, *stmt.writes))

    @property
    def _bits(self) -> int:
        return int(self.schedule.get(self.block).writes[0].source.dtype.bits)


def _reads(dim: Any, variable: Any) -> bool:
    return any(v.same_as(variable) for v in tirx.analysis.undefined_vars(dim.min))


def _runs_along(access: Any, variable: Any) -> bool:
    """Whether the index on the last axis depends on the variable."""
    return bool(len(access.region)) and _reads(access.region[-1], variable)


def _is_consecutive(access: Any, variable: Any) -> bool:
    """Whether the index on the last axis is the variable, so that the access is contiguous."""
    return bool(len(access.region)) and bool(access.region[-1].min.same_as(variable))


def _find_divisor(number: int, most: int) -> int:
    """The largest divisor of a number up to a limit."""
    return next((d for d in range(min(number, most), 0, -1) if number % d == 0), 1)


def move_block(schedule: s_tir.Schedule, block: SBlockInfo) -> bool:
    """Compute a block in the innermost loop that its readers share; return whether there is one.

    LLVM turns the buffer of one element into a register.
    """
    # The shortest of the nests: the readers share its loops.
    loops = min((schedule.get_loops(reader) for reader in schedule.get_consumers(block.block_rv)), key=len)
    while loops and schedule.get(loops[-1]).kind == ForKind.VECTORIZED:
        loops.pop()
    try:
        schedule.compute_at(block.block_rv, loops[-1])
    except (IndexError, s_tir.ScheduleError):
        return False
    return True


ALWAYS_INLINE = 16384
"""Total operations that inlining may recompute: a separate loop nest would cost more."""
REPEATED = 8
"""Maximum number of operations that are computed again, or written again in the code, rather than stored and read."""
LARGEST = 128
"""Limit on operations in an expression with repeated parts: TVM's simplifier is superlinear."""


class CpuSchedule(dlight.ScheduleRule):  # type: ignore[misc]  # TVM has no types
    """Inlines elementwise blocks, and schedules the remaining loop nests for vectors and threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        """Schedule a function; None if it is not a sequence of plain blocks."""
        schedule = s_tir.Schedule(func)
        blocks = normalize_prim_func(schedule)
        if blocks is None:
            return None
        machine = CpuModel(self.threads, llvm_get_vector_width(target))
        remaining = _inline_producers(schedule, blocks)
        movable = {block.name for block in remaining[:-1] if _can_move(schedule, block, remaining)}
        for block in remaining:
            if block.name not in movable:
                schedule = _schedule_block(schedule, block, machine)
        # Blocks that move come last, because their readers determine their place.
        for block in reversed(remaining):
            if block.name in movable and not move_block(schedule, block):
                schedule = _schedule_block(schedule, block, machine)
        return schedule


def _schedule_block(schedule: s_tir.Schedule, block: SBlockInfo, machine: CpuModel) -> s_tir.Schedule:
    """Apply the first transformation that fits the block and that TVM accepts."""
    nest = LoopNest(schedule, block, machine)
    if not nest.is_plain:
        nest.share_open_rows()
        return schedule
    if nest.is_large_reduction:
        for transform in (LoopNest.tile, LoopNest.split_rows):
            # On a copy: a transformation that fails in the middle leaves its first steps.
            trial = schedule.copy()
            with suppress(s_tir.ScheduleError):
                if transform(LoopNest(trial, block, machine)):
                    return trial
    nest.walk()
    return schedule


def _inline_producers(schedule: s_tir.Schedule, blocks: Sequence[SBlockInfo]) -> list[SBlockInfo]:
    """Inline elementwise producers, except where expressions would explode; return the remaining blocks.

    An expression that is read three times is repeated three times, so a chain of maxima would grow exponentially.
    """
    budget = ALWAYS_INLINE
    remaining = list(blocks)
    for block in blocks[:-1]:
        if not block.is_injective():
            continue
        # Per block and not once: inlining the previous ones has made the expressions of their readers longer.
        usage = _Usage.of(schedule, block, remaining)
        if usage.is_worth_inlining(budget) and _inline(schedule, block):
            budget -= max(usage.extra, 0)
            remaining.remove(block)
    return remaining


@dataclass(frozen=True, slots=True)
class _Usage:
    """How the readers of an elementwise block use its result, to decide about inlining."""

    cost: int
    """Operations in its expression."""
    extra: int
    """Additional operations at run time after inlining: each reader computes the expression once per element."""
    repeated: int
    """Operations that inlining repeats in the code."""
    largest: int
    """Operations in the largest expression after inlining."""
    can_move: bool
    """Whether all readers traverse the same elements in the same order, so that it can be a register instead."""
    is_reduced: bool
    """Whether a reader, such as a reduction, would recompute elements."""
    may_cancel: bool
    """Whether an inlined expression would subtract and read some buffer twice. TVM simplifies inlined expressions as if they
    were exact: ``(x + c) - c`` becomes ``x``, which is wrong with rounding or infinities."""

    @classmethod
    def of(cls, schedule: s_tir.Schedule, block: SBlockInfo, blocks: Sequence[SBlockInfo]) -> _Usage:
        names = {schedule.get(reader).name_hint for reader in schedule.get_consumers(block.block_rv)}
        readers = [other for other in blocks if other.name in names]
        buffer, cost = schedule.get(block.block_rv).writes[0].source, operations(schedule.get(block.block_rv).body)
        bodies = [schedule.get(reader.block_rv).body for reader in readers]
        counts = [loads(body, buffer) for body in bodies]
        return cls(
            cost=cost,
            extra=cost * (sum(map(_count_elements, readers)) - _count_elements(block)),
            repeated=cost * (sum(counts) - 1),
            largest=max((operations(b) + n * cost for b, n in zip(bodies, counts, strict=True)), default=0),
            can_move=all(_has_same_traversal(schedule, block, reader) for reader in readers),
            is_reduced=any(not r.is_injective() and _count_elements(r) > _count_elements(block) for r in readers),
            may_cancel=any(_may_cancel(schedule.get(block.block_rv), schedule.get(r.block_rv)) for r in readers),
        )

    def is_worth_inlining(self, budget: int) -> bool:
        """Whether to inline the block, if ``budget`` more operations may be recomputed."""
        if self.may_cancel or self.is_reduced or (self.cost > REPEATED and self.extra > max(budget, 0)):
            return False
        return self.repeated <= REPEATED or (self.largest <= LARGEST and not self.can_move)


def _may_cancel(block: Any, reader: Any) -> bool:
    buffer = block.writes[0].source
    if not differences(block.body) + differences(reader.body):
        return False
    count = loads(reader.body, buffer)
    sources = [access.source for access in (*block.reads, *reader.reads) if not access.source.same_as(buffer)]
    return any(count * loads(block.body, source) + loads(reader.body, source) > 1 for source in sources)


def _has_same_traversal(schedule: s_tir.Schedule, block: SBlockInfo, reader: SBlockInfo) -> bool:
    """Whether the reader is elementwise too, and reads each element at the position where the block writes it."""
    write = schedule.get(block.block_rv).writes[0]
    read = [access for access in schedule.get(reader.block_rv).reads if access.source.same_as(write.source)]
    return (
        reader.is_injective()
        and reader.dom() == block.dom()
        and _is_identity_access(write, block)
        and all(_is_identity_access(access, reader) for access in read)
    )


def _is_identity_access(access: Any, block: SBlockInfo) -> bool:
    """Whether the indices of the access are exactly the block's loop variables, in order."""
    return len(access.region) == len(block.iters) and all(
        dim.min.same_as(item.var) for dim, item in zip(access.region, block.iters, strict=True)
    )


def _inline(schedule: s_tir.Schedule, block: SBlockInfo) -> bool:
    """Inline the block into its readers; return False if TVM cannot."""
    try:
        schedule.compute_inline(block.block_rv)
    except s_tir.ScheduleError:
        return False
    return True


def _can_move(schedule: s_tir.Schedule, block: SBlockInfo, blocks: Sequence[SBlockInfo]) -> bool:
    """Whether the block may be computed element by element at its readers."""
    return block.is_injective() and bool(schedule.get_consumers(block.block_rv)) and _Usage.of(schedule, block, blocks).can_move


def _count_elements(block: SBlockInfo) -> int:
    size = 1
    for extent in block.dom():
        # A symbolic extent counts as 1: the blocks that are compared have the same symbolic dims.
        size *= extent if isinstance(extent, int) else 1
    return size
