"""The openvino engine: what it compiles, and what an executable does with values, buffers, threads and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.engines.openvino_running import CONTEXT, LARGE, SQUARE, compiled, function, node, relu, run, tensor
from xrt.engines.openvino import OpenVino
from xrt.engines.openvino.library import LIBRARY
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import DType, TensorType

# ---------------------------------------------------------------------- values in and out


@pytest.mark.parametrize("columns", [3, LARGE], ids=["copied", "set"])
def test_bfloat16_goes_in_and_comes_out(columns: int) -> None:
    type_ = tensor(2, columns, dtype=DType.BFLOAT16)
    x = np.resize(np.array([-1.5, 256.0, 0, 1e30, 3]), (2, columns)).astype(ml_dtypes.bfloat16)
    (y,) = run(function({"x": type_}, {"y": type_}, [node("Neg", "x", "y")]), x)
    assert y.dtype == x.dtype
    assert np.array_equal(y, -x)


@pytest.mark.parametrize("columns", [3, LARGE], ids=["copied", "set"])
def test_an_array_of_another_type_is_refused_and_not_read_as_if(columns: int) -> None:
    executable = compiled(relu(columns))
    given = np.zeros((2, columns), np.complex64)
    with np.errstate(all="raise"), pytest.raises(RunFailed, match="failed while it ran"):
        executable.run([given])


def test_an_array_of_another_shape_is_refused() -> None:
    executable = compiled(relu(LARGE))
    with pytest.raises(RunFailed, match=f"{LIBRARY} failed while it ran 'main'"):
        executable.run([np.zeros((3, LARGE), np.float32)])
    x = np.full((2, LARGE), -1, np.float32)
    assert not executable.run([x])[0].any()


# ---------------------------------------------------------------------- shapes of regions


def test_a_region_without_nodes() -> None:
    f = function({"x": tensor(2)}, {"x": tensor(2), "c": None}, [], {"c": SQUARE})
    x = np.array([1, -2], np.float32)
    first, constant = run(f, x)
    assert np.array_equal(first, x)
    assert np.array_equal(constant, SQUARE)
    assert not np.shares_memory(first, x)
    with pytest.raises(CompileRefused, match="no compiled model to save"):
        OpenVino().save(compiled(f), CONTEXT)


def test_inputs_that_do_not_matter_are_dropped_by_the_library_and_not_by_the_engine() -> None:
    f = function(
        {"like": tensor(1, dtype=DType.FLOAT16), "x": tensor(2, 3)},
        {"y": tensor(2, 3, dtype=DType.FLOAT16)},
        [node("CastLike", "x like", "y")],
    )
    (y,) = run(f, np.ones(1, np.float16), SQUARE)
    assert np.array_equal(y, SQUARE.astype(np.float16))


def test_numbers_of_elements_are_computed_with() -> None:
    some = TensorType(DType.INT64, (2, None))
    nodes, constants = [node("NonZero", "x", "n"), node("Mul", "n thousand", "y")], {"thousand": np.array(1000)}
    n, y = run(function({"x": tensor(2, 3)}, {"n": some, "y": some}, nodes, constants), SQUARE)
    assert np.array_equal(n, np.nonzero(SQUARE)) and np.array_equal(y, 1000 * n)


@pytest.mark.parametrize("source", [DType.BOOL, DType.INT32], ids=str)
def test_position_ids_of_a_mask(source: DType) -> None:
    """As language models have them: the places of what is no padding, and one more."""
    mask, places = TensorType(DType.INT32, (2, 6)), TensorType(DType.INT64, (2, 6))
    nodes = [
        node("Cast", "x", "m", to=DType.INT32.onnx),
        node("CumSum", "m axis", "s"),
        node("Mul", "s m", "p"),
        node("Cast", "p", "w", to=DType.INT64.onnx),
        node("Add", "w one", "y"),
    ]
    types = {"x": TensorType(source, (2, 6)), "m": mask, "s": mask, "p": mask, "w": places, "y": places}
    constants = {"axis": np.array(1, np.int32), "one": np.array(1)}
    f = function({"x": types["x"]}, {"y": places}, nodes, constants).replace(types={n: types[n] for n in "mspw"})
    x = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]], source.numpy)
    assert run(f, x)[0].tolist() == [[2, 3, 4, 5, 1, 1], [2, 3, 1, 1, 1, 1]]


def test_both_64_bit_integers_of_numpy_are_taken() -> None:
    kind = TensorType(DType.INT64, (2,))
    f = function({"x": kind}, {"y": TensorType(DType.BOOL, (2,))}, [node("Equal", "x two", "y")], {"two": np.array(2)})
    assert run(f, np.array([1, 2], np.longlong))[0].tolist() == [False, True]


# ---------------------------------------------------------------------- threads, errors, noise


def test_what_cannot_cross_is_refused_at_compile() -> None:
    f = function({"x": None}, {"y": None}, [node("Relu", "x", "y")])
    with pytest.raises(CompileRefused, match="the type of input 'x' is not known"):
        OpenVino().compile(f, CONTEXT)
    strings = tensor(2, dtype=DType.STRING)
    f = function({"x": strings}, {"y": strings}, [node("Identity", "x", "y")])
    with pytest.raises(CompileRefused, match=r"'x' is string\[2\]"):
        OpenVino().compile(f, CONTEXT)


def test_what_the_library_declines_is_refused_in_few_words() -> None:
    f = function({"x": tensor(2, 2)}, {"y": tensor()}, [node("Det", "x", "y")])
    with pytest.raises(CompileRefused) as error:
        OpenVino().compile(f, CONTEXT)
    assert str(error.value) == f"{LIBRARY} declines: No conversion rule found for operations: Det-11"


PROCESS = """
import socket, sys, threading
told = []
sys.addaudithook(lambda event, details: told.append((event, details)) if event.startswith("socket.") else None)
import numpy as np
from xrt.engines import CompileContext
from xrt.engines.openvino import OpenVino
from xrt.graph import DType, Function, Node, TensorType, Value
t = TensorType(DType.FLOAT32, (2, 3))
f = Function((Value("x", t),), (Value("y", t),), (Node("Relu", ("x",), ("y",)),), opsets={"": 18})
assert OpenVino().why_not(f.nodes[0], f) is None
executable = OpenVino().compile(f, CompileContext(threads=2))
assert not executable.run([np.full((2, 3), -1, np.float32)])[0].any()
import openvino
assert callable(openvino.convert_model)
assert "openvino_telemetry" not in sys.modules
assert not told, told
assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
"""


@pytest.mark.slow
def test_nothing_is_sent_written_or_printed(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    environment.pop("CI", None)  # in which the library would keep quiet by itself
    command = [sys.executable, "-c", PROCESS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(tmp_path.iterdir())
