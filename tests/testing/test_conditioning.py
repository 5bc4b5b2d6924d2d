"""Outputs that rounding decides: what is defined of them counts, and nothing else is admitted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy._core._multiarray_umath import __cpu_features__
from onnx import TensorProto, helper, numpy_helper

from xrt.comparison import Tolerance
from xrt.engines.toy import Toy
from xrt.graph import Function, Node
from xrt.testing import ConformanceCase, ResultWord, conform, group_cases, run_case, run_reference
from xrt.testing.cases import SoftmaxBounds
from xrt.testing.conformance import PreparedCase, run_single

TIGHT = Tolerance(1e-6, 1e-12)


def softmax(x: np.ndarray[Any, Any], axis: int = -1) -> np.ndarray[Any, Any]:
    powers = np.exp(x.astype(np.float64) - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


# ---------------------------------------------------------------------- bounds


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e5, 1e7, 1e10])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_whatever_one_rounding_makes_of_a_softmax_is_within_its_bounds(scale: float, dtype: str):
    rng = np.random.default_rng(0)
    read = (rng.standard_normal((5, 8)) * np.array([[1.0], [0.0], [1e-6], [1e-7], [1.0]]) + 1).astype(dtype) * np.asarray(
        scale, dtype
    )
    bounds = SoftmaxBounds.read_from(read, (1, 2), TIGHT)
    for _ in range(50):
        moved = read + rng.integers(-1, 2, read.shape).astype(dtype) * np.spacing(read)
        assert bounds.admits(softmax(moved), softmax(read)).all()


def test_bounds_of_small_numbers_are_narrow_and_those_of_large_ones_are_all_that_sums_to_one():
    small = SoftmaxBounds.read_from(np.float32([[1, 2, 3]]), (1, 2), TIGHT)
    assert (small.high - small.low < 1e-6).all()
    large = SoftmaxBounds.read_from(np.float32([[1e10, 1e10, 1e10, 0]]), (1, 2), TIGHT)
    assert large.low.tolist() == [[0, 0, 0, 0]]
    assert large.high.tolist() == [[1, 1, 1, 0]]
    assert large.admits(np.float32([[1, 0, 0, 0]]), large.low).all()
    assert large.admits(np.float32([[0.25, 0.5, 0.25, 0]]), large.low).all()
    assert not large.admits(np.float32([[0, 0, 0, 1]]), large.low).all(), "the last is far below the others"
    assert not large.admits(np.float32([[1, 1, 1, 0]]), large.low).any(), "the row sums to three"
    assert not large.admits(np.float32([[0, 0, 0, 0]]), large.low).any()
    assert not large.admits(np.float32([[np.nan, 1, 0, 0]]), large.low).any()
    assert not large.admits(np.float32([[1.5, -0.5, 0, 0]]), large.low).all()


def test_rows_may_be_any_axes():
    read = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32)
    middle = SoftmaxBounds.read_from(read, (1, 2), TIGHT)
    assert middle.admits(softmax(read, axis=1), read).all()
    assert not middle.admits(softmax(read, axis=2), read).any()
    flat = softmax(read.reshape(2, 12)).reshape(2, 3, 4)
    assert SoftmaxBounds.read_from(read, (1, 3), TIGHT).admits(flat, read).all()


def test_a_row_of_one_is_one():
    bounds = SoftmaxBounds.read_from(np.float32([[1e10], [3]]), (1, 2), TIGHT)
    assert bounds.low.tolist() == bounds.high.tolist() == [[1], [1]]


# ---------------------------------------------------------------------- cases


def case_of(scale: float, *, computed: bool = True) -> ConformanceCase:
    """y = Softmax(x @ w) with equal weights, so that in exact arithmetic all outputs are equal; or Softmax of what is given."""
    given = np.full((2, 4), scale, np.float32)
    weights = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    product = helper.make_node("MatMul", ["x", "w"], ["h"])
    last = helper.make_node("Softmax", ["h" if computed else "x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy")
    graph = helper.make_graph([product, last] if computed else [last], "g", [x], [y], [weights] if computed else [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return ConformanceCase("rounded", model, (given,), (np.full((2, 4), 0.25, np.float32),), 1e-3, 1e-7)


table = Toy.kernels.extend("rounding")


@table("MatMul", devices=("cpu",), priority=9)
def product(node: Node, env: Any) -> Any:
    """Right in exact arithmetic, with other roundings in every column."""
    return lambda a, b: a @ b + np.arange(b.shape[1], dtype=a.dtype) * np.spacing(np.abs(a @ b))


@table("GlobalAveragePool", devices=("cpu",), priority=9)
def pool(node: Node, env: Any) -> Any:
    def run(x: Any) -> Any:
        mean = x.mean(axis=(2, 3), keepdims=True)
        return mean + (np.arange(x.shape[1], dtype=x.dtype) % 32 == 0).reshape(1, -1, 1, 1) * np.spacing(mean)

    return run


@dataclass(frozen=True)
class OtherRoundings(Toy):
    """Toy, but for roundings before a Softmax."""

    name: ClassVar[str] = "other_roundings"
    kernels = table


def planted(op: str, factory: Any) -> type[Toy]:
    """Return an engine that rounds as `OtherRoundings` and computes one operator wrong."""
    own = table.extend(f"wrong_{op}")
    own(op, devices=("cpu",), priority=99)(factory)

    @dataclass(frozen=True)
    class Planted(OtherRoundings):
        name: ClassVar[str] = f"planted_{op.lower()}"
        kernels = own

    return Planted


def of_all_elements(node: Node, env: Any) -> Any:
    return lambda x: np.ones_like(x)


def of_nothing(node: Node, env: Any) -> Any:
    return lambda x: np.zeros_like(x)


def one_percent_more(node: Node, env: Any) -> Any:
    return lambda a, b: (a @ b) * np.float32(1.01) + np.arange(b.shape[1], dtype=a.dtype) * np.spacing(a @ b)


def test_a_softmax_of_large_computed_numbers_is_decided_by_rounding():
    case = case_of(1e10)
    assert not case.judge(run_once(case)), "it differs from what the case expects, and nothing else is known"
    assert list(case.rounded) == ["y"]
    assert run_case(case, run_single(OtherRoundings())).word is ResultWord.PASSED


def run_once(case: ConformanceCase) -> Any:
    return run_single(OtherRoundings())(case.function, case.inputs).run(case.inputs)


@pytest.mark.parametrize("factory", [of_all_elements, of_nothing])
def test_a_softmax_that_sums_to_anything_else_has_failed(factory: Any):
    outcome = run_case(case_of(1e10), run_single(planted("Softmax", factory)()))
    assert outcome.word is ResultWord.FAILED
    assert outcome.reason.startswith("y differs in 8 of 8 elements; at worst y[0,0] is ")


def test_wrong_numbers_before_the_softmax_have_failed():
    outcome = run_case(case_of(1e10), run_single(planted("MatMul", one_percent_more)()))
    assert outcome.word is ResultWord.FAILED
    assert outcome.reason.startswith("h differs in 8 of 8 elements; at worst h[0,3] is ")


def test_a_failure_of_the_second_run_is_one():
    case, make = case_of(1e10), run_single(OtherRoundings())

    def once(function: Function, inputs: Sequence[Any]) -> PreparedCase:
        if function is not case.function:
            raise RuntimeError("only once")
        return make(function, inputs)

    outcome = run_case(case, once)
    assert (outcome.word, outcome.reason) == (ResultWord.FAILED, "at run: RuntimeError: only once")


@pytest.mark.parametrize("case", [case_of(1.0), case_of(1e10, computed=False)], ids=["small", "given"])
def test_small_numbers_and_given_ones_leave_nothing_to_rounding(case: ConformanceCase):
    assert not case.rounded


def test_the_evaluator_of_onnx_gives_the_numbers_before_too():
    case = case_of(1e10)
    far = ConformanceCase(case.name, case.model, case.inputs, (np.float32([[1, 0, 0, 0]] * 2),), case.rtol, case.atol)
    assert run_reference(far).word is ResultWord.PASSED, "a quarter each is as good as a one and three zeros"


@pytest.mark.slow
def test_squeezenet_is_judged_by_what_is_defined_of_it():
    """Its logits are 1e10 and equal in exact arithmetic; on some processors toy's own products round them apart."""
    [case] = group_cases(("light",), "light_squeezenet")
    apart = OtherRoundings(native="off")
    assert not case.judge(run_single(apart)(case.function, case.inputs).run(case.inputs)), "32 channels share the one"
    report = conform(apart, "light_squeezenet", groups=["light"])
    assert report.ok, str(report)

    def twice(node: Node, env: Any) -> Any:
        return lambda x: pool(node, env)(x) * 2

    [outcome] = conform(planted("GlobalAveragePool", twice)(native="off"), "light_squeezenet", groups=["light"]).outcomes
    assert outcome.word is ResultWord.FAILED
    assert outcome.reason.startswith("r65 differs in 1000 of 1000 elements")


CORES = {
    "PRESCOTT": "SSE3",
    "NEHALEM": "SSE42",
    "SANDYBRIDGE": "AVX",
    "HASWELL": "FMA3",
    "ZEN": "FMA3",
    "SKYLAKEX": "AVX512_SKX",
}
"""Kernels that NumPy's library of products has, and what a processor needs to run them."""


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("core", [core for core, feature in CORES.items() if __cpu_features__.get(feature)])
@pytest.mark.parametrize("engine", ["toy", "toy{native=off}"])
def test_squeezenet_passes_whatever_kernels_the_library_of_products_has(core: str, engine: str):
    command = [sys.executable, "-m", "xrt.cli", "conformance", engine, "--group", "light", "--cases", "light_squeezenet"]
    done = subprocess.run(command, env=os.environ | {"OPENBLAS_CORETYPE": core}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
