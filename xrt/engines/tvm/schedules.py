"""Schedule loops for CPUs. TVM's own CPU pipeline has no schedules: it runs naive loops on one thread.

FuseTIR produces a PrimFunc, which is a sequence of blocks: loop nests that read and write buffers. A block that is elementwise
is inlined into the blocks that read it, or is computed into a register if several blocks read it. Then each remaining nest is
scheduled as an elementwise loop, a transposition, or a reduction.
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

_OPERAND_FIELDS = ("a", "b", "condition", "true_value", "false_value", "value", "body")


def count_operations(statement: Any) -> int:
    """Count the operations in a block's body, without those that compute indices."""
    return _sum_over_tree(statement, lambda node: 1 if next(_iter_operands(node), None) is not None else 0, {})


def count_loads(statement: Any, buffer: Any = None) -> int:
    """Count the loads in a block's body from one buffer, or from all buffers if it is None."""
    return _sum_over_tree(
        statement, lambda node: int(isinstance(node, TensorLoad) and (buffer is None or node.source.same_as(buffer))), {}
    )


def count_float_subtractions(statement: Any) -> int:
    """Count the floating-point subtractions in a block's body that have no literal operand."""
    return _sum_over_tree(statement, lambda node: int(_is_float_subtraction(node)), {})


def uses_vector_instructions(statement: Any) -> bool:
    """Whether every operation of a block's body compiles to a single vector instruction."""
    return not _sum_over_tree(statement, lambda node: int(not _is_vector_instruction(node)), {})


def _is_vector_instruction(node: Any) -> bool:
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


def _is_float_subtraction(node: Any) -> bool:
    return (
        type(node).__name__ == "Sub" and "float" in str(node.ty) and not any(hasattr(part, "value") for part in (node.a, node.b))
    )


def _sum_over_tree(node: Any, count: Callable[[Any], int], totals: dict[int, int]) -> int:
    """Sum ``count(node)`` over an expression tree, in linear time: ``totals`` memoizes the sums of shared subexpressions."""
    key = hash(node)  # TVM hashes a node by its address, which is unique as long as the root is alive
    if key not in totals:
        totals[key] = count(node) + sum(_sum_over_tree(part, count, totals) for part in _iter_operands(node))
    return totals[key]


def _iter_operands(node: Any) -> Iterator[Any]:
    # The operands of a load are its indices, which do not count as operations of the block.
    if isinstance(node, TensorLoad):
        return
    for name in _OPERAND_FIELDS:
        if (part := getattr(node, name, None)) is not None and not isinstance(part, int | float):
            yield part
    yield from getattr(node, "args", ())


Loop: TypeAlias = "s_tir.schedule.LoopRV"
MIN_PARALLEL_ITERATIONS = 16384
"""A nest with fewer iterations is neither parallelized (waking a second thread takes about 5 us) nor tiled."""
TYPICAL_EXTENT = 64
"""Estimate of a symbolic extent for `MIN_PARALLEL_ITERATIONS`: one that is too large costs about 5 us, the wake of a thread."""
MIN_INTERLEAVED_OPERATIONS = 16
"""LLVM interleaves the iterations of loops whose body has fewer operations. For longer bodies `LoopNest` does."""


@dataclass(frozen=True, slots=True)
class CpuProperties:
    """The properties of the CPU that schedules depend on."""

    threads: int
    vector_bits: int

    def lanes_per_vector(self, bits: int) -> int:
        """Number of elements of ``bits`` bits in one vector register."""
        return max(self.vector_bits // bits, 1)

    @property
    def accumulators(self) -> int:
        """Number of vector registers to use for partial sums: three quarters of all. The others hold operands."""
        return 24 if self.vector_bits >= 512 else 12


class LoopNest:
    """Schedules one block of a PrimFunc and the loops around it. Usually the spatial loops come first, then the reductions."""

    def __init__(self, schedule: s_tir.Schedule, block: SBlockInfo, cpu: CpuProperties) -> None:
        self.schedule = schedule
        self.block = block.block_rv
        self.cpu = cpu
        self.loop_kinds = block.dom_kind()
        self.extents = block.dom()
        self.loop_variables = [item.var for item in block.iters]
        # dom_kind is a string with one letter per loop, such as "SSR": S for spatial, R for reduction.
        self.num_spatial = len(self.loop_kinds.rstrip("R"))

    @property
    def has_spatial_first(self) -> bool:
        """Whether all spatial loops come before the reductions."""
        return bool(self.num_spatial) and set(self.loop_kinds[: self.num_spatial]) == {"S"}

    @property
    def is_static(self) -> bool:
        """Whether all extents are numbers."""
        return all(isinstance(extent, int) for extent in self.extents)

    def parallelize_symbolic(self) -> None:
        """Parallelize the outermost loop of a nest with symbolic extents, and leave the inner loops to LLVM."""
        if self.cpu.threads == 1:
            return
        pairs = zip(self.schedule.get_loops(self.block), self.extents[: self.num_spatial], strict=False)
        if (row := next((loop for loop, extent in pairs if not isinstance(extent, int) or extent > 1), None)) is not None:
            self.schedule.parallel(row)

    @property
    def is_large_reduction(self) -> bool:
        return self.num_spatial < len(self.loop_kinds) and self.iterations >= MIN_PARALLEL_ITERATIONS

    def schedule_by_default(self) -> None:
        """Schedule an elementwise nest: fuse contiguous loops, tile transposed accesses, parallelize the outermost loop."""
        runs = self._group_loops()
        all_loops = self.schedule.get_loops(self.block)
        # Each run becomes one loop, so that LLVM can vectorize the last of them.
        loops = [self.schedule.fuse(*(all_loops[i] for i in run)) if len(run) > 1 else all_loops[run[0]] for run in runs]
        # A reduction, too small for `tile` and `split_rows` or rejected by both: leave its inner loops to LLVM.
        if self.num_spatial < len(self.loop_kinds):
            self._parallelize(loops[0])
        else:
            self._parallelize(self._interleave(loops[0]) if len(runs) == 1 else self._tile_transposed(runs, loops))

    @property
    def iterations(self) -> int:
        total = 1
        for extent in self.extents:
            total *= extent if isinstance(extent, int) else TYPICAL_EXTENT
        return total

    def _parallelize(self, outermost: Loop) -> None:
        if self.cpu.threads > 1 and self.iterations >= MIN_PARALLEL_ITERATIONS:
            self.schedule.parallel(outermost)

    def _group_loops(self) -> list[list[int]]:
        """Group the indices of neighboring spatial loops that can be fused, because every access traverses them contiguously."""
        stmt = self.schedule.get(self.block)
        accesses = [*stmt.reads, *stmt.writes]
        runs = [[0]]
        for index in range(1, self.num_spatial):
            if all(self._is_contiguous_pair(access, runs[-1][-1], index) for access in accesses):
                runs[-1].append(index)
            else:
                runs.append([index])
        return runs

    def _interleave(self, loop: Loop) -> Loop:
        """Compute several vectors per iteration if the body is a long arithmetic expression; return the outermost loop.

        In such an expression each operation waits for the previous one. The CPU executes later iterations meanwhile only if they
        start within some hundred instructions, and LLVM interleaves only short loops.
        """
        body = self.schedule.get(self.block).body
        if count_operations(body) < MIN_INTERLEAVED_OPERATIONS or not uses_vector_instructions(body):
            return loop
        # An interleaved vector needs about three registers for an expression of one operand, six for one of several.
        vectors = self.cpu.accumulators // (3 if count_loads(body) == 1 else 6)
        vector_lanes = self.cpu.lanes_per_vector(self._widest_bits)
        lanes = _find_divisor(self.iterations, vectors * vector_lanes)
        if lanes < 2 * vector_lanes:
            return loop
        outer, lane = self.schedule.split(loop, [None, lanes])
        self.schedule.vectorize(lane)
        return outer

    def _tile_transposed(self, runs: list[list[int]], loops: list[Loop]) -> Loop:
        """Tile by cache lines if an operand is read in another order than the result is written; return the outermost loop.

        Vectors run along the reads, and their elements are written to separate lines. That is twice as fast as the opposite.
        Without tiles, NHWC to NCHW takes 3 times as long.
        """
        transposed = self._find_transposed_run(runs)
        if transposed is None or self.iterations < MIN_PARALLEL_ITERATIONS:
            return loops[0]
        schedule = self.schedule
        *others, last = loops
        others[transposed], read_tile = schedule.split(others[transposed], [None, self._choose_tile_side(runs[transposed])])
        last_outer, write_tile = schedule.split(last, [None, self._choose_tile_side(runs[-1])])
        schedule.reorder(*others, last_outer, write_tile, read_tile)
        schedule.vectorize(read_tile)
        return schedule.fuse(*others) if len(others) > 1 else others[0]

    def _find_transposed_run(self, runs: list[list[int]]) -> int | None:
        """Find a run, other than the last, along which an operand is read contiguously; return its index, or None.

        The result is written along the last run, so such an operand is transposed. An operand that does not depend on the last
        run does not count: it is read once per row.
        """
        last = [self.loop_variables[index] for index in runs[-1]]
        for read in self.schedule.get(self.block).reads:
            if not any(_depends_on(dim, variable) for dim in read.region for variable in last):
                continue
            for index, run in enumerate(runs[:-1]):
                if _is_consecutive(read, self.loop_variables[run[-1]]) and self.extents[run[-1]] > 1:
                    return index
        return None

    def _choose_tile_side(self, run: list[int]) -> int:
        length = 1
        for index in run:
            length *= self.extents[index]
        return _find_divisor(length, 8)

    def _is_contiguous_pair(self, access: Any, outer: int, inner: int) -> bool:
        """Whether an access allows fusing two loops: it depends on neither, or they index adjacent axes, the inner one fully."""
        if 1 in (self.extents[outer], self.extents[inner]):
            return True
        region, pair = access.region, (self.loop_variables[outer], self.loop_variables[inner])
        if not any(_depends_on(dim, variable) for dim in region for variable in pair):
            return True
        return any(
            region[k].min.same_as(pair[0])
            and region[k + 1].min.same_as(pair[1])
            and access.source.shape[k + 1] == self.extents[inner]
            for k in range(len(region) - 1)
        )

    def tile(self) -> bool:
        """Accumulate a tile of the result in registers; return False, and change nothing, if the nest is not suited.

        A tile is some vectors along the last axis, times some rows of a "reuse axis": one on which the vectors that are read do
        not depend, so that each row uses them again. In a matrix product these are the rows, in a convolution the output
        channels. Without a reuse axis a tile is still faster if vectors are read contiguously, as in a sum over the first axis.
        """
        last = self.num_spatial - 1
        if not isinstance(self.extents[last], int):
            return False
        reads = [read for read in self.schedule.get(self.block).reads if _varies_along_last_axis(read, self.loop_variables[last])]
        reuse = self._find_reuse_axis(reads)
        # A sum along contiguous elements has one result per row, so there is no vector to tile. `split_rows` supports it.
        if not reads or (
            reuse is None and any(_varies_along_last_axis(r, v) for r in reads for v in self.loop_variables[self.num_spatial :])
        ):
            return False
        # Rows times vectors must fit in the registers, and divide known extents: a remainder would need a second loop nest.
        lanes = _find_divisor(self.extents[last], self.cpu.lanes_per_vector(self._result_bits))
        vectors = _find_divisor(self.extents[last] // lanes, 2 if reuse is not None else 4)
        rows = 1
        if reuse is not None:
            max_rows, extent = min(8, self.cpu.accumulators // vectors), self.extents[reuse]
            # TVM adds a condition for the last rows of a symbolic extent.
            rows = _find_divisor(extent, max_rows) if isinstance(extent, int) else max_rows
        self._reorder_tile(reuse, rows, vectors, lanes)
        return True

    def _find_reuse_axis(self, reads: list[Any]) -> int | None:
        """Find the innermost axis of the result on which none of the reads depends; None if each depends on all axes."""
        for axis in range(self.num_spatial - 2, -1, -1):
            extent = self.extents[axis]
            if (not isinstance(extent, int) or extent > 1) and not any(
                _depends_on(dim, self.loop_variables[axis]) for read in reads for dim in read.region
            ):
                return axis
        return None

    def _reorder_tile(self, reuse: int | None, rows: int, vectors: int, lanes: int) -> None:
        """Reorder the loops for tiles of ``rows`` along the axis ``reuse``, times ``vectors`` of ``lanes`` elements."""
        schedule = self.schedule
        registers = schedule.cache_write(self.block, 0, "local")
        loops = schedule.get_loops(self.block)
        outer, reduced = loops[: self.num_spatial - 1], loops[self.num_spatial :]
        inner = []
        if reuse is not None:
            outer[reuse], row = schedule.split(outer[reuse], [None, rows])
            inner.append(row)
        column, vector, lane = schedule.split(loops[self.num_spatial - 1], [None, vectors, lanes])
        schedule.reorder(*outer, column, *reduced, *inner, vector, lane)
        outermost = schedule.fuse(*outer) if len(outer) > 1 else [*outer, column][0]
        schedule.reverse_compute_at(registers, column)
        self._parallelize(outermost)
        schedule.vectorize(lane)
        for loop in (*inner, vector):
            schedule.unroll(loop)
        # Set the accumulators to zero before the loop, not in its first iteration.
        schedule.decompose_reduction(self.block, reduced[0])

    def split_rows(self) -> bool:
        """Reduce each contiguous row into several vectors, added after the loop. Return False if the nest is not suited."""
        if not isinstance(self.extents[-1], int):
            return False
        schedule = self.schedule
        reads = schedule.get(self.block).reads
        # Four vectors in turn, because additions to a single one would wait for each other.
        width = _find_divisor(self.extents[-1], min(self.extents[-1] // 2, 4 * self.cpu.lanes_per_vector(self._result_bits)))
        if width < 4 or not any(_is_consecutive(read, self.loop_variables[-1]) for read in reads):
            return False
        _, side = schedule.split(schedule.get_loops(self.block)[-1], [None, width])
        partial = schedule.rfactor(side, -1)
        spatial = schedule.get_loops(self.block)[: self.num_spatial]
        outermost = schedule.fuse(*spatial) if len(spatial) > 1 else spatial[0]
        schedule.compute_at(partial, outermost)
        self._parallelize(outermost)
        _, lane, *reduced = schedule.get_loops(partial)
        schedule.reorder(*reduced, lane)
        schedule.vectorize(lane)
        schedule.decompose_reduction(partial, reduced[0])
        return True

    @property
    def _widest_bits(self) -> int:
        """Bits per element of the widest buffer that the block accesses."""
        stmt = self.schedule.get(self.block)
        return max(int(access.source.dtype.bits) for access in (*stmt.reads, *stmt.writes))

    @property
    def _result_bits(self) -> int:
        """Bits per element of the result."""
        return int(self.schedule.get(self.block).writes[0].source.dtype.bits)


def _depends_on(dim: Any, variable: Any) -> bool:
    return any(v.same_as(variable) for v in tirx.analysis.undefined_vars(dim.min))


def _varies_along_last_axis(access: Any, variable: Any) -> bool:
    """Whether the index of an access on its last axis depends on a loop variable."""
    return bool(len(access.region)) and _depends_on(access.region[-1], variable)


def _is_consecutive(access: Any, variable: Any) -> bool:
    """Whether the index of an access on its last axis is the loop variable itself, so that the access is contiguous."""
    return bool(len(access.region)) and bool(access.region[-1].min.same_as(variable))


def _find_divisor(number: int, limit: int) -> int:
    """Find the largest divisor of ``number`` that does not exceed ``limit``."""
    return next((d for d in range(min(number, limit), 0, -1) if number % d == 0), 1)


def compute_at_readers(schedule: s_tir.Schedule, block: SBlockInfo) -> bool:
    """Move a block into the innermost loop that its readers share, as a register; return False if there is no such loop."""
    # Candidate: the innermost loop of the least nested reader that is not vectorized. If another reader is outside this loop,
    # compute_at raises ScheduleError.
    loops = min((schedule.get_loops(reader) for reader in schedule.get_consumers(block.block_rv)), key=len)
    while loops and schedule.get(loops[-1]).kind == ForKind.VECTORIZED:
        loops.pop()
    try:
        schedule.compute_at(block.block_rv, loops[-1])
    except (IndexError, s_tir.ScheduleError):
        return False
    return True


MAX_RECOMPUTED_OPERATIONS = 16384
"""Inlining may recompute this many operations per call in total, because a separate loop nest would take longer."""
MAX_REPEATED_OPERATIONS = 8
"""An expression with at most this many operations is recomputed by each reader instead of stored and loaded."""
MAX_INLINED_OPERATIONS = 128
"""Limit on operations in an expression that inlining repeats, because the time of TVM's simplifier is superlinear."""


class CpuSchedule(dlight.ScheduleRule):  # type: ignore[misc]  # TVM has no types
    """Inlines elementwise blocks, then schedules the remaining loop nests for vector instructions and threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        """Schedule a PrimFunc; return None if it is not a sequence of blocks that TVM can normalize."""
        schedule = s_tir.Schedule(func)
        blocks = normalize_prim_func(schedule)
        if blocks is None:
            return None
        cpu = CpuProperties(self.threads, llvm_get_vector_width(target))
        remaining = _inline_producers(schedule, blocks)
        movable = {block.name for block in remaining[:-1] if _can_move(schedule, block, remaining)}
        for block in remaining:
            if block.name not in movable:
                schedule = _schedule_block(schedule, block, cpu)
        # After their readers, because these determine the loop that the block moves into. In reverse, as they may read each
        # other.
        for block in reversed(remaining):
            if block.name in movable and not compute_at_readers(schedule, block):
                schedule = _schedule_block(schedule, block, cpu)
        return schedule


def _schedule_block(schedule: s_tir.Schedule, block: SBlockInfo, cpu: CpuProperties) -> s_tir.Schedule:
    """Schedule the loop nest of one block and return the resulting schedule, which may be a modified copy."""
    nest = LoopNest(schedule, block, cpu)
    if not nest.has_spatial_first:
        return schedule
    if nest.is_large_reduction:
        for transform in (LoopNest.tile, LoopNest.split_rows):
            # On a copy, because a transformation that fails midway leaves its first steps applied.
            trial = schedule.copy()
            with suppress(s_tir.ScheduleError):
                if transform(LoopNest(trial, block, cpu)):
                    return trial
    if nest.is_static:
        nest.schedule_by_default()
    else:
        nest.parallelize_symbolic()
    return schedule


def _inline_producers(schedule: s_tir.Schedule, blocks: Sequence[SBlockInfo]) -> list[SBlockInfo]:
    """Inline elementwise blocks into their readers, and return the blocks that remain.

    Blocks whose inlining would make expressions too large remain: an expression that is read three times is repeated three
    times, so a chain of such blocks would grow exponentially.
    """
    budget = MAX_RECOMPUTED_OPERATIONS
    remaining = list(blocks)
    for block in blocks[:-1]:
        if not block.is_injective():
            continue
        # Analyzed here rather than once for all blocks, because inlining the previous blocks made later expressions longer.
        usage = _Usage.from_block(schedule, block, remaining)
        if usage.is_worth_inlining(budget):
            with suppress(s_tir.ScheduleError):
                schedule.compute_inline(block.block_rv)
                budget -= max(usage.extra, 0)
                remaining.remove(block)
    return remaining


@dataclass(frozen=True, slots=True)
class _Usage:
    """How other blocks read the result of an elementwise block. Decides whether to inline it."""

    cost: int
    """Operations in the block's expression."""
    extra: int
    """Additional operations per call if inlined: each reader computes the expression once per element of its own result."""
    repeated: int
    """Additional operations in the code if inlined."""
    largest: int
    """Operations in the largest expression of a reader if inlined."""
    can_move: bool
    """Whether all readers traverse the same elements in the same order, so that the result can be kept in a register instead."""
    is_reduced: bool
    """Whether a reader would compute the same element several times, as a broadcasting reduction does."""
    may_cancel: bool
    """Whether an inlined expression would subtract, and read some buffer twice. TVM simplifies inlined expressions as if they
    were exact: ``(x + c) - c`` becomes ``x``, which is wrong with rounding or infinities."""

    @classmethod
    def from_block(cls, schedule: s_tir.Schedule, block: SBlockInfo, blocks: Sequence[SBlockInfo]) -> _Usage:
        """Analyze how those of ``blocks`` that read the result of ``block`` use it."""
        names = {schedule.get(reader).name_hint for reader in schedule.get_consumers(block.block_rv)}
        readers = [other for other in blocks if other.name in names]
        buffer = schedule.get(block.block_rv).writes[0].source
        cost = count_operations(schedule.get(block.block_rv).body)
        bodies = [schedule.get(reader.block_rv).body for reader in readers]
        counts = [count_loads(body, buffer) for body in bodies]
        return cls(
            cost=cost,
            extra=cost * (sum(map(_count_elements, readers)) - _count_elements(block)),
            repeated=cost * (sum(counts) - 1),
            largest=max((count_operations(b) + n * cost for b, n in zip(bodies, counts, strict=True)), default=0),
            can_move=all(_has_same_traversal(schedule, block, reader) for reader in readers),
            is_reduced=any(not r.is_injective() and _count_elements(r) > _count_elements(block) for r in readers),
            may_cancel=any(_may_cancel(schedule.get(block.block_rv), schedule.get(r.block_rv)) for r in readers),
        )

    def is_worth_inlining(self, budget: int) -> bool:
        """Whether to inline the block. ``budget`` is how many operations per call may still be recomputed."""
        if self.may_cancel or self.is_reduced or (self.cost > MAX_REPEATED_OPERATIONS and self.extra > max(budget, 0)):
            return False
        return self.repeated <= MAX_REPEATED_OPERATIONS or (self.largest <= MAX_INLINED_OPERATIONS and not self.can_move)


def _may_cancel(block: Any, reader: Any) -> bool:
    """Whether the expression of ``reader``, with ``block`` inlined, would subtract and read some buffer twice."""
    buffer = block.writes[0].source
    if not count_float_subtractions(block.body) + count_float_subtractions(reader.body):
        return False
    count = count_loads(reader.body, buffer)
    sources = [access.source for access in (*block.reads, *reader.reads) if not access.source.same_as(buffer)]
    return any(count * count_loads(block.body, source) + count_loads(reader.body, source) > 1 for source in sources)


def _has_same_traversal(schedule: s_tir.Schedule, block: SBlockInfo, reader: SBlockInfo) -> bool:
    """Whether ``reader`` is elementwise too, and reads each element in the iteration in which the block writes it."""
    write = schedule.get(block.block_rv).writes[0]
    read = [access for access in schedule.get(reader.block_rv).reads if access.source.same_as(write.source)]
    return (
        reader.is_injective()
        and reader.dom() == block.dom()
        and _is_identity_access(write, block)
        and all(_is_identity_access(access, reader) for access in read)
    )


def _is_identity_access(access: Any, block: SBlockInfo) -> bool:
    """Whether the indices of an access are exactly the block's loop variables, in order."""
    return len(access.region) == len(block.iters) and all(
        dim.min.same_as(item.var) for dim, item in zip(access.region, block.iters, strict=True)
    )


def _can_move(schedule: s_tir.Schedule, block: SBlockInfo, blocks: Sequence[SBlockInfo]) -> bool:
    """Whether `compute_at_readers` may move the block into the loops of its readers."""
    return (
        block.is_injective()
        and bool(schedule.get_consumers(block.block_rv))
        and _Usage.from_block(schedule, block, blocks).can_move
    )


def _count_elements(block: SBlockInfo) -> int:
    count = 1
    for extent in block.dom():
        # A symbolic extent counts as 1, because the compared blocks have the same symbolic extents.
        count *= extent if isinstance(extent, int) else 1
    return count
