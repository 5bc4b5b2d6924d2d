"""The arena: values alive together lie apart, memory of the dead is used again, and updates in place."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import xrt
from tests.laws.test_laws import bounded
from xrt.cache import CompileCache
from xrt.engines import CompileContext, Executable, GraphCompiler, RunOptions
from xrt.engines.toolkit.memory import LiveRange
from xrt.errors import RunFailed
from xrt.graph import Function, Node, TensorType
from xrt.graph.constants import ALIGNMENT
from xrt.partition import ClusteringOptions, partition
from xrt.runtime import Program, compile_plan
from xrt.runtime.memory_plan import Arena, ArenaValue, may_overlap, plan_arena
from xrt.testing.corpus.entry import graph, node, tensor
from xrt.testing.running import pin_nodes


def value(name: str, type_: TensorType, first: int, last: int) -> ArenaValue:
    return ArenaValue(name, type_, LiveRange(type_.nbytes or 0, first, last))


@st.composite
def lifetimes(draw: st.DrawFn) -> list[ArenaValue]:
    """Values of random sizes and lives."""
    values: list[ArenaValue] = []
    for number in range(draw(st.integers(0, 30))):
        first, size = draw(st.integers(0, 12)), draw(st.integers(1, 100))
        values.append(value(f"v{number}", tensor(f"float32[{size}]"), first, draw(st.integers(first, 14))))
    return sorted(values, key=lambda value: value.span.first)


def overlap(arena: Arena) -> bool:
    """Whether two values that are alive together share memory."""
    spans = [value.span for value in arena.values]
    return any(
        a.first <= b.last and b.first <= a.last and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes
        for i, a in enumerate(spans)
        for b in spans[:i]
    )


@pytest.mark.slow
@settings(bounded, max_examples=300)
@given(values=lifetimes())
def test_values_that_are_alive_together_never_overlap(values: list[ArenaValue]) -> None:
    arena = plan_arena(values)
    assert {placed.name for placed in arena.values} == {value.name for value in values}
    assert all(placed.span.offset % ALIGNMENT == 0 for placed in arena.values)
    assert not overlap(arena)
    spans = [value.span for value in values]
    most = max((sum(v.nbytes for v in spans if v.first <= step <= v.last) for step in range(15)), default=0)
    assert most <= arena.nbytes <= sum(-(-v.nbytes // ALIGNMENT) * ALIGNMENT for v in spans)


def test_memory_of_the_dead_is_used_again() -> None:
    chain = [value(f"v{i}", tensor("float32[256]"), i, i + 1) for i in range(10)]
    assert plan_arena(chain).nbytes == 2 * 1024


def test_views_lie_at_aligned_addresses_of_one_fresh_block() -> None:
    arena = plan_arena([value("a", tensor("float32[3,5]"), 0, 1), value("b", tensor("int8[]"), 0, 1)])
    views, others = arena.views(), arena.views()
    assert (views["a"].shape, views["a"].dtype, views["b"].shape) == ((3, 5), np.float32, ())
    assert all(view.ctypes.data % ALIGNMENT == 0 for view in views.values())
    assert not np.shares_memory(views["a"], others["a"])


KERNELS: dict[str, Any] = {
    "Relu": lambda x, out: np.maximum(x, 0, out=out),
    "Neg": np.negative,
    "Add": np.add,
    "Mul": np.multiply,
}


class InPlace(Executable):
    """Computes node by node into the given buffers, and proposes every in-place pair that this allows: merciless to bad plans."""

    outputs_are_fresh = True

    def __init__(self, function: Function, engine: Filling) -> None:
        self.function = function
        self.engine = engine

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        out = options.out or [None] * len(self.function.outputs)
        return self.compute(inputs, out)

    def compute(self, inputs: Sequence[Any], out: Sequence[Any]) -> list[Any]:
        buffers = {value.name: buffer for value, buffer in zip(self.function.outputs, out, strict=True)}
        values = dict(zip((v.name for v in self.function.inputs), inputs, strict=True))
        for each in self.function.nodes:
            results = [values[name] for name in each.inputs]
            buffer = buffers.get(each.outputs[0])
            values[each.outputs[0]] = KERNELS[each.op_type](*results, out=np.empty_like(results[0]) if buffer is None else buffer)
        results = [values[v.name] for v in self.function.outputs]
        return [result[:1] for result in results] if self.engine.shortens else results

    def supports_io_binding(self) -> bool:
        return self.engine.binds

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        return lambda: self.compute(inputs, outputs) and None

    def output_buffer_threshold(self) -> Sequence[int | None]:
        return [self.engine.fills] * len(self.function.outputs)

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return [pair for place, value in enumerate(self.function.outputs) for pair in self.pairs(place, value.name)]

    def pairs(self, place: int, name: str) -> list[tuple[int, int]]:
        """Return the inputs that the node of an output reads last."""
        at = next(i for i, node in enumerate(self.function.nodes) if name in node.outputs)
        later = {read for node in self.function.nodes[at + 1 :] for read in node.inputs}
        return [
            (i, place)
            for i, v in enumerate(self.function.inputs)
            if v.name in self.function.nodes[at].inputs and v.name not in later
        ]


@dataclass(frozen=True)
class Filling(GraphCompiler):
    name: ClassVar[str] = "filling"
    mark: str = ""
    binds: bool = False
    fills: int = 0
    shortens: bool = False

    def version(self) -> str:
        return "0"

    def why_not(self, node: Node, function: Function) -> str | None:
        return None if node.op_type in KERNELS else "no kernel"

    def compile(self, function: Function, context: CompileContext) -> Executable:
        return InPlace(function, self)


def program_of(function: Function, engines: Sequence[GraphCompiler], homes: Sequence[int]) -> Program:
    """Return the program whose nodes are on the engines of these places in the list."""
    pins = pin_nodes(engines, dict(zip((node.name for node in function.nodes), homes, strict=True)))
    plan = partition(function, engines, ClusteringOptions(pins=pins))
    program = compile_plan(plan, {e.spec: e for e in engines}, CompileContext(), CompileCache())
    assert isinstance(program, Program)
    return program


SIZES = st.sampled_from([1, 40, 5000])
"""Small ones that are copied to their place, and one that is not."""


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[Function, Program, int]:
    """A random elementwise graph, its program with nodes scattered over three engines, and the size of its values."""
    size = draw(SIZES)
    type_ = tensor(f"float32[{size}]")
    table, nodes = ["x", "y"], []
    for number in range(draw(st.integers(2, 14))):
        op = draw(st.sampled_from(sorted(KERNELS)))
        reads = [draw(st.sampled_from(table[-5:])) for _ in range(2 if op in ("Add", "Mul") else 1)]
        nodes.append(node(op, " ".join(reads), f"v{number}"))
        table.append(f"v{number}")
    read = {name for node in nodes for name in node.inputs}
    outputs = [n for n in table[2:] if n not in read or draw(st.integers(0, 5)) == 0]
    function = graph(dict.fromkeys("xy", type_), dict.fromkeys(outputs, type_), *nodes, opset=20)
    function = function.replace(types=dict.fromkeys(table[2:], type_))
    engines: list[GraphCompiler] = [Filling("a"), Filling("b", binds=True), Filling("c", binds=draw(st.booleans()), fills=size)]
    return function, program_of(function, engines, [draw(st.integers(0, 2)) for _ in nodes]), size


def expected(function: Function, inputs: Sequence[Any]) -> list[Any]:
    return InPlace(function, Filling()).run(inputs)  # type: ignore[return-value]  # a list


def random_inputs(size: int, seed: int) -> list[Any]:
    return list(np.random.default_rng(seed).standard_normal((2, size)).astype("float32"))


@pytest.mark.slow
@settings(bounded, max_examples=150)
@given(mixture=mixtures(), is_profiled=st.booleans())
def test_no_update_is_lost_no_input_is_written_and_outputs_share_memory_with_nothing(mixture: Any, is_profiled: bool) -> None:
    """Nor do buffers of the caller, of some outputs, and profiles change anything."""
    function, program, size = mixture
    assert not overlap(program.arena)
    seen: list[Any] = []
    for seed in range(3):
        inputs = random_inputs(size, seed)
        items = [x.copy() for x in inputs]
        buffers = [np.empty(size, "float32") if is_profiled and i % 2 == 0 else None for i in range(len(function.outputs))]
        results = program.run(inputs, RunOptions(out=buffers if is_profiled else None, profile=is_profiled))
        np.testing.assert_array_equal(inputs, items)
        seen += inputs
        for result, buffer, wanted in zip(results, buffers, expected(function, inputs), strict=True):
            assert buffer is None or result is buffer
            np.testing.assert_array_equal(result, wanted)
            assert not any(np.shares_memory(result, other) for other in seen)
            seen.append(result)
    assert {timed.calls for timed in program.profile().launches} == {3 if is_profiled else 0}


@pytest.mark.slow
@settings(bounded, max_examples=20)
@given(mixture=mixtures())
def test_calls_at_the_same_time_keep_apart(mixture: Any) -> None:
    function, program, size = mixture

    def call(seed: int) -> bool:
        inputs = random_inputs(size, seed)
        results = [program.run(inputs) for _ in range(5)]
        wanted = expected(function, inputs)
        return all(np.array_equal(a, b) for result in results for a, b in zip(result, wanted, strict=True))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(16)))


@pytest.mark.slow
@settings(bounded, max_examples=60)
@given(mixture=mixtures())
def test_a_bound_program_reads_and_writes_what_it_was_bound_to(mixture: Any) -> None:
    function, program, size = mixture
    inputs, buffers = random_inputs(size, 0), [np.empty(size, "float32") for _ in function.outputs]
    call = program.bind(inputs, buffers)
    for seed in range(3):
        for value, fresh in zip(inputs, random_inputs(size, seed), strict=True):
            value[...] = fresh
        results = [x.copy() for x in inputs]
        call()
        np.testing.assert_array_equal(inputs, results)
        for buffer, wanted in zip(buffers, expected(function, inputs), strict=True):
            np.testing.assert_array_equal(buffer, wanted)


def chained(size: int, *engines: GraphCompiler) -> Program:
    """A chain of one node per engine."""
    type_, distinct = tensor(f"float32[{size}]"), list(dict.fromkeys(engines))
    nodes = [node("Neg", f"v{i}", f"v{i + 1}") for i in range(len(engines))]
    function = graph({"v0": type_}, {f"v{len(engines)}": type_}, *nodes, opset=20)
    function = function.replace(types={node.outputs[0]: type_ for node in nodes})
    return program_of(function, distinct, list(map(distinct.index, engines)))


def test_values_that_cross_lie_in_the_arena() -> None:
    a, b = Filling("a"), Filling("b")
    program = chained(100_000, a, b, a, b)
    assert [placed.name for placed in program.arena.values] == ["v1", "v2", "v3"]
    assert program.arena.nbytes == 800_000, "the third has the memory of the first"
    assert [launch.engine for launch in program.plan.launches] == [a.spec, b.spec, a.spec, b.spec]


def test_an_engine_that_fills_nothing_leaves_no_arena() -> None:
    program = chained(100_000, Filling("a", fills=10**9), Filling("b", fills=10**9))
    assert (program.arena.nbytes, program.arena.values) == (0, ())


def test_a_result_of_another_shape_is_not_spread_over_its_place() -> None:
    program = chained(100_000, Filling("a", shortens=True), Filling("b"))
    with pytest.raises(RunFailed) as caught:
        program.run([np.ones(100_000, "float32")])
    region, output = caught.value.region, "a result is float32[1], but the buffer for it is float32[100000]"
    assert region.startswith("xrt_filling_")
    assert str(caught.value).endswith(f" failed to run {region}: {output}")


CACHE, NEW = tensor("float32[1,512,64]"), tensor("float32[1,1,64]")


def cached(*read: str) -> Function:
    """Write a row of a cache (TensorScatter), and square what is read of it before or afterwards."""
    read = read or ("present",)
    nodes = [node("TensorScatter", "cache x at", "present", name="write", axis=1)]
    nodes += [node("Mul", f"{name} {name}", f"{name}_squared", name=f"square_{name}") for name in read]
    outputs = {"present": CACHE, **{f"{name}_squared": CACHE for name in read}}
    inputs = {"cache": CACHE, "x": NEW, "at": "int64[1]"}
    return graph(inputs, outputs, *nodes, opset=24, aliases=(("cache", "present"),))


def ordered(function: Function, **control: str) -> Function:
    """Return the Function with one of its nodes behind another."""
    return function.replace(nodes=[replace(n, control=(control[n.name],)) if n.name in control else n for n in function.nodes])


def arrays(seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [*(rng.standard_normal(t.shape).astype("float32") for t in (CACHE, NEW)), np.array([7])]


def module(function: Function, *engines: str, **options: Any) -> xrt.XRTModule:
    return xrt.XRTModule(function, engine=list(engines), strict=True, **options)


def check(m: Any, read: tuple[str, ...]) -> Any:
    """Call twice and compare with NumPy; return the profile."""
    cache, x, at = arrays()
    for step in range(2):
        before, expected = cache.copy(), cache.copy()
        at[0] += step
        expected[:, at[0]] = x[:, 0]
        results = m(cache, x, at)
        assert results[0] is cache
        np.testing.assert_array_equal(cache, expected)
        squares = {"cache": before, "present": expected}
        for name, result in zip(read, results[1:], strict=True):
            np.testing.assert_array_equal(result, squares[name] ** 2)
    return m.profile()


AFTER, BEFORE = cached(), ordered(cached("cache"), write="square_cache")


@pytest.mark.parametrize(
    ("function", "pins"),
    [
        (AFTER, ["*=toy"]),
        (AFTER, ["*=ort"]),
        (AFTER, ["name:write=toy", "name:square_present=ort"]),
        (AFTER, ["name:write=ort", "name:square_present=toy"]),
        (BEFORE, ["name:square_cache=toy", "name:write=ort"]),
        (BEFORE, ["name:square_cache=ort", "name:write=toy"]),
    ],
)
def test_an_input_is_written_in_place_if_its_readers_run_before(function: Function, pins: list[str]) -> None:
    m = module(function, "ort", "toy", pins=pins)
    assert check(m, ("present",) if function is AFTER else ("cache",)).copies == ()
    assert len(m.plan.launches) == len(pins)
    assert m.explain().updates == ("cache <- present: in place",)


def test_a_reader_in_a_later_region_forces_a_copy_that_is_counted_and_named() -> None:
    function = ordered(cached("cache"), square_cache="write")
    m = module(function, "ort", "toy", pins=["name:square_cache=toy", "name:write=ort"])
    (copy,) = check(m, ("cache",)).copies
    assert (copy.input, copy.output, copy.calls, copy.nbytes) == ("cache", "present", 2, 2 * CACHE.nbytes)
    assert copy.reason == "xrt_toy_1 may read it after xrt_ort_0 has written it"
    assert str(copy) == f"cache <- present: 262,144 bytes copied in 2 calls, since {copy.reason}"
    assert str(copy) in str(m.profile())
    assert f"updates cache <- present: copied, since {copy.reason}" in str(m.explain())


def test_a_second_reader_in_the_region_forces_a_copy() -> None:
    for engine in ("ort", "toy"):
        (copy,) = check(module(cached("cache"), engine), ("cache",)).copies
        assert copy.reason == f"engine {engine!r} cannot write it in place in xrt_{engine}_0"


@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_an_input_that_overlaps_another_is_updated_by_a_copy(engine: str) -> None:
    m = module(cached(), engine)
    cache, _, at = arrays()
    row, expected = cache[:, 3:4], cache.copy()
    expected[:, 7] = expected[:, 3]
    present, squared = m(cache, row, at)
    assert present is cache
    np.testing.assert_array_equal(cache, expected)
    np.testing.assert_array_equal(squared, expected**2)
    assert m.profile().copies[0].calls == 1


@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_a_bound_call_updates_in_place(engine: str) -> None:
    m, (cache, x, at) = module(cached(), engine), arrays()
    bound = m.bind(cache, x, at)
    assert bound.outputs[0] is cache
    for place in (1, 2):
        at[0], expected = place, cache.copy()
        expected[:, place] = x[:, 0]
        bound()
        np.testing.assert_array_equal(cache, expected)
        np.testing.assert_array_equal(bound.outputs[1], expected**2)
    assert m.profile().copies == ()


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_the_callers_buffer_holds_the_output_too(engine: str, bound: bool) -> None:
    m, (cache, x, at) = module(cached(), engine), arrays()
    out, expected = np.zeros_like(cache), cache.copy()
    expected[:, 7] = x[:, 0]
    results = m.bind(cache, x, at, out=[out, None])() if bound else m(cache, x, at, out=[out, None])
    assert results[0] is out
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(cache, expected)


@pytest.mark.parametrize("out", [None, [None, np.zeros(2, np.float32)]], ids=["no buffer", "buffer"])
@pytest.mark.parametrize("bound", [False, True])
def test_a_constant_updates_its_input(bound: bool, out: list[Any] | None) -> None:
    ends = dict.fromkeys("xs", "float32[2]"), dict.fromkeys("yc", "float32[2]")
    constants = {"c": np.array([7, 8], np.float32)}
    m = xrt.XRTModule(graph(*ends, node("Add", "x s", "y"), constants=constants, aliases=(("s", "c"),)), "toy")
    x, s = np.ones(2, np.float32), np.zeros(2, np.float32)
    _ = m.bind(x, s, out=out)() if bound else m(x, s, out=out)
    np.testing.assert_array_equal(s, [7, 8])


def test_memory_that_is_shared_is_found() -> None:
    block = np.zeros((8, 4))
    apart, rows, columns = block[:4], block[4:], block[:, :2]
    assert not may_overlap([0], [apart, rows])
    assert may_overlap([0], [apart, columns])
    assert may_overlap([0], [columns, rows]), "what is not in C order cannot be written to by an engine"
    assert may_overlap([1], [block, rows]) and may_overlap([0], [block, None, [rows]])
    assert not may_overlap([2], [block, block, np.zeros(3)])
