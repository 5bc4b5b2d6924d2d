"""The ort engine's sessions: threads, errors, noise, and what they have grown by."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.engines.ort_running import CONTEXT, F32, SQUARE, compiled, function, node, relu, two_outputs
from xrt.engines import Executable
from xrt.engines.ort import Ort
from xrt.engines.ort.executable import SessionCalls
from xrt.engines.toolkit.libraries import AllocationTracker
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import Constant, DType, Function, Node, SequenceType, TensorType, Value


def test_threads_share_an_executable() -> None:
    executable = compiled(two_outputs(64))
    inputs = [np.random.default_rng(i).standard_normal((4, 64)).astype(np.float32) for i in range(64)]

    def right(x: np.ndarray[Any, Any]) -> bool:
        return all(np.array_equal(executable.run([x])[1], -x) for _ in range(20))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(right, inputs))


class OtherSession:
    """A session of a version without the inner call that this one has."""

    def get_outputs(self) -> list[Any]:
        return []

    def run(self, names: list[str], feed: dict[str, Any], options: None) -> list[Any]:
        return [feed["x"]]


def test_without_the_librarys_inner_call_its_public_one_serves() -> None:
    session: Any = OtherSession()
    calls = SessionCalls(session, (Value("x", TensorType(F32)),), (Value("y", TensorType(F32)),))
    assert calls.direct == session.run
    assert calls({"x": SQUARE}, {})["y"] is SQUARE


def test_an_error_while_running_has_its_cause_and_its_sense() -> None:
    executable = compiled(relu())
    with pytest.raises(RunFailed) as error:
        executable.run([np.ones((2, 4), np.float32)])
    assert error.value.__cause__ is not None
    assert str(error.value) == (
        f"ONNX Runtime {onnxruntime.__version__} failed while it ran 'main': Got invalid dimensions for input: x for the "
        "following indices index: 1 Got: 4 Expected: 3 Please fix either the inputs/outputs or the model"
    )
    assert np.array_equal(executable.run([SQUARE])[0], np.maximum(SQUARE, 0))


def test_what_cannot_cross_is_refused_at_compile() -> None:
    f = function({"x": None}, ["y"], [node("Relu", "x", "y")])
    with pytest.raises(CompileRefused, match="the type of input 'x' is not known"):
        Ort().compile(f, CONTEXT)
    f = function({"x": TensorType(DType.COMPLEX64, (2,))}, ["y"], [node("Identity", "x", "y")])
    with pytest.raises(CompileRefused, match="cannot pass 'x' in or out"):
        Ort().compile(f, CONTEXT)
    f = Function(
        (Value("s", SequenceType(TensorType(F32))),),
        (Value("y", TensorType(DType.BFLOAT16)),),
        (node("SequenceAt", "s i", "x"), node("Cast", "x", "y", to=DType.BFLOAT16.onnx)),
        {"i": Constant(np.array(0))},
        {"": 21},
    )
    with pytest.raises(CompileRefused) as error:
        Ort().compile(f, CONTEXT)
    assert str(error.value) == (
        "'y' of type bfloat16[...] comes out only by binding, and ONNX Runtime's Python interface cannot bind 's' with it, "
        "which is not a tensor of numbers"
    )


def test_what_the_library_declines_is_refused_in_few_words() -> None:
    f = function({"x": TensorType(DType.UINT16, (2,))}, ["y"], [Node("Relu", ("x",), ("y",), name="r")])
    with pytest.raises(CompileRefused) as error:
        Ort().compile(f, CONTEXT)
    assert len(str(error.value)) < 300
    assert "r" in str(error.value)


PROCESS = """
import sys, numpy as np, onnxruntime
if "pool" in sys.argv: onnxruntime.set_global_thread_pool_sizes(2, 1)
from xrt.engines import CompileContext
from xrt.engines.ort import Ort
from xrt.engines.ort.executable import SessionCalls
from xrt.errors import CompileRefused
from xrt.graph import DType, Function, Node, TensorType, Value
def relu(dtype):
    t = TensorType(dtype, (2, 3))
    return Function((Value("x", t),), (Value("y", TensorType(dtype, (7,))),), (Node("Relu", ("x",), ("y",)),), opsets={"": 18})
f = relu(DType.FLOAT32)
assert Ort().why_not(f.nodes[0], f) is None
executable = Ort().compile(f, CompileContext(threads=2))
assert executable.run([np.full((2, 3), -1, np.float32)])[0].shape == (2, 3)
assert Ort().why_not(f.nodes[0], relu(DType.UINT16)) is not None
try: Ort().compile(relu(DType.UINT16), CompileContext())
except CompileRefused: pass
else: raise SystemExit("not refused")
"""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["pool"]], ids=["own threads", "the process's pool"])
def test_nothing_is_printed(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", PROCESS, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_sessions_opened_at_once_share_what_they_have_grown_by() -> None:
    weights = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)

    def product(columns: int) -> Function:
        types = {"x": TensorType(F32, ("N", 1024))}
        return function(types, ["y"], [node("MatMul", "x w", "y")], {"w": weights[:, :columns].copy()})

    compiled(product(1024))
    alone = _session_bytes(compiled(product(1024)))
    assert weights.nbytes <= alone <= 1.5 * weights.nbytes
    functions = product(1024), product(512)
    with AllocationTracker(1):
        kept = list(map(compiled, functions))
        assert [_session_bytes(executable) for executable in kept] == [0, 0]  # not known before all are open
    large, small = (_session_bytes(executable) for executable in kept)
    assert large == pytest.approx(2 * small, rel=0.01)
    assert 1.5 * weights.nbytes <= large + small <= 2 * weights.nbytes


def test_a_session_that_does_not_open_has_not_grown() -> None:
    with pytest.raises(CompileRefused), AllocationTracker(1) as failed:
        raise CompileRefused("no")
    assert failed.nbytes is None


def _session_bytes(executable: Executable) -> int:
    return next(use.nbytes or 0 for use in executable.memory() or () if use.name == "session")
