"""Where the tvm engine's results go: to the caller's buffers, and over an input where that is safe."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax, te
from tvm.ir import IRModule

import xrt
from tests.engines.tvm_running import CONTEXT
from tests.engines.written import function, one, tensor
from xrt.engines import CompileContext, RunOptions
from xrt.engines.tvm import Tvm
from xrt.engines.tvm.destination_passing import MOST, find_inplace_inputs, name_entry
from xrt.engines.tvm.executable import RelaxExecutable
from xrt.graph import Function, Node
from xrt.testing.corpus import find_entry

Array = np.ndarray[Any, Any]


def compiled(f: Function) -> RelaxExecutable:
    executable = Tvm().compile(f, CONTEXT)
    assert isinstance(executable, RelaxExecutable)
    executable.prepare()
    return executable


def random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


TWO_RESULTS = function(
    Node("Relu", ("x",), ("y",)),
    Node("Softmax", ("y",), ("z",)),
    inputs={"x": tensor(5, 7)},
    outputs={"y": tensor(5, 7), "z": tensor(5, 7)},
)


@pytest.mark.slow
def test_results_are_computed_into_given_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    executable, x = compiled(TWO_RESULTS), random(5, 7)
    expected = [array.copy() for array in executable.run([x])]
    assert executable.supports_io_binding()
    bound, aimed, given = ([np.zeros_like(array) for array in expected] for _ in range(3))
    executable.bind([x], bound)()
    executable.bind_outputs(aimed)(x)
    returned = executable.run([x], RunOptions(out=given))
    assert all(a is b for a, b in zip(returned, given, strict=True))
    for buffers in (bound, aimed, given):
        assert all(map(np.array_equal, buffers, expected))


def test_a_bound_call_reads_its_inputs_when_it_is_made() -> None:
    executable, x, y = compiled(one("Neg", tensor(9), output=tensor(9))), random(9), np.zeros(9, np.float32)
    call = executable.bind([x], [y])
    for value in (1, 2):
        x[:] = value
        call()
        assert y.tolist() == [-value] * 9


def test_buffers_that_compiled_code_cannot_write_to_are_filled() -> None:
    executable, x = compiled(one("Neg", tensor(4, 6), output=tensor(4, 6))), random(4, 6)
    strided = np.zeros((4, 12), np.float32)[:, ::2]
    executable.bind_outputs([strided])(x)
    assert np.array_equal(strided, -x)
    over = x.copy()
    assert executable.run([over.T.copy().T], RunOptions(out=[over]))[0] is over
    assert np.array_equal(over, -x)


def test_a_buffer_that_may_not_be_written_to_is_not() -> None:
    executable, x = compiled(one("Neg", tensor(9), output=tensor(9))), random(9)
    frozen = np.zeros(9, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        executable.bind_outputs([frozen])(x)
    assert not frozen.any()


def test_a_buffer_over_an_input_that_is_read_across_is_filled_at_the_end() -> None:
    f = function(
        Node("Transpose", ("x",), ("t",)),
        Node("Add", ("x", "t"), ("y",)),
        inputs={"x": tensor(40, 40)},
        outputs={"y": tensor(40, 40)},
    )
    executable, x = compiled(f), random(40, 40)
    assert executable.inplace_pairs() == []
    over = x.copy()
    executable.run([over], RunOptions(out=[over]))
    assert np.array_equal(over, x + x.T)


@pytest.mark.parametrize(
    "outputs",
    [("x", "y"), ("y", "z"), ("y", "c"), ("y", "x")],
    ids=["an input", "twice the same", "a constant", "an input behind it"],
)
def test_what_is_not_computed_by_itself_is_copied(outputs: tuple[str, ...]) -> None:
    f = function(
        Node("Neg", ("x",), ("y",)),
        Node("Identity", ("y",), ("z",)),
        inputs={"x": tensor(100)},
        outputs={name: tensor(100) for name in outputs},
        constants={"c": np.arange(100, dtype=np.float32)},
    )
    executable, x = compiled(f), random(100)
    buffers = [np.zeros(100, np.float32) for _ in outputs]
    assert not executable.supports_io_binding() and list(executable.output_buffer_threshold()) == []
    executable.bind([x], buffers)()
    assert all(np.array_equal(b, r) for b, r in zip(buffers, executable.run([x]), strict=True))


def chain(length: int) -> Function:
    """Return products and sums in a row, which TVM makes one loop of."""
    names = [f"v{k}" for k in range(length + 1)]
    nodes = [Node("Mul" if k % 2 else "Add", (a, "c"), (b,)) for k, (a, b) in enumerate(pairwise(names))]
    types = {name: tensor(64, 96) for name in names[1:-1]}
    constants = {"c": np.array(1.01, np.float32)}
    return function(*nodes, inputs={"v0": tensor(64, 96)}, outputs={names[-1]: tensor(64, 96)}, constants=constants, types=types)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 7, 40])
def test_a_chain_may_write_over_its_input(length: int) -> None:
    executable, x = compiled(chain(length)), random(64, 96)
    expected = executable.run([x])[0].copy()
    assert executable.inplace_pairs() == [(0, 0)]
    over = x.copy()
    executable.bind([over], [over])()
    assert np.array_equal(over, expected)


@pytest.mark.slow
def test_only_what_has_the_shape_of_the_result_is_written_over() -> None:
    f = one("Add", tensor(6, 8), tensor(8), output=tensor(6, 8))
    assert compiled(f).inplace_pairs() == [(0, 0)]
    assert compiled(one("Softmax", tensor(6, 8), output=tensor(6, 8))).inplace_pairs() == []
    assert compiled(TWO_RESULTS).inplace_pairs() == []


@pytest.mark.parametrize(
    "f",
    [
        one("Conv", tensor(2, 4, 8), tensor(4, 1, 1), output=tensor(2, 4, 8), group=4),
        one("MatMul", tensor(6, 1), tensor(1, 1), output=tensor(6, 1)),
        one("ReduceSum", tensor(6, 1), output=tensor(6, 1)),
        one("MaxPool", tensor(2, 4, 8), output=tensor(2, 4, 8), kernel_shape=[1]),
    ],
    ids=lambda f: f.nodes[0].op,
)
def test_a_sum_of_one_element_is_not_written_over_what_it_sums(f: Function) -> None:
    """It writes its zero first: such a convolution gave nothing but zeros."""
    executable, arrays = compiled(f), [random(*value.type.shape) for value in f.inputs]
    expected = executable.run(arrays)[0].copy()
    assert expected.any()
    for place, _ in executable.inplace_pairs():
        over = [x.copy() for x in arrays]
        executable.bind(over, [over[place]])()
        assert np.array_equal(over[place], expected)


def test_nor_is_it_in_a_mixture() -> None:
    entry = find_entry("convolution_over_one_element")
    with xrt.XRTModule(entry.function, ["tvm", "toy"], pins=["*Neg=toy"]) as module:
        assert [launch.engine for launch in module.plan.launches] == ["toy", "tvm"]
        assert entry.judge([module(*entry.make_inputs())]).message == ""


def reversed_sum(names: str) -> IRModule:
    """Return a module of one loop: the first of two arguments, plus the second from its end."""
    a, b = (te.placeholder((8,), name=name) for name in "ab")
    loop = te.create_prim_func([a, b, te.compute((8,), lambda i: a[i] + b[7 - i], name="c")])
    variables = {name: relax.Var(name, relax.TensorType((8,), "float32")) for name in dict.fromkeys(names)}
    builder = relax.BlockBuilder()
    with builder.function("main", list(variables.values())):
        given = [variables[name] for name in names]
        builder.emit_func_output(builder.emit(relax.call_tir(builder.add_func(loop, "loop"), given, given[0].ty)))
    return builder.get()


@pytest.mark.parametrize(("names", "expected"), [("ab", {0: (0,)}), ("aa", {})])
def test_what_is_read_elsewhere_by_another_name_is_not_written_over(names: str, expected: dict[int, tuple[int, ...]]) -> None:
    assert find_inplace_inputs(reversed_sum(names), 2) == expected


def test_neither_weights_nor_loops_that_are_compiled_alone_are_written_over() -> None:
    assert find_inplace_inputs(reversed_sum("ab"), 0) == {}
    assert find_inplace_inputs(reversed_sum("ab"), 2, {"loop"}) == {}


def llvm_of(executable: RelaxExecutable) -> dict[str, str]:
    """Return the optimized code of each function, by its name."""
    (library,) = executable.program.code.mod.imports
    bodies = re.split(r"^define ", library.inspect_source("ll"), flags=re.MULTILINE)[1:]
    return {body[: body.index("(", body.index("@"))].rpartition("@")[2]: body for body in bodies}


@pytest.mark.parametrize("op", ["Relu", "Erf", "Sqrt", "Floor"])
def test_in_place_and_elsewhere_the_same_vectors_are_written(op: str) -> None:
    """Code that has to ask whether its arrays overlap goes element by element where they do: three to eight times slower."""
    executable = Tvm().compile(one(op, tensor(512, 1024), output=tensor(512, 1024)), CompileContext(threads=1))
    assert isinstance(executable, RelaxExecutable)
    code = llvm_of(executable)
    loops = {name: body for name, body in code.items() if name.endswith("_compute_")}
    assert len(loops) == 2 and sum(name_entry(0) in name for name in loops) == 1
    vectors = [set(re.findall(r"store (<\d+ x float>)", body)) for body in loops.values()]
    assert vectors[0] and vectors[0] == vectors[1]
    assert not any("memcheck" in body for body in loops.values())


@pytest.mark.slow
def test_each_of_several_inputs_may_be_written_over() -> None:
    names = [f"x{k}" for k in range(MOST + 1)]
    f = one("Sum", *(tensor(30, 50) for _ in names), output=tensor(30, 50))
    executable, arrays = compiled(f), [random(30, 50) * k for k in range(1, MOST + 2)]
    expected = executable.run(arrays)[0].copy()
    assert executable.inplace_pairs() == [(k, 0) for k in range(MOST)]
    for k in range(MOST):
        for call in ("bind", "into", "run"):
            given = [array.copy() for array in arrays]
            if call == "bind":
                executable.bind(given, [given[k]])()
            elif call == "into":
                executable.bind_outputs([given[k]])(*given)
            else:
                executable.run(given, RunOptions(out=[given[k]]))
            assert np.array_equal(given[k], expected), (k, call)


@pytest.mark.slow
def test_an_input_that_shares_only_part_of_the_result_is_read_before_it_is_written() -> None:
    executable, memory = compiled(chain(3)), random(65, 96)
    expected = executable.run([memory[:-1].copy()])[0].copy()
    for call in ("bind", "into", "run"):
        shifted = memory.copy()
        if call == "bind":
            executable.bind([shifted[:-1]], [shifted[1:]])()
        elif call == "into":
            executable.bind_outputs([shifted[1:]])(shifted[:-1])
        else:
            executable.run([shifted[:-1]], RunOptions(out=[shifted[1:]]))
        assert np.array_equal(shifted[1:], expected), call


@pytest.mark.slow
@pytest.mark.parametrize("f", [chain(3), TWO_RESULTS], ids=["in place", "two results"])
def test_saved_code_computes_into_buffers_too(f: Function, tmp_path: Path) -> None:
    context = CompileContext(threads=1, workdir=tmp_path)
    made = compiled(f)
    loaded = Tvm().load(memoryview(bytes(Tvm().save(made, context))), f, context)
    loaded.prepare()
    assert (loaded.supports_io_binding(), list(loaded.inplace_pairs())) == (True, list(made.inplace_pairs()))
    x = random(*f.inputs[0].type.shape)  # type: ignore[union-attr, misc]
    buffers = [np.zeros_like(array) for array in made.run([x])]
    loaded.bind([x], buffers)()
    assert all(map(np.array_equal, buffers, made.run([x])))
