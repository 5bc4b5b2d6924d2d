"""Schedule loops for CPUs. TVM's own CPU pipeline has no schedules: it runs naive loops on one thread.

FuseTIR produces a PrimFunc, which is a sequence of blocks: loop nests that read and write buffers. An elementwise block is
inlined into its readers, the blocks that read its result. If it has several readers, it may be computed into a register in
their common loop. Then each remaining nest is scheduled as an elementwise loop, a transposition, or a reduction.
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
"""Fields of TIR's expressions and statements that contain operands."""


def count_operations(statement: Any) -> int:
    """Count the operations in a block's body, without those that compute indices."""
    return _sum_over_tree(statement, lambda node: int(_has_operands(node)), {})


def count_loads(statement: Any, buffer: Any = None) -> int:
    """Count the loads in a block's body from a buffer; None counts the loads from all buffers."""

    def count(node: Any) -> int:
        return int(isinstance(node, TensorLoad) and (buffer is None or node.source.same_as(buffer)))

    return _sum_over_tree(statement, count, {})


def uses_vector_instructions(statement: Any) -> bool:
    """Whether every operation of a block's body compiles to a single vector instruction."""
    return not _sum_over_tree(statement, lambda node: int(not _is_vector_instruction(node)), {})


def _is_vector_instruction(node: Any) -> bool:
    name = getattr(getattr(node, "op", None), "name", "")
    return type(node).__name__ in _INSTRUCTIONS or name in _INTRINSICS or not _has_operands(node)


_INSTRUCTIONS = {
    *("TensorStore", "BufferStore", "TensorLoad", "Add", "Sub", "Mul", "Div", "Max", "Min", "Select", "Cast"),
    *("LT", "LE", "GT", "GE", "EQ", "NE", "And", "Or", "Not"),
}
_INTRINSICS = {
    f"tirx.{name}"
    for name in ("fabs", "sqrt", "floor", "ceil", "trunc", "fma", "isnan", "reinterpret", "shift_left", "shift_right")
}


def _sum_over_tree(node: Any, count: Callable[[Any], int], totals: dict[int, int]) -> int:
    """Sum ``count`` over the nodes of an expression tree. ``totals`` memoizes shared subexpressions, so the time is linear."""
    key = hash(node)  # TVM hashes a node by its address, which is unique as long as the root is alive
    if key not in totals:
        totals[key] = count(node) + sum(_sum_over_tree(operand, count, totals) for operand in _iter_operands(node))
    return totals[key]


def _has_operands(node: Any) -> bool:
    return next(_iter_operands(node), None) is not None


def _iter_operands(node: Any) -> Iterator[Any]:
    # The operands of a load are its indices, which do not count as operations of the block.
    if isinstance(node, TensorLoad):
        return
    for name in _OPERAND_FIELDS:
        operand = getattr(node, name, None)
        if operand is not None and not isinstance(operand, int | float):
            yield operand
    yield from getattr(node, "args", ())


Loop: TypeAlias = "s_tir.schedule.LoopRV"
MIN_PARALLEL_ITERATIONS = 16384
"""A nest with fewer iterations is not tiled, and not parallelized, because waking a second thread takes about 5 us."""
ASSUMED_SYMBOLIC_EXTENT = 64
"""The extent that is assumed for a symbolic dim. A transformer of 256 tokens, a symbolic number, took 31 ms with 16, 64 and
4096, and 47 ms with 1; one of a single token took 0.6 ms with each."""
MIN_INTERLEAVED_OPERATIONS = 16
"""Loops with at least this many operations per iteration are interleaved by `LoopNest`. LLVM interleaves shorter ones itself."""


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
        """Number of vector registers to use for partial sums: three quarters. The remaining registers contain operands."""
        return 24 if self.vector_bits >= 512 else 12


class LoopNest:
    """Schedules one block of a PrimFunc and the loops around it. Usually the spatial loops come first, then the reductions."""

    def __init__(self, schedule: s_tir.Schedule, block: SBlockInfo, cpu: CpuProperties) -> None:
        self.schedule = schedule
        self.block = block.block_rv
        self.cpu = cpu
        # A string with one letter per loop, such as "SSR": S for spatial, R for reduction.
        self.loop_kinds = block.dom_kind()
        self.extents = block.dom()
        self.loop_variables = [item.var for item in block.iters]
        self.num_spatial = len(self.loop_kinds.rstrip("R"))

    @property
    def has_spatial_first(self) -> bool:
        """Whether all spatial loops come before the reductions."""
        return bool(self.num_spatial) and set(self.loop_kinds[: self.num_spatial]) == {"S"}

    def parallelize_symbolic(self) -> None:
        """Parallelize the outermost loop of a nest with symbolic extents, and leave the inner loops to LLVM."""
        if self.cpu.threads == 1:
            return
        for loop, extent in zip(self.schedule.get_loops(self.block), self.extents[: self.num_spatial], strict=False):
            if not isinstance(extent, int) or extent > 1:
                self.schedule.parallel(loop)
                return

    @property
    def is_large_reduction(self) -> bool:
        return self.num_spatial < len(self.loop_kinds) and self.iterations >= MIN_PARALLEL_ITERATIONS

    def schedule_by_default(self) -> None:
        """Schedule an elementwise nest: fuse contiguous loops, tile transposed accesses, parallelize the outermost loop."""
        runs = self._group_loops()
        all_loops = self.schedule.get_loops(self.block)
        # Fuse the loops of each run, so that LLVM can vectorize the last one.
        loops = [_fuse_loops(self.schedule, [all_loops[i] for i in run]) for run in runs]
        if self.num_spatial < len(self.loop_kinds):
            # A reduction that is small, or that `tile` and `split_rows` do not support. LLVM optimizes its inner loops.
            self._parallelize(loops[0])
        elif len(runs) == 1:
            self._parallelize(self._interleave(loops[0]))
        else:
            self._parallelize(self._tile_transposed(runs, loops))

    @property
    def iterations(self) -> int:
        """Number of iterations of the nest. A symbolic extent counts as `ASSUMED_SYMBOLIC_EXTENT`."""
        total = 1
        for extent in self.extents:
            total *= extent if isinstance(extent, int) else ASSUMED_SYMBOLIC_EXTENT
        return total

    def _parallelize(self, outermost: Loop) -> None:
        if self.cpu.threads > 1 and self.iterations >= MIN_PARALLEL_ITERATIONS:
            self.schedule.parallel(outermost)

    def _group_loops(self) -> list[list[int]]:
        """Group the indices of spatial loops into runs: loops that can be fused, as each access traverses them contiguously."""
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

        In such an expression each operation waits for the previous one. Meanwhile the CPU executes later iterations only if they
        start within some hundred instructions, and LLVM interleaves only short loops.
        """
        body = self.schedule.get(self.block).body
        if count_operations(body) < MIN_INTERLEAVED_OPERATIONS or not uses_vector_instructions(body):
            return loop
        # A vector needs about three registers if the expression reads one operand, and six if it reads several.
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

        Vectors are read contiguously, and their elements are written to separate cache lines. That is twice as fast as reading
        from separate lines and writing vectors. Without tiles, a transposition of NHWC to NCHW takes 3 times as long.
        """
        transposed = self._find_transposed_run(runs)  # the index of a run, and of its loop
        if transposed is None or self.iterations < MIN_PARALLEL_ITERATIONS:
            return loops[0]
        schedule = self.schedule
        *outer, last = loops
        outer[transposed], read_tile = schedule.split(outer[transposed], [None, self._choose_tile_size(runs[transposed])])
        last_outer, write_tile = schedule.split(last, [None, self._choose_tile_size(runs[-1])])
        schedule.reorder(*outer, last_outer, write_tile, read_tile)
        schedule.vectorize(read_tile)
        return _fuse_loops(schedule, outer)

    def _find_transposed_run(self, runs: list[list[int]]) -> int | None:
        """Find the index of a run, other than the last one, along which an operand is read contiguously; None if there is none.

        The result is written contiguously along the last run, so the operand is transposed. An operand that does not depend on
        the last run is skipped, because it is read only once per row.
        """
        last = [self.loop_variables[index] for index in runs[-1]]
        for read in self.schedule.get(self.block).reads:
            if not any(_depends_on(dim, variable) for dim in read.region for variable in last):
                continue
            for index, run in enumerate(runs[:-1]):
                if _is_consecutive(read, self.loop_variables[run[-1]]) and self.extents[run[-1]] > 1:
                    return index
        return None

    def _choose_tile_size(self, run: list[int]) -> int:
        """Choose how many iterations of a run belong to a tile: a divisor of its iterations, at most 8."""
        length = 1
        for index in run:
            length *= self.extents[index]
        return _find_divisor(length, 8)

    def _is_contiguous_pair(self, access: Any, outer: int, inner: int) -> bool:
        """Whether an access allows fusing two neighboring loops.

        It does if it depends on neither loop, or if the loops index adjacent axes of the buffer, the inner axis completely.
        """
        # A loop of one iteration can be fused with each other loop.
        if 1 in (self.extents[outer], self.extents[inner]):
            return True
        region = access.region
        outer_variable, inner_variable = self.loop_variables[outer], self.loop_variables[inner]
        if not any(_depends_on(dim, variable) for dim in region for variable in (outer_variable, inner_variable)):
            return True
        return any(
            region[axis].min.same_as(outer_variable)
            and region[axis + 1].min.same_as(inner_variable)
            and access.source.shape[axis + 1] == self.extents[inner]
            for axis in range(len(region) - 1)
        )

    def tile(self) -> bool:
        """Accumulate a tile of the result in registers. Return False, and change nothing, if that would not be faster.

        A tile is some vectors along the last axis, times some rows along a "reuse axis". The vectors that are read do not depend
        on the reuse axis, so each of the rows uses the same vectors. In a matrix product these are the rows of the result, in a
        convolution the output channels. Without a reuse axis a tile is faster only if vectors are read contiguously, as in a sum
        over the first axis.
        """
        last = self.num_spatial - 1
        if not isinstance(self.extents[last], int):
            return False
        reads = [read for read in self.schedule.get(self.block).reads if _varies_along_last_axis(read, self.loop_variables[last])]
        if not reads:
            return False
        reuse = self._find_reuse_axis(reads)
        reduction_variables = self.loop_variables[self.num_spatial :]
        # A sum along contiguous elements has one result per row, so there is no vector to tile. `split_rows` supports it.
        if reuse is None and any(_varies_along_last_axis(read, v) for read in reads for v in reduction_variables):
            return False
        # The registers must contain rows times vectors. Both divide known extents, as a remainder would need a second loop nest.
        lanes = _find_divisor(self.extents[last], self.cpu.lanes_per_vector(self._result_bits))
        vectors = _find_divisor(self.extents[last] // lanes, 2 if reuse is not None else 4)
        rows = 1
        if reuse is not None:
            max_rows = min(8, self.cpu.accumulators // vectors)
            extent = self.extents[reuse]
            # TVM adds a condition for the last rows of a symbolic extent.
            rows = _find_divisor(extent, max_rows) if isinstance(extent, int) else max_rows
        self._reorder_tile(reuse, rows, vectors, lanes)
        return True

    def _find_reuse_axis(self, reads: list[Any]) -> int | None:
        """Find the innermost axis of several elements, before the last one, on which no read depends; None if there is none."""
        for axis in reversed(range(self.num_spatial - 1)):
            variable = self.loop_variables[axis]
            is_read = any(_depends_on(dim, variable) for read in reads for dim in read.region)
            is_single = isinstance(self.extents[axis], int) and self.extents[axis] <= 1
            if not is_read and not is_single:
                return axis
        return None

    def _reorder_tile(self, reuse: int | None, rows: int, vectors: int, lanes: int) -> None:
        """Reorder the loops for tiles of ``rows`` rows along axis ``reuse``, times ``vectors`` vectors of ``lanes`` elements."""
        schedule = self.schedule
        registers = schedule.cache_write(self.block, 0, "local")
        loops = schedule.get_loops(self.block)
        outer, reduced = loops[: self.num_spatial - 1], loops[self.num_spatial :]
        # The order of the loops becomes: outer, column of tiles, reductions, row, vector, lane. A tile is the last three.
        inner = []
        if reuse is not None:
            outer[reuse], row = schedule.split(outer[reuse], [None, rows])
            inner.append(row)
        column, vector, lane = schedule.split(loops[self.num_spatial - 1], [None, vectors, lanes])
        schedule.reorder(*outer, column, *reduced, *inner, vector, lane)
        outermost = _fuse_loops(schedule, outer) if outer else column
        schedule.reverse_compute_at(registers, column)
        self._parallelize(outermost)
        schedule.vectorize(lane)
        for loop in (*inner, vector):
            schedule.unroll(loop)
        # Set the accumulators to zero before the loop, not in its first iteration.
        schedule.decompose_reduction(self.block, reduced[0])

    def split_rows(self) -> bool:
        """Reduce each row into several vectors, which are added after the loop. Return False if rows are not contiguous."""
        if not isinstance(self.extents[-1], int):
            return False
        schedule = self.schedule
        reads = schedule.get(self.block).reads
        # Four vectors in turn, because additions to a single vector would wait for each other.
        max_width = min(self.extents[-1] // 2, 4 * self.cpu.lanes_per_vector(self._result_bits))
        width = _find_divisor(self.extents[-1], max_width)
        if width < 4 or not any(_is_consecutive(read, self.loop_variables[-1]) for read in reads):
            return False
        _, lane = schedule.split(schedule.get_loops(self.block)[-1], [None, width])
        # A new block computes the partial sum of each lane, and the original block adds them.
        partial = schedule.rfactor(lane, -1)
        spatial = schedule.get_loops(self.block)[: self.num_spatial]
        outermost = _fuse_loops(schedule, spatial)
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


def _fuse_loops(schedule: s_tir.Schedule, loops: Sequence[Loop]) -> Loop:
    return schedule.fuse(*loops) if len(loops) > 1 else loops[0]


def _depends_on(dim: Any, variable: Any) -> bool:
    return any(v.same_as(variable) for v in tirx.analysis.undefined_vars(dim.min))


def _varies_along_last_axis(access: Any, variable: Any) -> bool:
    """Whether the index of an access on its last axis depends on a loop variable."""
    return bool(len(access.region)) and _depends_on(access.region[-1], variable)


def _is_consecutive(access: Any, variable: Any) -> bool:
    """Whether the index of an access on its last axis is the loop variable itself, so that the loop reads contiguously."""
    return bool(len(access.region)) and bool(access.region[-1].min.same_as(variable))


def _find_divisor(number: int, limit: int) -> int:
    """Find the largest divisor of ``number`` that does not exceed ``limit``."""
    return next((d for d in range(min(number, limit), 0, -1) if number % d == 0), 1)


def compute_at_readers(schedule: s_tir.Schedule, block: SBlockInfo) -> bool:
    """Compute a block in the innermost loop that its readers share, into a register; return False if they share no loop."""
    # Try the innermost loop that is not vectorized, of the reader with the fewest loops. If another reader is outside of that
    # loop, compute_at raises ScheduleError.
    loops = min((schedule.get_loops(reader) for reader in schedule.get_consumers(block.block_rv)), key=len)
    while loops and schedule.get(loops[-1]).kind == ForKind.VECTORIZED:
        loops.pop()
    try:
        schedule.compute_at(block.block_rv, loops[-1])
    except (IndexError, s_tir.ScheduleError):
        return False
    return True


MAX_RECOMPUTED_OPERATIONS = 16384
"""Inlining may recompute this many operations per call in total: up to this number, a separate loop nest would take longer."""
MAX_REPEATED_OPERATIONS = 8
"""An expression with at most this many operations is recomputed by each reader instead of stored and loaded."""
MAX_INLINED_OPERATIONS = 128
"""Maximum number of operations in an expression with repeated parts. The time of TVM's simplifier is superlinear."""


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
        # Move blocks only now, into the scheduled loops of their readers. In reverse: movable blocks may read each other.
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
    if all(isinstance(extent, int) for extent in nest.extents):
        nest.schedule_by_default()
    else:
        nest.parallelize_symbolic()
    return schedule


def _inline_producers(schedule: s_tir.Schedule, blocks: Sequence[SBlockInfo]) -> list[SBlockInfo]:
    """Inline elementwise blocks into their readers, and return the blocks that remain.

    A block is not inlined if expressions would become too large. A reader that loads a value three times repeats its expression
    three times, so a chain of such readers would grow exponentially.
    """
    budget = MAX_RECOMPUTED_OPERATIONS
    remaining = list(blocks)
    for block in blocks[:-1]:
        if not block.is_injective():
            continue
        # Analyzed after the previous blocks were inlined, which made the expressions of later blocks longer.
        usage = _Usage.from_block(schedule, block, remaining)
        if usage.is_worth_inlining(budget):
            with suppress(s_tir.ScheduleError):
                schedule.compute_inline(block.block_rv)
                budget -= max(usage.recomputed_operations, 0)
                remaining.remove(block)
    return remaining


@dataclass(frozen=True, slots=True)
class _Usage:
    """How readers use the result of an elementwise block, to decide whether to inline its expression."""

    operations: int
    """Operations in the block's expression."""
    recomputed_operations: int
    """Additional operations per call after inlining, because each reader computes the expression for each of its elements."""
    repeated_operations: int
    """Additional operations in the code after inlining."""
    largest_expression: int
    """Operations in the largest expression of a reader after inlining."""
    can_move: bool
    """Whether all readers traverse the same elements in the same order, so that a register can contain the result instead."""
    is_reduced: bool
    """Whether inlining would make a reduction compute elements several times: it has more iterations than the block."""

    @classmethod
    def from_block(cls, schedule: s_tir.Schedule, block: SBlockInfo, blocks: Sequence[SBlockInfo]) -> _Usage:
        """Analyze how readers among ``blocks`` use ``block``. Inlining replaces each of their loads by its expression."""
        names = {schedule.get(reader).name_hint for reader in schedule.get_consumers(block.block_rv)}
        readers = [other for other in blocks if other.name in names]
        stmt = schedule.get(block.block_rv)
        operations = count_operations(stmt.body)
        bodies = [schedule.get(reader.block_rv).body for reader in readers]
        loads = [count_loads(body, stmt.writes[0].source) for body in bodies]
        inlined_sizes = [count_operations(body) + count * operations for body, count in zip(bodies, loads, strict=True)]
        return cls(
            operations=operations,
            recomputed_operations=operations * (sum(map(_count_elements, readers)) - _count_elements(block)),
            repeated_operations=operations * (sum(loads) - 1),
            largest_expression=max(inlined_sizes, default=0),
            can_move=all(_has_same_traversal(schedule, block, reader) for reader in readers),
            is_reduced=any(not r.is_injective() and _count_elements(r) > _count_elements(block) for r in readers),
        )

    def is_worth_inlining(self, budget: int) -> bool:
        """Whether to inline the block. At most ``budget`` operations per call may be recomputed, unless the block is small."""
        if self.is_reduced:
            return False
        if self.operations > MAX_REPEATED_OPERATIONS and self.recomputed_operations > max(budget, 0):
            return False
        if self.repeated_operations <= MAX_REPEATED_OPERATIONS:
            return True
        # A register is better than repeated code, if the block can move.
        return not self.can_move and self.largest_expression <= MAX_INLINED_OPERATIONS


def _has_same_traversal(schedule: s_tir.Schedule, block: SBlockInfo, reader: SBlockInfo) -> bool:
    """Whether ``reader`` is elementwise too, and reads each element in the same iteration in which ``block`` writes it."""
    write = schedule.get(block.block_rv).writes[0]
    reads = [access for access in schedule.get(reader.block_rv).reads if access.source.same_as(write.source)]
    return (
        reader.is_injective()
        and reader.dom() == block.dom()
        and _is_identity_access(write, block)
        and all(_is_identity_access(read, reader) for read in reads)
    )


def _is_identity_access(access: Any, block: SBlockInfo) -> bool:
    """Whether the indices of an access are exactly the block's loop variables, in order."""
    return len(access.region) == len(block.iters) and all(
        dim.min.same_as(item.var) for dim, item in zip(access.region, block.iters, strict=True)
    )


def _can_move(schedule: s_tir.Schedule, block: SBlockInfo, blocks: Sequence[SBlockInfo]) -> bool:
    """Whether `compute_at_readers` may move the block into the loops of its readers."""
    if not block.is_injective() or not schedule.get_consumers(block.block_rv):
        return False
    return _Usage.from_block(schedule, block, blocks).can_move


def _count_elements(block: SBlockInfo) -> int:
    """Count the iterations of a block, which for elementwise blocks is the number of elements."""
    count = 1
    for extent in block.dom():
        # A symbolic extent counts as 1, because the compared blocks have the same symbolic extents.
        count *= extent if isinstance(extent, int) else 1
    return count
