"""Where the tvm engine's results go: to the caller's buffers, and over an input where that is safe."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.engines.tvm_running import CONTEXT
from tests.engines.written import function, one, tensor
from xrt.engines import CompileContext, RunOptions
from xrt.engines.tvm import Tvm
from xrt.engines.tvm.destination_passing import name_entry
from xrt.engines.tvm.executable import RelaxExecutable
from xrt.graph import Function, Node

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


@pytest.mark.slow
def test_only_what_has_the_shape_of_the_result_is_written_over() -> None:
    f = one("Add", tensor(6, 8), tensor(8), output=tensor(6, 8))
    assert compiled(f).inplace_pairs() == [(0, 0)]
    assert compiled(one("Softmax", tensor(6, 8), output=tensor(6, 8))).inplace_pairs() == []
    assert compiled(TWO_RESULTS).inplace_pairs() == []


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
