"""A Program: order, slots, memory that is shared with nobody, and errors that name the region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from xrt.cache import CompileCache
from xrt.engines import CompileContext, Executable, GraphCompiler, RunOptions
from xrt.errors import CompileFailed, CompileRefused, InputError, RunFailed
from xrt.graph import Constant, DType, Function, Node, TensorType, Value
from xrt.partition import ClusteringOptions, partition
from xrt.runtime import Program, Refusal, compile_plan

F32 = TensorType(DType.FLOAT32, (3,))


class Interpreter(Executable):
    """Relu, Neg, Add and Identity in NumPy; Identity returns its input itself."""

    KERNELS: ClassVar[dict[str, Any]] = {
        "Relu": lambda x: np.maximum(x, 0),
        "Neg": np.negative,
        "Add": np.add,
        "Identity": lambda x: x,
    }

    def __init__(self, function: Function) -> None:
        self.function = function
        self.prepared = 0

    def prepare(self) -> None:
        self.prepared += 1

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        values = {name: c.array for name, c in self.function.constants.items()}
        values.update(zip((v.name for v in self.function.inputs), inputs, strict=True))
        for node in self.function.nodes:
            if node.op_type == "Fail":
                raise ZeroDivisionError("inside the library")
            values[node.outputs[0]] = self.KERNELS[node.op_type](*(values[name] for name in node.inputs))
        return [values[v.name] for v in self.function.outputs]


@dataclass(frozen=True)
class First(GraphCompiler):
    name: ClassVar[str] = "first"
    declines: ClassVar[frozenset[str]] = frozenset({"Neg"})

    def why_not(self, node: Node, function: Function) -> str | None:
        return f"no kernel for {node.op}" if node.op_type in self.declines else None

    def compile(self, function: Function, context: CompileContext) -> Executable:
        if any(node.op_type == "Refuse" for node in function.nodes):
            raise CompileRefused("not after all", nodes=[n.name for n in function.nodes if n.op_type == "Refuse"])
        if any(node.op_type == "Crash" for node in function.nodes):
            raise ZeroDivisionError("in the compiler")
        return Interpreter(function)


@dataclass(frozen=True)
class Second(First):
    name: ClassVar[str] = "second"
    declines: ClassVar[frozenset[str]] = frozenset()


def program(function: Function, **options: Any) -> Program | tuple[Refusal, ...]:
    engines = (First(), Second())
    plan = partition(function, engines, ClusteringOptions(**options))
    return compile_plan(plan, {e.spec: e for e in engines}, CompileContext(), CompileCache())


def made(function: Function, **options: Any) -> Program:
    result = program(function, **options)
    assert isinstance(result, Program)
    return result


def function(*nodes: Node, inputs: str = "x", outputs: str = "y", constants: Any = None, aliases: Any = ()) -> Function:
    ends = (tuple(Value(n, F32) for n in names.split()) for names in (inputs, outputs))
    return Function(*ends, nodes, constants or {}, {"": 20}, aliases=aliases)


def node(op: str, reads: str, defines: str) -> Node:
    return Node(op, tuple(reads.split()), (defines,), name=f"{op}_{defines}")


X = np.array([-1, 0, 2], "float32")
MIXED = function(node("Relu", "x", "a"), node("Neg", "a", "b"), node("Add", "b w", "c"), node("Identity", "c", "y"), constants={
    "w": Constant(np.ones(3, "float32"))
})  # fmt: skip


@pytest.mark.slow
def test_launches_run_in_order_across_engines() -> None:
    mixed = made(MIXED)
    assert [launch.engine for launch in mixed.plan.launches] == ["first", "second", "first"]
    assert mixed.fast_call is None
    assert mixed.run([X])[0].tolist() == [1, 1, -1]


def test_one_region_is_called_directly_whatever_the_order_of_its_inputs_and_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Interpreter, "outputs_are_fresh", True)
    graph = function(node("Relu", "x", "a"), node("Add", "a w", "b"), node("Add", "b b", "c"), inputs="idle w x", outputs="c b a")
    ready, given = made(graph), [X - 5, X + 1, X]
    assert ready.fast_call is not None
    for results in (ready.fast_call(*given), ready.run(given)):
        assert [result.tolist() for result in results] == [[0, 2, 10], [0, 1, 5], [0, 0, 2]]


@pytest.mark.parametrize(
    ("graph", "count"),
    [
        (function(node("Relu", "x", "y"), inputs="x", outputs="x y"), 2),
        (function(node("Identity", "x", "y")), 1),
        (function(node("Relu", "x", "y"), outputs="y y w", constants={"w": Constant(X)}), 3),
        (function(node("Relu", "x", "a"), node("Identity", "a", "y"), outputs="a y"), 2),
        (function(outputs="x"), 1),
    ],
)
def test_an_output_shares_memory_with_nothing(graph: Function, count: int) -> None:
    ready, x = made(graph), X.copy()
    results = [*ready.run([x]), *ready.run([x])]
    assert len(results) == 2 * count
    others = [x, *(c.array for c in graph.constants.values())]
    for result in results:
        assert result.flags.writeable
        assert not any(np.shares_memory(result, other) for other in others)
        others.append(result)


def test_an_alias_holds_its_output_after_the_call() -> None:
    updating = made(function(node("Relu", "x", "a"), node("Neg", "a", "y"), outputs="a y", aliases=(("x", "y"),)))
    x = X.copy()
    a, y = updating.run([x])
    assert y is x
    assert x.tolist() == [0, 0, -2]
    assert a.tolist() == [0, 0, 2]


def test_a_buffer_of_the_caller_is_filled_and_returned() -> None:
    buffer = np.empty(3, "float32")
    (y,) = made(MIXED).run([X], RunOptions(out=[buffer]))
    assert y is buffer
    assert buffer.tolist() == [1, 1, -1]
    with pytest.raises(InputError, match=r"^out\[0\] is float32\[4\], but the output is float32\[3\]$"):
        made(MIXED).run([X], RunOptions(out=[np.empty(4, "float32")]))


def test_a_library_that_fails_is_named_with_its_region() -> None:
    broken = made(function(node("Relu", "x", "a"), node("Fail", "a", "y")))
    with pytest.raises(
        RunFailed, match=r"^engine 'first' failed to run xrt_first_0: ZeroDivisionError: inside the library$"
    ) as caught:
        broken.run([X])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_refusals_come_back_with_the_nodes_to_place_elsewhere() -> None:
    refusals = program(function(node("Relu", "x", "a"), node("Refuse", "a", "b"), node("Neg", "b", "c"), node("Crash", "c", "y")))
    assert isinstance(refusals, tuple)
    assert [(r.launch.name, r.nodes, type(r.error)) for r in refusals] == [
        ("xrt_first_0", ("Refuse_b",), CompileRefused),
        ("xrt_first_2", ("Crash_y",), CompileFailed),
    ]
    assert str(refusals[1].error) == "engine 'first' failed to compile xrt_first_2 (1 nodes): ZeroDivisionError: in the compiler"


def test_a_profile_counts_only_the_calls_that_ask() -> None:
    ready = made(MIXED)
    assert str(ready.profile()) == "nothing profiled yet; call the module with options=RunOptions(profile=True)"
    ready.run([X])
    ready.run([X], RunOptions(profile=True))
    profile = ready.profile()
    assert [(t.launch, t.calls) for t in profile.launches] == [("xrt_first_0", 1), ("xrt_second_1", 1), ("xrt_first_2", 1)]
    assert profile.seconds > 0
